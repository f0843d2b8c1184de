package listers

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage/value"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/cache"
)

// listerTimeout bounds a read whose interface takes no context.
const listerTimeout = 10 * time.Second

// Indexer is a toolscache.Indexer whose content is the newest view. It takes no writes. It is safe for concurrent use,
// and the objects that it returns are shared.
type Indexer struct {
	toolscache.Indexer // nil; calling a method that is not overridden is a programming error

	shared      *shared
	target      reflect.Type
	decoder     runtime.Decoder
	transformer value.Transformer // undoes encryption; nil if values are not encrypted
	prefix      string            // of the rows, ending in a slash
	lenient     bool

	mu       sync.RWMutex
	indexers toolscache.Indexers // by mu
}

var _ toolscache.Indexer = (*Indexer)(nil)

// shared has the caches that the indexers of one factory share. It is safe for concurrent use.
type shared struct {
	Config
	// decoded holds objects by revision, which is unique in a cell. By contract, callers of listers share the objects
	// and do not change them.
	decoded *cache.Cache[decodedKey, runtime.Object]
	// complaints has the revisions of objects that could not be decoded, so that each object is logged once.
	complaints *lru.Cache[uint64, struct{}]
}

type decodedKey struct {
	target   reflect.Type
	revision uint64
}

// keptComplaints is how many revisions 'complaints' holds.
const keptComplaints = 1024

func newShared(c Config) *shared {
	complaints, _ := lru.New[uint64, struct{}](keptComplaints) // fails only for a size below one
	return &shared{Config: c, decoded: cache.New[decodedKey, runtime.Object](c.Projection.Budget()), complaints: complaints}
}

// Prefix of the rows that are read. It ends in a slash.
func (i *Indexer) Prefix() string { return i.prefix }

// View returns the newest view. In a transaction it returns the transaction's view, which includes the transaction's
// own writes so far.
func (i *Indexer) View(ctx context.Context) (*projection.View, error) {
	if kubestore.InTransaction(ctx) {
		return kubestore.ViewFrom(ctx), nil
	}
	v := i.shared.Projection.Current()
	if v == nil {
		return nil, errNoView
	}
	return v, nil
}

// GetByKey is Read with the signature that upstream's listers need.
func (i *Indexer) GetByKey(key string) (any, bool, error) {
	object, found, err := i.Read(key)
	return object, found, surely(err)
}

// Read returns the object of a key 'namespace/name' or 'name'. This key is the part of the row's key after the prefix.
func (i *Indexer) Read(key string) (any, bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), listerTimeout)
	defer cancel()
	v, err := i.View(ctx)
	if err != nil {
		return nil, false, err
	}
	return i.GetAt(ctx, v, key)
}

// GetAt is Read as of a given view, for a writer.
func (i *Indexer) GetAt(ctx context.Context, v *projection.View, key string) (runtime.Object, bool, error) {
	row, ok, err := v.Get(ctx, i.prefix+key, v.Revision())
	if err != nil || !ok {
		return nil, false, err
	}
	object, err := i.decode(ctx, row)
	return object, err == nil, err
}

// ListAt returns the objects of a namespace as of a view, in the order of their names, for a writer.
func (i *Indexer) ListAt(ctx context.Context, v *projection.View, namespace string) ([]any, error) {
	return i.scanAt(ctx, v, i.prefix+namespace+"/")
}

// All returns all objects in the order of their keys. Unlike List, it returns an error.
func (i *Indexer) All() ([]any, error) { return i.scan(i.prefix) }

// AllAt returns every object as of a view.
func (i *Indexer) AllAt(ctx context.Context, v *projection.View) ([]any, error) {
	return i.scanAt(ctx, v, i.prefix)
}

// scan returns the objects whose key has the prefix. The prefix must end in a slash.
func (i *Indexer) scan(prefix string) ([]any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), listerTimeout)
	defer cancel()
	v, err := i.View(ctx)
	if err != nil {
		return nil, err
	}
	return i.scanAt(ctx, v, prefix)
}

