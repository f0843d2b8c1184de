package kubestore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
	if errors.Is(err, projection.ErrExpired) { // the floor has passed the view, and a newer view is also a right answer
		v, err = s.latest(ctx)
		if err != nil {
			return err
		}
		row, found, err = v.Get(ctx, s.rowKey(path), v.Revision())
	}
	switch {
	case err != nil:
		return Answer(ctx, err)
	case (!found || s.foreign(row.ContentType)) && opts.IgnoreNotFound:
		return runtime.SetZeroValue(out)
	case !found || s.foreign(row.ContentType):
		return storage.NewKeyNotFoundError(path, 0)
	}
	data, _, err := s.unseal(ctx, storedRow(row))
	if err == nil {
		err = s.decodeTo(storedRow(row), data, out)
	}
	if corrupt, ok := errors.AsType[*corruptError](err); ok { // upstream's unsafe deletion recognises the error below
		return storage.NewCorruptObjError(path, corrupt)
	}
	return err
}

func storedRow(row projection.Row) stored {
	return stored{rowKey: row.StoredKey(), revision: row.Revision, value: row.Value}
}

// viewFor returns the view for a resourceVersion without a match. For an unset resourceVersion it returns the most
// recent view, for '0' any view, and otherwise a view that is not older than the resourceVersion.
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
	return s.AtLeast(ctx, eventlog.Revision(rev))
}

// any returns the view that this process has, if that view is young enough. It reads a newer view if the present view
// is older than this store's acknowledged writes. It also reads a newer view if the present view is from before the
// first event of the cell, because a list needs a revision.
func (s *store) any(ctx context.Context) (*projection.View, error) {
	if v := pinned(ctx); v != nil {
		return v, nil
	}
	v, err := s.Projection.Any(ctx)
	if err != nil {
		return nil, Answer(ctx, err)
	}
	acknowledged := eventlog.Revision(s.acknowledged.Load())
	switch {
	case v.Revision() < acknowledged:
		return s.AtLeast(ctx, acknowledged)
	case v.Revision() == 0:
		return s.latest(ctx)
	}
	return v, nil
}

// acknowledge records the revision of an acknowledged write.
func (s *store) acknowledge(rev eventlog.Revision) {
	for {
		old := s.acknowledged.Load()
		if uint64(rev) <= old || s.acknowledged.CompareAndSwap(old, uint64(rev)) {
			return
		}
	}
}

// span describes the rows that a list reads: rows of one view, as of one revision.
type span struct {
	view   *projection.View
	at     eventlog.Revision
	keys   projection.Keys
	prefix string // of the whole list, of which this may be a page
	exact  bool   // the client has named the revision
}

// GetList implements storage.Interface. Everything in the list is true at the list's resourceVersion.
func (s *store) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	return s.list(ctx, key, opts, listObj, nil)
}

