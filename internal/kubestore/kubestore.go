package kubestore

import (
	"bytes"
	"context"
	"strings"
	"sync/atomic"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/kubestore/fanout"
	"github.com/logplane/logplane/projection"
)

// Cell is what every store of one process shares.
type Cell struct {
	Log        *eventlog.Log
	Projection *projection.Projection
	// Cluster whose objects are read and written.
	Cluster string
	// Objects caches decoded objects by key and revision; nil for none.
	Objects *Objects
	// Feed brings the log to watches; nil in a function, where a watch answers an error.
	Feed *Feed
	// Writable says why nothing can be appended at the moment; nil where nobody knows before it is tried.
	Writable func() error
}

// Feed and Shared are what users of a Cell need to know of the fan-out of watches.
type (
	Feed   = fanout.Feed
	Shared = fanout.Shared
)

// NewFeed returns the Feed of a process. It delivers nothing until its Run.
func NewFeed(log *eventlog.Log, p *projection.Projection) *Feed { return fanout.NewFeed(log, p) }

// Shrink lets go of most of what is kept to save time: the process has nothing to do.
func (c Cell) Shrink() {
	c.Projection.Shrink()
	c.Objects.Shrink()
	if c.Feed != nil {
		c.Feed.Shrink()
	}
}

// Resource describes the objects of one store.
type Resource struct {
	schema.GroupResource
	// Prefix is upstream's storage prefix with a leading slash, for example '/services/specs'.
	Prefix     string
	Namespaced bool
	Codec      runtime.Codec
	// ContentType of what Codec encodes.
	ContentType string
	NewFunc     func() runtime.Object
	NewListFunc func() runtime.Object
	// Indexers are of fields by whose value watches are found, as upstream's registries name them; nil for none.
	Indexers storage.IndexerFuncs
	// Transformer as in kube-apiserver's encryption configuration; nil for identity.
	Transformer value.Transformer
	// Claims, if set, names the claim objects that must exist exactly as long as the object says so
	// (IP addresses, node ports, a CRD's names): they are appended in the object's own atomic batch.
	Claims func(ctx context.Context, obj runtime.Object) ([]Claim, error)
}

// Claim is an object that only one owner can hold: it is appended with precondition 0 in its owner's
// batch and deleted with it.
type Claim struct {
	Key eventlog.Key
	// ContentType and Body of the claim object as stored.
	ContentType string
	Body        []byte
	// Held says whether a live row of Key is still this owner's claim, to be deleted with it; nil means
	// that its value must be Body.
	Held func(ctx context.Context, row projection.Row) bool
}

// held says whether the live row is still the claim.
func (c Claim) held(ctx context.Context, row projection.Row) bool {
	if c.Held != nil {
		return c.Held(ctx, row)
	}
	return bytes.Equal(row.Value, c.Body)
}

// ClaimedError says that another owner holds a claim. Nothing was written, and Projection.Current
// shows the claim.
type ClaimedError struct{ Key eventlog.Key }

func (e *ClaimedError) Error() string { return e.Key.Path() + " is already claimed" }

// Status is for a request that does not try again: another try may see the claim, and avoid it.
func (e *ClaimedError) Status() metav1.Status {
	return apierrors.NewConflict(schema.GroupResource{Group: e.Key.Group, Resource: e.Key.Resource}, e.Key.Name, e).Status()
}

// store is the storage.Interface of one resource in one cluster. It holds no state of objects.
type store struct {
	Cell
	Resource
	// id keeps apart what stores of different codecs decoded from the same row.
	id           uint64
	unstructured bool
	// plain values are stored as they are encoded.
	plain     bool
	versioner versioner
	// acknowledged is the newest revision that this store has written.
	acknowledged atomic.Uint64
	// counts of what follows the pages of lists that are being read.
	counts *lru.Cache[page, int]
	// counted is what was counted last, of whole lists, and counting what is being counted.
	counted  *lru.Cache[projection.Keys, counted]
	counting singleflight.Group
}

// pagedLists is how many paged lists of one resource are remembered at once.
const pagedLists = 64

var _ storage.Interface = (*store)(nil)

var lastStoreID atomic.Uint64

// New returns the store of one resource.
func New(c Cell, r Resource) storage.Interface { return newStore(c, r) }

func newStore(c Cell, r Resource) *store {
	plain := r.Transformer == nil
	if plain {
		r.Transformer = identity.NewEncryptCheckTransformer()
	}
	r.Prefix = strings.TrimSuffix(r.Prefix, "/")
	counts, _ := lru.New[page, int](pagedLists) // fails only for a size below one
	last, _ := lru.New[projection.Keys, counted](pagedLists)
	s := &store{Cell: c, Resource: r, id: lastStoreID.Add(1), plain: plain, versioner: versioner{resource: r.GroupResource}, counts: counts, counted: last}
	if r.NewFunc != nil {
		_, s.unstructured = r.NewFunc().(runtime.Unstructured)
	}
	return s
}

// path checks upstream's key as etcd3 does and returns it; a recursive one ends with a slash. No object can have a
// name that makes a key invalid, '..' for one, so whoever asks for it is told so.
func (s *store) path(key string, recursive bool) (string, error) {
	path, err := storage.PrepareKey(s.Prefix+"/", key, recursive)
	if err != nil {
		return "", apierrors.NewBadRequest(err.Error())
	}
	return path, nil
}

// key of the object at a path: its Row is the path's row key, whatever the path. A namespaced resource's
// path of one segment has no namespace.
func (s *store) key(path string) eventlog.Key {
	k := eventlog.Key{Cluster: s.Cluster, Group: s.Group, Resource: s.GroupResource.Resource, Prefix: s.Prefix}
	k.Name = strings.TrimPrefix(path, s.Prefix+"/")
	if namespace, name, _ := strings.Cut(k.Name, "/"); s.Namespaced && namespace != "" && name != "" {
		k.Namespace, k.Name = namespace, name
	}
	return k
}

// foreign reports that a row below the prefix is another resource's: it is encoded as this store encodes nothing. A
// CustomResourceDefinition of a built-in resource could once be made, and its objects are still there. They are as if they were not, but for
// their names.
func (s *store) foreign(contentType string) bool { return contentType != s.ContentType }

// rowKey is the row key of a path.
func (s *store) rowKey(path string) string { return s.Cluster + path }

// keys are the row keys of a path: one, or if recursive all below the path, which then ends with a slash.
func (s *store) keys(path string, recursive bool) projection.Keys {
	start := s.rowKey(path)
	if recursive {
		return projection.Keys{Start: start, End: PrefixEnd(start)}
	}
	return projection.Keys{Start: start, End: start + "\x00"}
}

// PrefixEnd is the first key after all keys that begin with the prefix, which ends with a slash.
func PrefixEnd(prefix string) string { return prefix[:len(prefix)-1] + "0" }

// owner is the cluster and namespace of a row key. No owner's objects take the room in a cache that others need.
func (s *store) owner(rowKey string) string {
	key := s.key(strings.TrimPrefix(rowKey, s.Cluster))
	return key.Cluster + "/" + key.Namespace
}

// Versioner implements storage.Interface.
func (s *store) Versioner() storage.Versioner { return s.versioner }

// ReadinessCheck implements storage.Interface: a store holds nothing that would have to get ready.
func (s *store) ReadinessCheck() error { return nil }

// EnableResourceSizeEstimation implements storage.Interface; sizes are not estimated.
func (s *store) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }
