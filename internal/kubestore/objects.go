package kubestore

import (
	"container/list"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/logplane/logplane/eventlog"
)

// Objects is a cache of decoded objects by row key and revision with a budget of bytes. It is safe for
// concurrent use and hands out deep copies to whatever may write to them.
type Objects struct {
	budget int64

	mu      sync.Mutex // guards what follows
	bytes   int64
	recent  *list.List // of *cached, most recently used first
	entries map[version]*list.Element
}

// version names one decoded representation of one version of an object.
type version struct {
	store    uint64
	row      string
	revision eventlog.Revision
	// kind into which a custom resource was converted; empty for typed objects.
	kind string
}

// cached is an entry. Its object is shared: it is read and copied, never written to.
type cached struct {
	version
	object runtime.Object
	bytes  int64
}

// entryOverhead is what an entry costs beside its encoded bytes, roughly: a decoded object is larger
// than its encoding, and an entry without a body must not be free.
const entryOverhead = 512

// NewObjects returns a cache of at most that many bytes of encoded objects.
func NewObjects(bytes int64) *Objects {
	return &Objects{budget: bytes, recent: list.New(), entries: map[version]*list.Element{}}
}

// get returns the shared object, nil if it is not cached. The caller must not write to it.
func (o *Objects) get(v version) runtime.Object {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	e, ok := o.entries[v]
	if !ok {
		cacheMisses.Inc()
		return nil
	}
	cacheHits.Inc()
	o.recent.MoveToFront(e)
	return e.Value.(*cached).object
}

// add keeps an object that nobody writes to any more.
func (o *Objects) add(v version, object runtime.Object, encoded int) {
	if o == nil {
		return
	}
	size := int64(encoded+len(v.row)) + entryOverhead
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.entries[v]; ok || size > o.budget {
		return
	}
	v.row = strings.Clone(v.row) // a segment's key shares the memory of all keys of its block
	o.entries[v] = o.recent.PushFront(&cached{version: v, object: object, bytes: size})
	for o.bytes += size; o.bytes > o.budget; {
		oldest := o.recent.Remove(o.recent.Back()).(*cached)
		delete(o.entries, oldest.version)
		o.bytes -= oldest.bytes
	}
}
