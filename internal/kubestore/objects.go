package kubestore

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/cache"
)

// Objects is a cache of decoded objects by row key and revision. It has a budget of bytes, and no namespace takes what
// others need of it. It is safe for concurrent use. Nobody may write to the objects.
type Objects struct {
	decoded *cache.Cache[version, runtime.Object]
}

// version names one decoded representation of one version of an object.
type version struct {
	store    uint64
	rowKey   string
	revision eventlog.Revision
	// kind to which a custom resource was converted; empty for typed objects.
	kind string
}

// entryOverhead is roughly what an entry costs in addition to its encoded bytes. A decoded object is larger than its
// encoding, and an entry without a body must cost something.
const entryOverhead = 512

// NewObjects returns a cache of at most that many bytes of encoded objects.
func NewObjects(bytes int64) *Objects {
	return &Objects{cache.New[version, runtime.Object](bytes)}
}

// get returns nil if the object is not cached.
func (o *Objects) get(v version) runtime.Object {
	if o == nil {
		return nil
	}
	object, ok := o.decoded.Get(v)
	if !ok {
		cacheMisses.Inc()
		return nil
	}
	cacheHits.Inc()
	return object
}

// add keeps an object, to which nobody may write any more, for an owner.
func (o *Objects) add(v version, owner string, object runtime.Object, encoded int) {
	if o == nil {
		return
	}
	v.rowKey = strings.Clone(v.rowKey) // a segment's key shares the memory of all keys of its block
	o.decoded.Add(v, owner, object, int64(encoded+len(v.rowKey))+entryOverhead)
}

// Shrink lets go of most objects, those first that were not used for longest.
func (o *Objects) Shrink() {
	if o != nil {
		o.decoded.Shrink()
	}
}
