package kubestore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
)

// Get implements storage.Interface.
func (s *store) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	path, err := s.path(key, false)
	if err != nil {
		return err
	}
	v, err := s.viewFor(ctx, opts.ResourceVersion)
	if err != nil {
		return err
	}
	row, found, err := v.Get(ctx, s.rowKey(path), v.Revision())
	if errors.Is(err, projection.ErrExpired) { // the floor has passed the view: a newer one answers as well
		if v, err = s.latest(ctx); err != nil {
			return err
		}
		row, found, err = v.Get(ctx, s.rowKey(path), v.Revision())
	}
	switch {
	case err != nil:
		return readAnswer(err)
	case (!found || s.foreign(row.ContentType)) && opts.IgnoreNotFound:
		return runtime.SetZeroValue(out)
	case !found || s.foreign(row.ContentType):
		return storage.NewKeyNotFoundError(path, 0)
	}
	return s.asCorrupt(path, s.readTo(ctx, storedRow(row), out))
}

// readTo transforms and decodes a stored version into out.
func (s *store) readTo(ctx context.Context, v stored, out runtime.Object) error {
	data, _, err := s.unseal(ctx, v)
	if err != nil {
		return err
	}
	return s.decodeTo(v, data, out)
}

// asCorrupt turns the error of a corrupt object into the one by which upstream's unsafe deletion
// recognises it, while that gate is on.
func (s *store) asCorrupt(path string, err error) error {
	var corrupt *corruptError
	if err != nil && unsafeDeletion() && errors.As(err, &corrupt) {
		return storage.NewCorruptObjError(path, corrupt)
	}
	return err
}

func storedRow(row projection.Row) stored {
	return stored{rowKey: row.Key, revision: row.Revision, value: row.Value}
}

// viewFor returns a view as upstream's resourceVersion without a match asks for it: unset is the most
// recent one, '0' any, another one not older than that.
func (s *store) viewFor(ctx context.Context, resourceVersion string) (*projection.View, error) {
	switch resourceVersion {
	case "":
		return s.Consistent(ctx)
	case "0":
		return s.any(ctx)
	}
	rev, err := s.versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		return nil, invalidRevision(err)
	}
	return s.atLeast(ctx, eventlog.Revision(rev))
}

// any returns the view that this process has while it is young, but none older than what this very store
// has acknowledged, nor one from before the cell's first event: a list needs a revision.
func (s *store) any(ctx context.Context) (*projection.View, error) {
	v, err := s.Projection.Any(ctx)
	if err != nil {
		return nil, viewError(ctx, err)
	}
	acknowledged := eventlog.Revision(s.acknowledged.Load())
	switch {
	case v.Revision() < acknowledged:
		return s.atLeast(ctx, acknowledged)
	case v.Revision() == 0:
		return s.latest(ctx)
	}
	return v, nil
}

// acknowledge remembers that a revision was written.
func (s *store) acknowledge(rev eventlog.Revision) {
	for {
		old := s.acknowledged.Load()
		if uint64(rev) <= old || s.acknowledged.CompareAndSwap(old, uint64(rev)) {
			return
		}
	}
}

// span is what a list reads: rows of one view as of one revision.
type span struct {
	view   *projection.View
	at     eventlog.Revision
	keys   projection.Keys
	prefix string // of the whole list, of which this may be a page
}

// GetList implements storage.Interface. Everything in the list is true at the list's resourceVersion.
func (s *store) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	path, err := s.path(key, opts.Recursive)
	if err != nil {
		return err
	}
	items, err := itemsOf(listObj)
	if err != nil {
		return err
	}
	sp, err := s.span(ctx, path, opts)
	if err != nil {
		return err
	}
	l := &listing{store: s, span: sp, opts: opts, items: items, newItem: itemFunc(listObj, items)}
	if err := l.fill(ctx); err != nil {
		return err
	}
	if err := l.corruptions(); err != nil {
		return err
	}
	next, remaining, err := l.next(ctx)
	if err != nil {
		return err
	}
	if err := s.versioner.UpdateList(listObj, uint64(sp.at), next, remaining); err != nil {
		return err
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.ShardedListAndWatch) {
		opts.Predicate.SetShardInfoOnList(listObj)
	}
	return nil
}

