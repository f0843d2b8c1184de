package apiserver

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// listerTimeout bounds a read whose interface takes no context.
const listerTimeout = 10 * time.Second

// errNoView: a lister was asked before the process had caught up once; every request does first.
var errNoView = errors.New("no view of the log has been read yet")

// unreadable is what a lister panics with where upstream's interface has no place for an error; the
// filters recover it into a Status.
type unreadable struct{ error }

// indexer is a cache.Indexer whose content is the newest view. It takes no writes.
type indexer struct {
	informers *informers
	target    reflect.Type
	decoder   runtime.Decoder
	// transformer undoes encryption; nil for none.
	transformer value.Transformer
	// prefix of the rows, ending in a slash.
	prefix string
	// lenient: an object that cannot be decoded is left out of lists. That is right only where what is not there allows
	// less: a binding grants nothing, a definition serves nothing; but a limit that is left out limits nothing.
	lenient bool

	mu       sync.RWMutex
	indexers cache.Indexers // by mu
}

var _ cache.Indexer = (*indexer)(nil)

func newIndexer(f *informers, target reflect.Type, resource schema.GroupVersionResource) *indexer {
	return &indexer{
		informers:   f,
		target:      target,
		decoder:     legacyscheme.Codecs.UniversalDecoder(resource.GroupVersion()),
		transformer: f.stores.transformer(resource.GroupResource()),
		prefix:      f.stores.cell.Cluster + "/" + f.stores.factory.ResourcePrefix(resource.GroupResource()) + "/",
		lenient:     resource.Group == rbacv1.GroupName,
		indexers:    cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
	}
}

func (i *indexer) view() (*projection.View, error) {
	if v := i.informers.stores.cell.Projection.Current(); v != nil {
		return v, nil
	}
	return nil, errNoView
}

// GetByKey takes 'namespace/name' or 'name', which is the rest of the row's key.
func (i *indexer) GetByKey(key string) (any, bool, error) {
	v, err := i.view()
	if err != nil {
		return nil, false, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), listerTimeout)
	defer cancel()
	row, ok, err := v.Get(ctx, i.prefix+key, v.Revision())
	if err != nil || !ok {
		return nil, false, err
	}
	object, err := i.decode(ctx, row)
	return object, err == nil, err
}

