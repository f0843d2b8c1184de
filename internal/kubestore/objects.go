package kubestore

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/cache"
)

// Objects is a cache of decoded objects by row key and revision, and of chunks of lists. The bytes of these objects and
// chunks count in the process's budget. No namespace can take the part of the budget that other namespaces need.
// Objects is safe for concurrent use. Nobody may write to the cached objects.
type Objects struct {
	decoded *cache.Cache[version, any]
}

// version names one decoded representation of one version of an object. Or it names a chunk of a list, by its first row
// and a hash of its revisions.
type version struct {
	store    uint64
	rowKey   string
	revision eventlog.Revision
	// kind is the kind to which a custom resource was converted, empty for typed objects. For a chunk it is the
	// encoding.
	kind string
}

// NewObjects returns a cache whose bytes count in the budget.
func NewObjects(of *cache.Budget) *Objects {
	return &Objects{cache.New[version, any](of)}
}

// get returns the cached object, or nil.
func (o *Objects) get(v version) runtime.Object {
	if o == nil {
		return nil
	}
	found, _ := o.decoded.Get(v)
	object, ok := found.(runtime.Object)
	countLook(ok, cacheHits, cacheMisses)
	return object
}

// chunk returns the cached chunk of these rows, or nil.
func (o *Objects) chunk(v version, revisions []projection.Revision) Chunk {
	found, _ := o.decoded.Get(v)
	k, ok := found.(kept)
	ok = ok && slices.Equal(k.revisions, revisions)
	countLook(ok, chunkHits, chunkMisses)
	if !ok {
		return nil
	}
	return k.Chunk
}

func countLook(found bool, hits, misses prometheus.Counter) {
	if found {
		hits.Inc()
	} else {
		misses.Inc()
	}
}

// add caches an object for an owner. Nobody may write to the object any more.
func (o *Objects) add(v version, owner string, object runtime.Object) {
	if o != nil {
		o.keep(v, owner, object, Size(object))
	}
}

// addChunk caches a chunk for the owner of its first item.
func (o *Objects) addChunk(v version, owner string, k kept) {
	o.keep(v, owner, k, k.bytes())
}

func (o *Objects) keep(v version, owner string, value any, bytes int64) {
	v.rowKey = strings.Clone(v.rowKey) // a segment's key shares the memory of all keys of its block
	o.decoded.Add(v, owner, value, bytes+int64(len(v.rowKey)))
}

// Shrink drops most objects, the least recently used first.
func (o *Objects) Shrink() {
	if o != nil {
		o.decoded.Shrink()
	}
}
