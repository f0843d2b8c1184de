package simulate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// owner is the request or watch whose requests to the bucket meet faults.
type owner struct {
	verb    string
	request *request // nil if the owner is a watch
	faults  atomic.Int64
	// rootFaults counts the faults of reads of the root.
	rootFaults atomic.Int64
	// roots counts the roots that the owner has put.
	roots atomic.Int64
	// made counts, by hash, how often the owner has written the same bytes to the bucket since the root number 'swaps'
	// was put. The world's lock guards both fields.
	made  map[[32]byte]int
	swaps int64
	// alongside is the view from which the owner's write was last computed; decided is the time of that computation, in
	// Unix nanoseconds.
	alongside atomic.Uint64
	decided   atomic.Int64
}

// meets notes that the owner has met a fault of the bucket.
func (o *owner) meets(w *world, fault, op, key string) {
	o.faults.Add(1)
	if op == "get" && kindOf(key) == "root" {
		o.rootFaults.Add(1)
	}
	verb := o.verb
	if o == &nobody {
		verb = "run"
	}
	w.counted.meet(fault, verb)
}

// meetAll notes a fault for all present requests and watches.
func (w *world) meetAll(fault string) {
	for _, r := range w.inFlight {
		w.counted.meet(fault, r.verb)
	}
	for range w.watches {
		w.counted.meet(fault, "watch")
	}
	w.counted.meet(fault, "")
}

// coverage counts how often each fault has met each operation. The operation "" counts how often the fault happened.
type coverage struct {
	mu  sync.Mutex
	met map[string]map[string]int
}

func (c *coverage) meet(fault, verb string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.met == nil {
		c.met = map[string]map[string]int{}
	}
	if c.met[fault] == nil {
		c.met[fault] = map[string]int{}
	}
	c.met[fault][verb]++
}

// operations are the columns of the coverage.
var operations = []string{"create", "update", "delete", "get", "list", "watch", "get past", "list past", "replay", "changes",
	"commit", "compact", "collect", "sweep", "once", "trim", "prune", "retain", "tidy", "expel", "expire", "run", "forget", "restore"}

// faultsOfTheWorld are the rows of the coverage, including the faults that were never met.
var faultsOfTheWorld = []string{"a request fails", "a request fails but persists", "an object is said to be gone",
	"a connection breaks", "a process is killed", "the server stops", "a message comes late", "the log goes back", "the log is lost",
	"the log's clock is ahead", "the log's clock is behind", "a server of the log is behind", "a fence at the least revision", "a webhook is slow",
	"the bucket is away", "the root is not taken", "the root is not read", "the root is damaged",
	"seg is not read", "seg is missing", "seg is damaged", "events is not read", "events is missing", "events is damaged",
	"idx is not read", "idx is missing", "idx is damaged", "ckpt is not read", "ckpt is missing", "ckpt is damaged",
	"pages is not read", "pages is missing", "pages is damaged"}

// String returns a table, with '-' where a fault has never met an operation.
func (c *coverage) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	rows := slices.Clone(faultsOfTheWorld)
	for _, fault := range slices.Sorted(maps.Keys(c.met)) {
		if !slices.Contains(rows, fault) {
			rows = append(rows, fault)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-30s", "")
	for _, verb := range operations {
		fmt.Fprintf(&b, "%10s", verb)
	}
	for _, fault := range rows {
		fmt.Fprintf(&b, "\n%-30s", fault)
		for _, verb := range operations {
			cell := "-"
			if n := c.met[fault][verb]; n > 0 {
				cell = fmt.Sprint(n)
			}
			fmt.Fprintf(&b, "%10s", cell)
		}
	}
	return b.String()
}
