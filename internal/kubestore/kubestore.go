package kubestore

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/kubestore/fanout"
	"github.com/logplane/logplane/projection"
)

// Cell holds everything that the stores of one process share.
type Cell struct {
	Log        *eventlog.Log
	Projection *projection.Projection
	// Cluster is the cluster whose objects are read and written.
	Cluster string
	// Objects caches decoded objects by row key and revision. If it is nil, nothing is cached.
	Objects *Objects
	// Feed delivers the log's events to watches. It is nil in a function, which answers watches with an error.
	Feed *fanout.Feed
	// Writable says why nothing can be appended at the moment. If Writable is nil, the process learns this only by
	// trying.
	Writable func() error
}

// Open opens the cell whose log and bucket the configuration names. The caches share the configuration's budget.
func Open(c projection.Config, cluster string) (Cell, error) {
	p, err := projection.Open(c)
	if err != nil {
		return Cell{}, err
	}
	return Cell{Log: c.Log, Projection: p, Cluster: cluster, Objects: NewObjects(p.Budget())}, nil
}

// ErrUncommitted is in Writable's error while the oldest write that the bucket lacks is too old. Answers to clients
// name this reason.
var ErrUncommitted = errors.New("no commit to the bucket has succeeded for --max-tail-age")

// Shrink frees most of the memory that only saves time. It is for an idle process.
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
	// ContentType is the content type of Codec's encodings.
	ContentType string
	// DecodesLabels says that decoding may give an object labels that are not stored.
	DecodesLabels bool
	// StoredFields has the fields by which lists may select. Each field is mapped to its place in a message of
	// ContentType: the numbers of the protobuf fields that lead to the field's text.
	StoredFields map[string][]int32
	NewFunc      func() runtime.Object
	NewListFunc  func() runtime.Object
	// Indexers are the indexers of upstream's registries, for fields by whose values watches can be found.
	Indexers storage.IndexerFuncs
	// Transformer is as in kube-apiserver's encryption configuration. Nil stores values as they are.
	Transformer value.Transformer
	// Named says that each object is stored under its own name, as registries ensure. So a decrypted value with another
	// name is refused.
	Named bool
	// Claims, if set, returns the claims of an object: IP addresses, node ports, the names of a CRD. A claim exists
	// exactly as long as the object has it, because the claim's writes are in the object's own atomic batch.
	Claims func(ctx context.Context, obj runtime.Object) ([]Claim, error)
	// Complete, if set, sets those fields of an object that the server derives from a view. It runs before each
	// encoding of the object. Before is nil for a create.
	Complete func(ctx context.Context, v *projection.View, before, after runtime.Object) error
	// Alongside, if set, returns the writes that must become true together with a write of an object, such as the
	// charge of a quota. These writes are appended in the object's own atomic batch. An error of Alongside refuses the
	// write.
	Alongside func(ctx context.Context, v *projection.View, c Change) ([]projection.Write, error)
	// Within, if set, refuses a past revision that the context's request may not read.
	Within func(ctx context.Context, at eventlog.Revision) error
}

// Change is a write of an object that is about to be appended. Its objects must not be written to.
type Change struct {
	Key eventlog.Key
	// Before is nil for a create, After for a deletion. Both are nil if the deleted object cannot be decoded.
	Before, After runtime.Object
}

// Resource of the object.
func (c Change) Resource() schema.GroupResource {
	return schema.GroupResource{Group: c.Key.Group, Resource: c.Key.Resource}
}

// store is the storage.Interface of one resource in one cluster. It keeps nothing that matters (invariant 6).
type store struct {
	Cell
	Resource
	// id distinguishes the objects that stores with different codecs decode from the same row.
	id           uint64
	unstructured bool
	// plain says that values are stored as they are encoded.
	plain     bool
	versioner versioner
	turns     turns
	// acknowledged is the newest revision that this store has written.
	acknowledged atomic.Uint64
	// counts has the number of objects from a page's start to the list's end, for pages of lists that are being read.
	counts *lru.Cache[page, int]
	// counted has the last count of each whole list. Counting has the counts that are under way.
	counted  *lru.Cache[projection.Keys, counted]
	counting singleflight.Group
}

// pagedLists is how many paged lists of one resource are remembered.
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
	s := &store{Cell: c, Resource: r, id: lastStoreID.Add(1), plain: plain, versioner: versioner{resource: r.GroupResource}}
	s.counts, _ = lru.New[page, int](pagedLists) // fails only for a size below one
	s.counted, _ = lru.New[projection.Keys, counted](pagedLists)
	if r.NewFunc != nil {
		_, s.unstructured = r.NewFunc().(runtime.Unstructured)
	}
	return s
}

// path checks upstream's key as etcd3 does, and returns the key. A recursive path ends with a slash. An invalid key
// comes from a name that no object can have, such as '..', so the client is told that its request is bad.
func (s *store) path(key string, recursive bool) (string, error) {
	path, err := storage.PrepareKey(s.Prefix+"/", key, recursive)
	if err != nil {
		return "", apierrors.NewBadRequest(err.Error())
	}
	return path, nil
}

// key returns the key of the object at a path. The key's RowKey is always the row key of the path. A path of one
// segment has no namespace, even if the resource is namespaced.
func (s *store) key(path string) eventlog.Key {
	k := eventlog.Key{Cluster: s.Cluster, Group: s.Group, Resource: s.GroupResource.Resource, Prefix: s.Prefix}
	k.Name = strings.TrimPrefix(path, s.Prefix+"/")
	namespace, name, _ := strings.Cut(k.Name, "/")
	if s.Namespaced && namespace != "" && name != "" {
		k.Namespace, k.Name = namespace, name
	}
	return k
}

// foreign says that a row below the prefix belongs to another resource, because this store encodes nothing with that
// content type. A custom resource could once be defined with the name of a built-in resource, and objects of such
// custom resources still exist. Reads leave these objects out. Their names remain taken.
func (s *store) foreign(contentType string) bool { return contentType != s.ContentType }

// rowKey returns the row key of a path.
func (s *store) rowKey(path string) string { return s.Cluster + path }

// keys returns the row key of a path, or the range of row keys below a recursive path.
func (s *store) keys(path string, recursive bool) projection.Keys {
	start := s.rowKey(path)
	if recursive {
		return projection.Keys{Start: start, End: projection.PrefixEnd(start)}
	}
	return projection.OneKey(start)
}

// owner returns the cluster and namespace of a row key. A cache keeps the objects of one owner from evicting the
// objects of other owners.
func (s *store) owner(rowKey string) string {
	cluster, path, _ := strings.Cut(rowKey, "/")
	return cluster + "/" + s.key("/"+path).Namespace
}

// Versioner implements storage.Interface.
func (s *store) Versioner() storage.Versioner { return s.versioner }

// ReadinessCheck implements storage.Interface. A store is always ready.
func (s *store) ReadinessCheck() error { return nil }

// RequestWatchProgress implements storage.Interface. Only upstream's cacher, which is not used, asks for progress.
func (s *store) RequestWatchProgress(context.Context) error { return nil }

// EnableResourceSizeEstimation implements storage.Interface. Sizes are not estimated.
func (s *store) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }
