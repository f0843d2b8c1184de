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

// Objects is a cache of decoded objects by row key and revision, and of pieces of lists. Their bytes count in the
// process's budget, in which no namespace can take the part that others need. It is safe for concurrent use. Nobody may
// write to the objects.
type Objects struct {
	budget  *cache.Budget
	decoded *cache.Cache[version, any]
}

// version names one decoded representation of one version of an object. Or it names a piece of a list, by its first row
// and a hash of its revisions.
type version struct {
	store    uint64
	rowKey   string
	revision eventlog.Revision
	// kind to which a custom resource was converted, empty for typed objects. For a piece it is the form.
	kind string
}

// NewObjects returns a cache whose bytes count in the budget.
func NewObjects(of *cache.Budget) *Objects {
	return &Objects{of, cache.New[version, any](of)}
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

// piece returns the cached piece of these rows, or nil.
func (o *Objects) piece(v version, revisions []projection.Revision) Piece {
	found, _ := o.decoded.Get(v)
	k, ok := found.(kept)
	ok = ok && slices.Equal(k.revisions, revisions)
	countLook(ok, pieceHits, pieceMisses)
	if !ok {
		return nil
	}
	if dense := o.denser(k.Piece); dense != nil {
		k := kept{dense, k.revisions}
		o.decoded.Replace(v, k, k.bytes()+int64(len(v.rowKey)))
	}
	return k.Piece
}

func countLook(found bool, hits, misses prometheus.Counter) {
	if found {
		hits.Inc()
	} else {
		misses.Inc()
	}
}

// add caches an object for an owner. Nobody may write to it any more.
func (o *Objects) add(v version, owner string, object runtime.Object) {
	if o != nil {
		o.keep(v, owner, object, Size(object))
	}
}

// addPiece caches a piece for the owner of its first item.
func (o *Objects) addPiece(v version, owner string, k kept) {
	if dense := o.denser(k.Piece); dense != nil {
		k.Piece = dense
	}
	o.keep(v, owner, k, k.bytes())
}

// denser returns a piece to cache in place of this one, or nil to cache this one. A denser piece takes time to make and
// to read, so denser makes one only when the caches have little room.
func (o *Objects) denser(p Piece) Piece {
	if !o.budget.Tight() {
		return nil
	}
	return p.Denser()
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