// scan returns the objects whose key has the prefix.
func (i *indexer) scan(prefix string) ([]any, error) {
	v, err := i.view()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), listerTimeout)
	defer cancel()
	var objects []any
	for row, err := range v.Scan(ctx, prefix, projection.PrefixEnd(prefix), v.Revision()) {
		if err != nil {
			return nil, err
		}
		object, err := i.decode(ctx, row)
		if undecodable := (*undecodable)(nil); i.lenient && errors.As(err, &undecodable) {
			i.leaveOut(ctx, row, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// undecodable is of a row whose value is not what it should be. That it cannot be decrypted is another: the key
// service may answer the next time.
type undecodable struct{ error }

func (e *undecodable) Unwrap() error { return e.error }

// leaveOut counts a row that a list is without, and logs it once.
func (i *indexer) leaveOut(ctx context.Context, row projection.Row, err error) {
	rowsLeftOut.Inc()
	if known, _ := i.informers.complaints.ContainsOrAdd(uint64(row.Revision), struct{}{}); !known {
		i.informers.stores.logger.ErrorContext(ctx, "an object is left out, because it cannot be decoded", "key", row.Key, "revision", uint64(row.Revision), "error", err)
	}
}

// decode returns the row's object, which is shared.
func (i *indexer) decode(ctx context.Context, row projection.Row) (runtime.Object, error) {
	key := decodedKey{i.target, uint64(row.Revision)}
	if object, ok := i.informers.decoded.Get(key); ok {
		return object, nil
	}
	object, err := i.parse(ctx, row)
	if err != nil {
		return nil, err
	}
	namespace, _, _ := strings.Cut(strings.TrimPrefix(row.Key, i.prefix), "/")
	i.informers.decoded.Add(key, namespace, object, int64(len(row.Value))+decodedOverhead)
	return object, nil
}

// parse decodes the row's object for a caller who keeps it himself.
func (i *indexer) parse(ctx context.Context, row projection.Row) (runtime.Object, error) {
	plain, err := kubestore.Plain(ctx, i.transformer, row)
	if err != nil {
		return nil, fmt.Errorf("decrypt %s: %w", row.Key, err)
	}
	object, err := runtime.Decode(i.decoder, plain)
	if err != nil {
		return nil, &undecodable{fmt.Errorf("decode %s: %w", row.Key, err)}
	}
	accessor, err := meta.Accessor(object)
	if err != nil || reflect.TypeOf(object) != i.target {
		return nil, &undecodable{fmt.Errorf("decode %s: it is a %T, not a %s", row.Key, object, i.target)}
	}
	accessor.SetResourceVersion(fmt.Sprint(uint64(row.Revision)))
	return object, nil
}

func (i *indexer) must(objects []any, err error) []any {
	if err != nil {
		panic(unreadable{fmt.Errorf("list %s: %w", i.prefix, err)})
	}
	return objects
}

func (i *indexer) List() []any { return i.must(i.scan(i.prefix)) }

func (i *indexer) ListKeys() []string { return keysOf(i.List()) }

func (i *indexer) Get(obj any) (any, bool, error) {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return nil, false, err
	}
	return i.GetByKey(key)
}

// Index finds by namespace with one scan of it, by anything else with a scan of all.
func (i *indexer) Index(name string, obj any) ([]any, error) {
	f, ok := i.GetIndexers()[name]
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

func (i *indexer) ByIndex(name, value string) ([]any, error) {
	if name == cache.NamespaceIndex && value != "" {
		return i.scan(i.prefix + value + "/")
	}
	f, ok := i.GetIndexers()[name]
	if !ok {
		return nil, fmt.Errorf("index %q does not exist", name)
	}
	all, err := i.scan(i.prefix)
	if err != nil {
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

func (i *indexer) IndexKeys(name, value string) ([]string, error) {
	objects, err := i.ByIndex(name, value)
	return keysOf(objects), err
}

func (i *indexer) ListIndexFuncValues(name string) []string {
	f := i.GetIndexers()[name]
	seen := map[string]bool{}
	var all []string
	for _, object := range i.List() {
		values, _ := f(object)
		for _, v := range values {
			if !seen[v] {
				seen[v], all = true, append(all, v)
			}
		}
	}
	return all
}

func (i *indexer) GetIndexers() cache.Indexers {
	i.mu.RLock()
	defer i.mu.RUnlock()
	copied := make(cache.Indexers, len(i.indexers))
	for name, f := range i.indexers {
		copied[name] = f
	}
	return copied
}

func (i *indexer) AddIndexers(more cache.Indexers) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	for name, f := range more {
		i.indexers[name] = f
	}
	return nil
}

func keysOf(objects []any) []string {
	keys := make([]string, 0, len(objects))
	for _, object := range objects {
		key, _ := cache.MetaNamespaceKeyFunc(object)
		keys = append(keys, key)
	}
	return keys
}

// errReadOnly answers whoever would keep the indexer up to date: nobody has to.
var errReadOnly = errors.New("a lister over the view takes no writes")

func (i *indexer) Add(any) error                        { return errReadOnly }
func (i *indexer) Update(any) error                     { return errReadOnly }
func (i *indexer) Delete(any) error                     { return errReadOnly }
func (i *indexer) Replace([]any, string) error          { return errReadOnly }
func (i *indexer) Resync() error                        { return nil }
func (i *indexer) Bookmark(string)                      {}
func (i *indexer) LastStoreSyncResourceVersion() string { return "" }
