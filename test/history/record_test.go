package history

import (
	"sync"
	"time"
)

// kind is what a client asked for.
type kind string

const (
	create kind = "create"
	update kind = "update" // with a base it compares and swaps
	patch  kind = "patch"
	remove kind = "delete"
	get    kind = "get"
	list   kind = "list"  // of the most recent state
	exact  kind = "exact" // a list of one revision in the past
	end    kind = "end"   // of a key's history; nobody asks for it
)

// outcome is what the client learned.
type outcome string

const (
	done     outcome = "ok"
	exists   outcome = "exists"   // 409 AlreadyExists
	conflict outcome = "conflict" // 409 Conflict
	missing  outcome = "missing"  // 404
	unknown  outcome = "unknown"  // 5xx, or no answer: it may have happened at any later time, or never
	refused  outcome = "refused"  // certainly nothing happened: nobody took the request, or 503 'nothing was written'
)

// operation is one request of one client and its answer. Times are nanoseconds since the history began.
type operation struct {
	ID      int
	Client  int
	Process string
	Kind    kind
	Key     string // namespace and name; of a list, the namespace
	// Base is the revision that a write compares with; 0 for none.
	Base uint64 `json:",omitempty"`
	// Value is what a write meant to write. No two writes have the same.
	Value   string `json:",omitempty"`
	Call    int64
	Return  int64
	Outcome outcome
	// Revision is the answer's, and Read the value in it: of a delete, the last one.
	Revision uint64 `json:",omitempty"`
	Read     string `json:",omitempty"`
	Items    []item `json:",omitempty"`
	Code     int    `json:",omitempty"`
	Message  string `json:",omitempty"`
}

// item is one object in a list.
type item struct {
	Key, Value string
	Revision   uint64
}

func (o *operation) writes() bool { return o.Kind != get && o.Kind != list && o.Kind != exact }

// record is the history of all clients.
type record struct {
	start time.Time

	mu         sync.Mutex
	operations []*operation // mu: by return
	n          int          // mu
}

func (r *record) now() int64 { return int64(time.Since(r.start)) }

// id is a new operation's.
func (r *record) id() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
	return r.n
}

func (r *record) add(o *operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.operations = append(r.operations, o)
}
