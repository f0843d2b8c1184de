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
	Update Kind = "update" // with a base, it is written only if the key is still at that revision
	Patch  Kind = "patch"
	Remove Kind = "delete"
	Get    Kind = "get"
	List   Kind = "list"  // a list of the most recent state
	Exact  Kind = "exact" // a list of one revision in the past
	end    Kind = "end"   // the end of a key's history; no client asks for it
)

// Outcome is what the client knows about its operation.
type Outcome string

const (
	Done     Outcome = "ok"
	Exists   Outcome = "exists"   // 409 AlreadyExists
	Conflict Outcome = "conflict" // 409 Conflict
	Missing  Outcome = "missing"  // 404
	Unknown  Outcome = "unknown"  // 5xx, or no answer: the write may take effect at any later time, or never
	Refused  Outcome = "refused"  // certainly no effect: no process took the request, or 503 'nothing was written'
)

// Operation is one request of one client, and its answer. Times are in nanoseconds since the history began.
type Operation struct {
	ID      int
	Client  int
	Process string
	Kind    Kind
	Key     string // namespace and name; for a list, the namespace
	// Base is the revision that a write compares with, or that a list of the past asks for; 0 for none.
	Base uint64 `json:",omitempty"`
	// Value is what the write wants to write. Every write has a different value.
	Value   string `json:",omitempty"`
	Call    int64
	Return  int64
	Outcome Outcome
	// Revision is the answer's revision, and Read the value in the answer: for a delete, the last one.
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
	operations []*Operation // guarded by mu: in the order of their answers
	n          int          // guarded by mu
}

// Now returns the nanoseconds since the history began.
func (r *Record) Now() int64 { return int64(time.Since(r.Start)) }

// Operations returns all operations that were answered so far, in the order of their answers.
func (r *Record) Operations() []*Operation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.operations)
}

// id returns the number of a new operation.
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