func (i *Indexer) scanAt(ctx context.Context, v *projection.View, prefix string) ([]any, error) {
	var objects []any
	for row, err := range Rows(ctx, v, prefix) {
		if err != nil {
			return nil, err
		}
		object, err := i.decode(ctx, row)
		if i.lenient && IsUndecodable(err) {
			i.LeaveOut(ctx, row, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// Rows returns the rows of a view whose key has the prefix, in the order of their keys. The prefix must end in a slash.
func Rows(ctx context.Context, v *projection.View, prefix string) iter.Seq2[projection.Row, error] {
	return v.Scan(ctx, prefix, After(prefix), v.Revision())
}

// After returns the key that follows all keys with the prefix. The prefix must end in a slash.
func After(prefix string) string { return prefix[:len(prefix)-1] + "0" } // '0' comes after '/'

// LeaveOut counts a row that is left out of a list, and logs the row once.
func (i *Indexer) LeaveOut(ctx context.Context, row projection.Row, err error) {
	leftOut.Inc()
	known, _ := i.shared.complaints.ContainsOrAdd(uint64(row.Revision), struct{}{})
	if !known {
		i.shared.Logger.ErrorContext(ctx, "an object is left out, because it cannot be decoded",
			"key", row.Key, "revision", uint64(row.Revision), "error", err)
	}
}

// decode returns the row's object, which is shared.
func (i *Indexer) decode(ctx context.Context, row projection.Row) (runtime.Object, error) {
	key := decodedKey{i.target, uint64(row.Revision)}
	known, ok := i.shared.decoded.Get(key)
	if ok {
		return known, nil
	}
	object, err := i.Parse(ctx, row)
	if err != nil {
		return nil, err
	}
	namespace, _, _ := strings.Cut(strings.TrimPrefix(row.Key, i.prefix), "/")
	i.shared.decoded.Add(key, namespace, object, kubestore.Size(object))
	return object, nil
}

// Parse decodes the row's object for a caller who keeps it. The object is not shared.
func (i *Indexer) Parse(ctx context.Context, row projection.Row) (runtime.Object, error) {
	plain, err := kubestore.Plain(ctx, i.transformer, row)
	if err != nil {
		return nil, fmt.Errorf("decrypt %s: %w", row.Key, err)
	}
	object, err := runtime.Decode(i.decoder, plain)
	if err != nil {
		return nil, &undecodableError{fmt.Errorf("decode %s: %w", row.Key, err)}
	}
	accessor, err := meta.Accessor(object)
	if err != nil || reflect.TypeOf(object) != i.target {
		return nil, &undecodableError{fmt.Errorf("decode %s: it is a %T, not a %s", row.Key, object, i.target)}
	}
	accessor.SetResourceVersion(fmt.Sprint(uint64(row.Revision)))
	return object, nil
}

// surely panics if the bucket could not be read, since upstream would take such an error for a refusal of the request.
func surely(err error) error {
	if _, ok := errors.AsType[*projection.ReadError](err); ok {
		panic(Unreadable{err})
	}
	return err
}

func (i *Indexer) must(objects []any, err error) []any {
	if err != nil {
		panic(Unreadable{fmt.Errorf("list %s: %w", i.prefix, err)})
	}
	return objects
}

func (i *Indexer) List() []any { return i.must(i.scan(i.prefix)) }

func (i *Indexer) Get(obj any) (any, bool, error) {
	key, err := toolscache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return nil, false, err
	}
	return i.GetByKey(key)
}

// Index scans one namespace if the index is by namespace, and all objects for any other index.
func (i *Indexer) Index(name string, obj any) ([]any, error) {
	f, ok := i.indexFunc(name)
	if !ok {
		return nil, fmt.Errorf("index %q does not exist", name)
	}
	values, err := f(obj)
	if err != nil {
		return nil, err
	}
	var found []any
	for _, value := range values {
		objects, err := i.ByIndex(name, value)
		if err != nil {
			return nil, err
		}
		found = append(found, objects...)
	}
	return found, nil
}

func (i *Indexer) ByIndex(name, value string) ([]any, error) {
	if name == toolscache.NamespaceIndex && value != "" {
		objects, err := i.scan(i.prefix + value + "/")
		return objects, surely(err)
	}
	f, ok := i.indexFunc(name)
	if !ok {
		return nil, fmt.Errorf("index %q does not exist", name)
	}
	all, err := i.scan(i.prefix)
	if surely(err) != nil {
		return nil, err
	}
	var found []any
	for _, object := range all {
		values, err := f(object)
		if err != nil {
			return nil, err
		}
		for _, v := range values {
			if v == value {
				found = append(found, object)
				break
			}
		}
	}
	return found, nil
}

func (i *Indexer) indexFunc(name string) (toolscache.IndexFunc, bool) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	f, ok := i.indexers[name]
	return f, ok
}

func (i *Indexer) GetIndexers() toolscache.Indexers {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return maps.Clone(i.indexers)
}

func (i *Indexer) AddIndexers(more toolscache.Indexers) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	maps.Copy(i.indexers, more)
	return nil
}