// span decides what a list reads, by its resourceVersion, match, limit and continue token.
func (s *store) span(ctx context.Context, path string, opts storage.ListOptions) (span, error) {
	sp := span{keys: s.keys(path, opts.Recursive), prefix: s.rowKey(path)}
	exact, start, err := storage.ValidateListOptions(sp.prefix, s.versioner, opts)
	if err != nil {
		return sp, err
	}
	if start != "" {
		sp.keys.Start = start
	}
	switch {
	case exact < 0: // a revision beyond int64 wraps around in upstream's parser
		return sp, storage.NewTooLargeResourceVersionError(math.MaxUint64, 0, retryAfterSeconds)
	case exact > 0:
		sp.at = eventlog.Revision(exact)
		sp.view, err = s.atLeast(ctx, sp.at)
	case start != "": // an inconsistent token: go on at a new revision
		sp.view, err = s.Consistent(ctx)
	default:
		sp.view, err = s.viewFor(ctx, opts.ResourceVersion)
	}
	if err != nil {
		return sp, err
	}
	if exact == 0 {
		sp.at = sp.view.Revision()
	}
	return sp, nil
}

// listing fills one list.
type listing struct {
	store *store
	span
	opts    storage.ListOptions
	items   reflect.Value
	newItem func() runtime.Object
	// matched are the objects of the list, which may be the cache's.
	matched []runtime.Object
	// last row that was looked at, and whether another one follows it.
	last string
	more bool
	// corrupt rows, reported together while unsafe deletion is possible.
	corrupt []error
	// bytes of the rows so far.
	bytes int
}

// heavyList is from how many bytes of rows on a list takes a processor for some ten milliseconds, most of it to encode the
// answer. It then waits for its turn.
const heavyList = 256 << 10

// maxCorrupt is how many corrupt objects a list names before it gives up; upstream's figure.
const maxCorrupt = 100

// fill takes rows until the limit is reached, filtering as it goes, and looks at one more to learn
// whether there is another page.
func (l *listing) fill(ctx context.Context) error {
	limit := l.opts.Predicate.Limit
	for row, err := range l.view.Scan(ctx, l.keys.Start, l.keys.End, l.at) {
		if err != nil {
			return l.failed(err)
		}
		if limit > 0 && int64(len(l.matched)) >= limit {
			l.more = true
			break
		}
		if ctx.Err() != nil {
			return storage.NewTimeoutError(row.Key, "request did not complete within requested timeout")
		}
		l.last = row.Key
		if l.bytes += len(row.Value); l.bytes > heavyList {
			if err := TakeTurn(ctx); err != nil {
				return err
			}
		}
		if l.store.foreign(row.ContentType) {
			continue
		}
		if err := l.take(ctx, row); err != nil {
			return err
		}
	}
	l.store.setItems(l.items, l.matched)
	return nil
}

// setItems makes the list's items of the objects, in one allocation. A typed item is a copy of the struct
// that shares what is below it with the cache, as the items of upstream's cacher do: whoever handles a list
// may set an item's fields and must not write into its maps, slices and pointers. A custom resource is all
// map, and is copied to the ground.
func (s *store) setItems(items reflect.Value, objects []runtime.Object) {
	items.Set(reflect.MakeSlice(items.Type(), len(objects), len(objects)))
	for i, obj := range objects {
		if s.unstructured {
			obj = obj.DeepCopyObject()
		}
		items.Index(i).Set(reflect.ValueOf(obj).Elem())
	}
}

// failed answers for rows that the view could not read.
func (l *listing) failed(err error) error {
	return listError(err, l.opts.Predicate.Continue != "", l.keys.Start, l.prefix)
}

// take adds the row's object to the list if it matches.
func (l *listing) take(ctx context.Context, row projection.Row) error {
	v := storedRow(row)
	data, _, err := l.store.unseal(ctx, v)
	if err != nil {
		return l.keepCorrupt(row, err)
	}
	obj, err := l.store.shared(v, data, l.newItem())
	if err != nil {
		return l.keepCorrupt(row, err)
	}
	// An object whose attributes cannot be read does not match, as upstream has it.
	if matched, err := l.opts.Predicate.Matches(obj); err == nil && matched {
		l.matched = append(l.matched, obj)
	}
	return nil
}

// next returns the continue token and the count of what is left, which is left out with selectors.
func (l *listing) next(ctx context.Context) (token string, remaining *int64, err error) {
	if !l.opts.Recursive || !l.more {
		return "", nil, nil
	}
	var count int
	counted := l.opts.Predicate.Empty() && !sharded(&l.opts.Predicate)
	if counted {
		if count, err = l.count(ctx); err != nil {
			return "", nil, l.failed(err)
		}
	}
	token, remaining, err = storage.PrepareContinueToken(l.last, l.prefix, int64(l.at), int64(count), true, l.opts)
	if !counted { // upstream forgets that a shard selector selects
		remaining = nil
	}
	return token, remaining, err
}

