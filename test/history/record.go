package history

import (
	"slices"
	"sync"
	"time"
)

// Kind is what a client asked for.
type Kind string

const (
	Create Kind = "create"
	Update Kind = "update" // with a base it compares and swaps
	Patch  Kind = "patch"
	Remove Kind = "delete"
	Get    Kind = "get"
	List   Kind = "list"  // of the most recent state
	Exact  Kind = "exact" // a list of one revision in the past
	end    Kind = "end"   // of a key's history; nobody asks for it
)

// Outcome is what the client learned.
type Outcome string

const (
	Done     Outcome = "ok"
	Exists   Outcome = "exists"   // 409 AlreadyExists
	Conflict Outcome = "conflict" // 409 Conflict
	Missing  Outcome = "missing"  // 404
	Unknown  Outcome = "unknown"  // 5xx, or no answer: it may have happened at any later time, or never
	Refused  Outcome = "refused"  // certainly nothing happened: nobody took the request, or 503 'nothing was written'
)

// Operation is one request of one client and its answer. Times are nanoseconds since the history began.
type Operation struct {
	ID      int
	Client  int
	Process string
	Kind    Kind
	Key     string // namespace and name; of a list, the namespace
	// Base is the revision that a write compares with; 0 for none.
	Base uint64 `json:",omitempty"`
	// Value is what a write meant to write. No two writes have the same.
	Value   string `json:",omitempty"`
	Call    int64
	Return  int64
	Outcome Outcome
	// Revision is the answer's, and Read the value in it: of a delete, the last one.
	Revision uint64 `json:",omitempty"`
	Read     string `json:",omitempty"`
	Items    []Item `json:",omitempty"`
	Code     int    `json:",omitempty"`
	Message  string `json:",omitempty"`
}

// Item is one object in a list.
type Item struct {
	Key, Value string
	Revision   uint64
}

// Writes says whether the operation may change something.
func (o *Operation) Writes() bool { return o.Kind != Get && o.Kind != List && o.Kind != Exact }

// Record is the history of all clients.
type Record struct {
	Start time.Time

	mu         sync.Mutex
	operations []*Operation // mu: by return
	n          int          // mu
}

// Now is the time of the history.
func (r *Record) Now() int64 { return int64(time.Since(r.Start)) }

// Operations are all that were answered by now, in the order of their answers.
func (r *Record) Operations() []*Operation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.operations)
}

// id is a new operation's.
func (r *Record) id() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
	return r.n
}

func (r *Record) add(o *Operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.operations = append(r.operations, o)
}