// list lists objects, or if p is not nil, chunks.
func (s *store) list(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object, p *Chunks) error {
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
	l := s.listing(sp, opts, listObj, items)
	l.judge = s.judge(&l.opts.Predicate, l.kind.GroupVersion().String())
	l.wanted = l.judge.wanted()
	start := *l
	if p != nil {
		err = l.fillChunks(ctx, p)
	}
	if p == nil || errors.As(err, new(*corruptError)) { // the error names all corrupt objects
		l = &start
		err = l.fill(ctx, items)
	}
	if err != nil && l.exact && errors.Is(err, ErrDropped) {
		return l.failed(ctx, fmt.Errorf("%w: %w", projection.ErrExpired, err))
	}
	if err != nil {
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

// span returns the span of a list, given the list's resourceVersion, match, limit and continue token. A revision inside
// an append stands for the append's end, so that no list shows only a part of the append.
func (s *store) span(ctx context.Context, path string, opts storage.ListOptions) (span, error) {
	path = s.narrowed(path, &opts.Predicate)
	sp := span{keys: s.keys(path, opts.Recursive), prefix: s.rowKey(path)}
	exact, start, err := storage.ValidateListOptions(sp.prefix, s.versioner, opts)
	if err != nil {
		return sp, err
	}
	if start != "" {
		sp.keys.Start = start
	}
	switch {
	case exact < 0: // upstream's parser lets a revision beyond int64 wrap around
		return sp, storage.NewTooLargeResourceVersionError(math.MaxUint64, 0, retryAfterSeconds)
	case exact > 0:
		sp.at, sp.exact = eventlog.Revision(exact), true
		sp.view, err = s.AtLeast(ctx, sp.at)
		if err == nil && start == "" { // a token's revision is the end of an append
			if sp.at, err = s.Projection.EndOf(ctx, sp.at); err != nil {
				err = listError(ctx, err, false, "", "")
			}
		}
		if err == nil && s.Within != nil {
			err = s.Within(ctx, sp.at)
		}
	case start != "": // an inconsistent token, which continues at a new revision
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

// narrowed returns the path of a page. If a list of all namespaces selects one namespace, upstream asks for that
// namespace in the first page, and for all namespaces in the later pages. A token is relative to the range that its
// page has read, so without narrowed the later pages would skip or repeat objects.
func (s *store) narrowed(path string, p *storage.SelectionPredicate) string {
	if p.Continue == "" || p.Field == nil || !s.Namespaced || path != s.Prefix+"/" {
		return path
	}
	namespace, ok := p.Field.RequiresExactMatch("metadata.namespace")
	if !ok || len(validation.ValidateNamespaceName(namespace, false)) > 0 {
		return path
	}
	return path + namespace + "/"
}

// listing fills one list.
type listing struct {
	store *store
	span
	opts    storage.ListOptions
	list    runtime.Object
	kind    schema.GroupVersionKind // of list
	newItem func() runtime.Object
	// taken is how many objects the list has so far.
	taken int
	// last is the last row key that was looked at, and more says that another row follows it.
	last string
	more bool
	// corrupt has the errors of corrupt rows, which are reported together.
	corrupt []*corruptError
	// bytes is the size of the rows so far.
	bytes int
	// judge and wanted are nil if every row must be decoded.
	judge  *judge
	wanted *projection.Selection
}

func (s *store) listing(sp span, opts storage.ListOptions, list runtime.Object, items reflect.Value) *listing {
	return &listing{store: s, span: sp, opts: opts, list: list, kind: list.GetObjectKind().GroupVersionKind(), newItem: itemFunc(list, items)}
}

// heavyList is how many bytes of rows keep a processor busy for some ten milliseconds, mostly with encoding the answer.
// A list with more bytes waits for a heavy seat.
const heavyList = 256 << 10

// maxCorrupt is how many corrupt objects a list names before it gives up. It is upstream's number.
const maxCorrupt = 100

// scan yields the rows to look at.
func (l *listing) scan(ctx context.Context) iter.Seq2[projection.Row, error] {
	return l.upToLimit(ctx, l.view.Select(ctx, l.keys.Start, l.keys.End, l.at, l.wanted))
}

// upToLimit yields the rows until the limit is reached. It looks at one more row to learn whether there is another
// page.
func (l *listing) upToLimit(ctx context.Context, rows iter.Seq2[projection.Row, error]) iter.Seq2[projection.Row, error] {
	return func(yield func(projection.Row, error) bool) {
		limit := l.opts.Predicate.Limit
		for row, err := range rows {
			if err != nil {
				yield(row, l.failed(ctx, err))
				return
			}
			if limit > 0 && int64(l.taken) >= limit {
				l.more = true
				return
			}
			if ctx.Err() != nil {
				yield(row, storage.NewTimeoutError(row.Key, "request did not complete within requested timeout"))
				return
			}
			l.last = row.Key
			l.bytes += row.Size
			if l.bytes > heavyList {
				if err := TakeHeavySeat(ctx); err != nil {
					yield(row, err)
					return
				}
			}
			if !l.store.foreign(row.ContentType) && !yield(row, nil) {
				return
			}
		}
		if limit > 0 && int64(l.taken) >= limit && l.wanted != nil {
			if err := l.follows(ctx); err != nil {
				yield(projection.Row{}, err)
			}
		}
	}
}

// follows looks for any row after the last row, even a row that the selection leaves out, so that the end of a page
// does not depend on the selection.
func (l *listing) follows(ctx context.Context) error {
	for _, err := range l.view.Scan(ctx, l.last+"\x00", l.keys.End, l.at) {
		if err != nil {
			return l.failed(ctx, err)
		}
		l.more = true
		break
	}
	return nil
}

// fill sets the list's items to the objects of the matching rows. The objects may be in the cache.
func (l *listing) fill(ctx context.Context, items reflect.Value) error {
	var matched []runtime.Object
	for row, err := range l.scan(ctx) {
		if err != nil {
			return err
		}
		object, err := l.match(ctx, row)
		if err != nil {
			err = l.keepCorrupt(err)
		}
		if err != nil {
			return err
		}
		if object != nil {
			matched = append(matched, object)
			l.taken++
		}
	}
	l.store.setItems(items, matched)
	return nil
}

// setItems makes the list's items from the objects, in one allocation. A typed item is a copy of the struct, and shares
// with the cache everything that the struct points to. The items of upstream's cacher share memory in the same way:
// callers may set the fields of an item, but must not write into its maps, slices and pointers. A custom resource is a
// map, so it is copied as a whole.
func (s *store) setItems(items reflect.Value, objects []runtime.Object) {
	items.Set(reflect.MakeSlice(items.Type(), len(objects), len(objects)))
	for i, obj := range objects {
		if s.unstructured {
			obj = obj.DeepCopyObject()
		}
		items.Index(i).Set(reflect.ValueOf(obj).Elem())
	}
}

// failed returns the answer to a list whose rows could not be read from the view.
func (l *listing) failed(ctx context.Context, err error) error {
	return listError(ctx, err, l.opts.Predicate.Continue != "", l.keys.Start, l.prefix)
}

// match returns the row's object, or nil if it does not match.
func (l *listing) match(ctx context.Context, row projection.Row) (runtime.Object, error) {
	v := storedRow(row)
	data, _, err := l.store.unseal(ctx, v)
	if err == nil && l.judge.excludes(data) {
		return nil, nil
	}
	var object runtime.Object
	if err == nil {
		object, err = l.store.shared(v, data, l.newItem())
	}
	if err != nil {
		return nil, err
	}
	// As in upstream, an object does not match if its attributes cannot be read.
	matched, err := l.opts.Predicate.Matches(object)
	if err != nil || !matched {
		return nil, nil
	}
	return object, nil
}

// decode returns the row's object. Nobody needs the object again soon, so it is cached only if a webhook may have
// converted it.
func (l *listing) decode(ctx context.Context, row projection.Row) (runtime.Object, error) {
	v := storedRow(row)
	data, _, err := l.store.unseal(ctx, v)
	if err != nil {
		return nil, err
	}
	if local, _ := l.store.local(data); !local {
		return l.store.shared(v, data, l.newItem())
	}
	object, _, err := l.store.look(v, data, l.newItem())
	return object, err
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

// itemFunc returns a function that makes an empty item. An empty custom resource has the version of the list, so that
// the codec converts to that version.
func itemFunc(listObj runtime.Object, items reflect.Value) func() runtime.Object {
	if list, ok := listObj.(*unstructured.UnstructuredList); ok && list.GetAPIVersion() != "" {
		version := list.GetAPIVersion()
		return func() runtime.Object {
			return &unstructured.Unstructured{Object: map[string]any{"apiVersion": version}}
		}
	}
	return func() runtime.Object { return reflect.New(items.Type().Elem()).Interface().(runtime.Object) }
}
