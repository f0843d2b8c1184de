package history

import (
	"slices"
	"sync"
	"time"
)

// Kind is the kind of a client's request.
type Kind string

const (
	Create Kind = "create"
	Update Kind = "update" // with a base, the update is written only if the key is still at that revision
	Patch  Kind = "patch"
	Remove Kind = "delete"
	Get    Kind = "get"
	List   Kind = "list"  // a list of the most recent state
	Exact  Kind = "exact" // a list of one revision in the past
	end    Kind = "end"   // the end of a key's history; no client asks for it
)

// Outcome is the client's knowledge about the effect of its operation.
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
	// Base is the revision with which a write compares, or for which a list of the past asks; 0 for none.
	Base uint64 `json:",omitempty"`
	// Value is the value to write. Every write has a different value.
	Value   string `json:",omitempty"`
	Call    int64
	Return  int64
	Outcome Outcome
	// Revision is the answer's revision. Read is the value in the answer: for a delete, the last value.
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