// sharded reports whether a shard selector selects. It is not part of Predicate.Empty.
func sharded(p *storage.SelectionPredicate) bool {
	return p.ShardSelector != nil && !p.ShardSelector.Empty()
}

// page is what is left of a list as of one revision, from the start of one of its pages on.
type page struct {
	keys projection.Keys
	at   eventlog.Revision
}

// count is the number of objects from the page's start on. Nothing changes as of one revision, so the next
// page's count follows from this one's; without that every page would count all that come after it.
func (l *listing) count(ctx context.Context) (int, error) {
	count, known := l.store.counts.Get(page{l.keys, l.at})
	if !known {
		var err error
		if count, err = l.store.count(ctx, l.span); err != nil {
			return 0, err
		}
	}
	l.store.counts.Add(page{projection.Keys{Start: l.last + "\x00", End: l.keys.End}, l.at}, count-len(l.matched)-len(l.corrupt))
	return count, nil
}

// counted is how many objects there were as of a revision.
type counted struct {
	at eventlog.Revision
	n  int
}

// count is the number of objects of a span. It is counted once for all who ask for it at a time, and then reckoned from what
// was counted last.
func (s *store) count(ctx context.Context, sp span) (int, error) {
	last, known := s.counted.Get(sp.keys)
	if known && last.at == sp.at {
		return last.n, nil
	}
	shared, err, _ := s.counting.Do(fmt.Sprintf("%d %s", sp.at, sp.keys.Start), func() (any, error) {
		if known {
			return sp.view.CountFrom(ctx, sp.keys, sp.at, last.n, last.at)
		}
		return sp.view.Count(ctx, sp.keys.Start, sp.keys.End, sp.at)
	})
	if isContextError(err) && ctx.Err() == nil { // the request that counted has ended
		shared, err = sp.view.Count(ctx, sp.keys.Start, sp.keys.End, sp.at)
	}
	if err != nil {
		return 0, err
	}
	n := shared.(int)
	now, found := s.counted.Get(sp.keys)
	if sp.keys.Start == sp.prefix && (!found || now.at < sp.at) {
		s.counted.Add(sp.keys, counted{sp.at, n})
	}
	return n, nil
}

func itemsOf(listObj runtime.Object) (reflect.Value, error) {
	ptr, err := meta.GetItemsPtr(listObj)
	if err != nil {
		return reflect.Value{}, err
	}
	items, err := conversion.EnforcePtr(ptr)
	if err != nil || items.Kind() != reflect.Slice {
		return reflect.Value{}, fmt.Errorf("need ptr to slice: %v", err)
	}
	return items, nil
}

// itemFunc returns what makes an empty item: for custom resources with the version of the list, to
// which the codec then converts.
func itemFunc(listObj runtime.Object, items reflect.Value) func() runtime.Object {
	if list, ok := listObj.(*unstructured.UnstructuredList); ok && list.GetAPIVersion() != "" {
		return func() runtime.Object {
			return &unstructured.Unstructured{Object: map[string]any{"apiVersion": list.GetAPIVersion()}}
		}
	}
	return func() runtime.Object { return reflect.New(items.Type().Elem()).Interface().(runtime.Object) }
}

// Stats implements storage.Interface, without sizes.
func (s *store) Stats(ctx context.Context) (storage.Stats, error) {
	v, err := s.Consistent(ctx)
	if err != nil {
		return storage.Stats{}, err
	}
	all := s.keys(s.Prefix+"/", true)
	count, err := v.Count(ctx, all.Start, all.End, v.Revision())
	if err != nil {
		return storage.Stats{}, readAnswer(err)
	}
	return storage.Stats{ObjectCount: int64(count)}, nil
}

// GetCurrentResourceVersion implements storage.Interface: it is the head.
func (s *store) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	v, err := s.Consistent(ctx)
	if err != nil {
		return 0, err
	}
	if v.Revision() == 0 {
		return 0, errors.New("the current resource version must be greater than 0")
	}
	return uint64(v.Revision()), nil
}

// CompactRevision implements storage.Interface: like etcd's compacted revision, the floor is the oldest
// one that can still be read. It asks nobody, and is 0 before the first view.
func (s *store) CompactRevision() int64 {
	if v := s.Projection.Current(); v != nil {
		return int64(v.Floor())
	}
	return 0
}
