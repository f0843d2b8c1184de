package kubestore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/kubestore/fanout"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
)

// fencedCell is a cell that is fenced while a request of an old process still uses its view.
type fencedCell struct {
	*bed
	old     *store          // of the process from before the fence
	stalled context.Context // the context of that process's request
	process Cell            // a process from after the fence
}

func fenceUnder(t *testing.T) *fencedCell {
	t.Helper()
	conn := eventlogtest.Start(t)
	b := newBed(t, conn, memory.Strict(t))
	open := func() *eventlog.Log {
		return eventlogtest.Open(t, eventlog.Config{Conn: conn, Stream: b.stream, Prefix: b.stream, InMemory: true})
	}
	f := &fencedCell{bed: b, old: newStore(b.Cell, pods(nil))}
	create(t, f.old, pod("ns", "a"))
	b.commit(t.Context())
	view, err := b.Projection.Latest(t.Context())
	require.NoError(t, err)
	f.stalled = WithView(t.Context(), view)
	operator, err := projection.Open(projection.Config{Log: open(), Bucket: b.bucket})
	require.NoError(t, err)
	plan, err := operator.PlanFence(t.Context(), 2*eventlog.FenceGap)
	require.NoError(t, err)
	require.NoError(t, operator.Fence(t.Context(), plan))
	f.process = process(t, open(), b.bucket)
	return f
}

func listed(t *testing.T, s storage.Interface) (all []string) {
	t.Helper()
	var list example.PodList
	require.NoError(t, s.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, &list))
	for _, p := range list.Items {
		all = append(all, p.Name)
	}
	return all
}

// reason returns the reason of the answer that upstream's registries make of the error. The registries turn a failed
// patch without a reason into a mistake of the client.
func reason(t *testing.T, err error) metav1.StatusReason {
	t.Helper()
	var status apierrors.APIStatus
	require.ErrorAs(t, storeerr.InterpretUpdateError(err, schema.GroupResource{Resource: "pods"}, "a"), &status)
	return status.Status().Reason
}

// A fenced process acknowledges nothing, whichever request learned of the fence, and its answer does not blame the
// client.
func TestAFencedProcessAcknowledgesNothing(t *testing.T) {
	for _, learned := range []bool{false, true} {
		t.Run(fmt.Sprint("learned ", learned), func(t *testing.T) {
			f := fenceUnder(t)
			if learned {
				_, err := f.Projection.Latest(t.Context()) // in another request
				require.ErrorIs(t, err, eventlog.ErrFenced)
			}
			require.Error(t, f.old.Create(f.stalled, "/pods/ns/late", pod("ns", "late"), nil, 0))
			require.Equal(t, []string{"a"}, listed(t, newStore(f.process, pods(nil))))
			require.Error(t, f.old.Create(f.stalled, "/pods/ns/later", pod("ns", "later"), nil, 0))
			for _, ctx := range []context.Context{f.stalled, t.Context()} {
				_, err := relabel(ctx, f.old, "/pods/ns/a", "a", "b")
				require.Equal(t, metav1.StatusReasonInternalError, reason(t, err), "%v", err)
			}
		})
	}
}

// Watches and lists show the same events: both leave out an event that a process of an older epoch appended. Live
// events, the window and the log are checked.
func TestWatchesKnowTheEpoch(t *testing.T) {
	f := fenceUnder(t)
	s := newStore(f.process, pods(nil))
	v, err := f.process.Projection.Latest(t.Context())
	require.NoError(t, err)
	from := fmt.Sprint(v.Revision())
	live := watchFrom(t, s, from)
	waitForMembers(t, s, 1)
	require.Error(t, f.old.Create(f.stalled, "/pods/ns/late", pod("ns", "late"), nil, 0)) // its event is in the log
	fresh := create(t, s, pod("ns", "fresh"))
	want := "ADDED ns/fresh " + fresh.ResourceVersion
	require.Equal(t, want, live.next())
	require.Equal(t, want, watchFrom(t, s, from).next())
	require.Equal(t, want, watchFrom(t, newStore(process(t, f.process.Log, f.bucket), pods(nil)), from).next())
	require.Equal(t, []string{"a", "fresh"}, listed(t, s))
}

// A write continues with a newer view when the floor has passed the view of its request.
func TestAWriteOutlivesTheFloor(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.New())
	var err error
	b.Projection, err = projection.Open(projection.Config{Log: b.Log, Bucket: b.bucket, InlineBytes: 1})
	require.NoError(t, err)
	s := newStore(b.Cell, pods(nil))
	p := create(t, s, pod("ns", "a"))
	for i := range 8 { // so that the segments of the view's root are compacted away
		create(t, s, pod("ns", fmt.Sprint("n", i)))
		b.commit(t.Context())
	}
	slow, err := projection.Open(projection.Config{Log: b.Log, Bucket: b.bucket, Budget: cache.NewBudget(1)})
	require.NoError(t, err)
	cell := b.Cell
	cell.Projection, cell.Objects = slow, nil
	v, err := slow.Latest(t.Context())
	require.NoError(t, err)
	stalled := WithView(t.Context(), v)
	_, err = relabel(t.Context(), s, keyOf(p), "a", "theirs")
	require.NoError(t, err)
	b.commit(t.Context())
	for more := true; more; {
		more, err = b.Projection.Compact(t.Context())
		require.NoError(t, err)
	}
	applied := b.Projection.Current().Applied()
	require.NoError(t, b.Projection.Retain(t.Context(), applied, 0))
	_, err = b.Projection.Collect(t.Context(), 0)
	require.NoError(t, err)
	out, err := relabel(stalled, newStore(cell, pods(nil)), keyOf(p), "b", "ours")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "theirs", "b": "ours"}, out.Labels)
}

// A transaction is computed again when the state from which it was computed can no longer be read. The transaction is
// written once.
func TestATransactionOutlivesTheFloor(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.New())
	var err error
	b.Projection, err = projection.Open(projection.Config{Log: b.Log, Bucket: b.bucket, InlineBytes: 1})
	require.NoError(t, err)
	s := newStore(b.Cell, pods(nil))
	p := create(t, s, pod("ns", "a"))
	for i := range 8 {
		create(t, s, pod("ns", fmt.Sprint("n", i)))
		b.commit(t.Context())
	}
	cell := b.Cell
	cell.Projection, err = projection.Open(projection.Config{Log: b.Log, Bucket: b.bucket, Budget: cache.NewBudget(1)})
	require.NoError(t, err)
	cell.Objects = nil
	slow, attempts := newStore(cell, pods(nil)), 0
	transactions := &Transactions{Cell: cell, Decides: func(eventlog.Key) []projection.Keys { return nil }}
	done, rev, err := transactions.Run(t.Context(), false, func(ctx context.Context, _ *Transaction) error {
		attempts++
		if attempts == 1 {
			_, err := relabel(t.Context(), s, keyOf(p), "a", "theirs")
			require.NoError(t, err)
			b.commit(t.Context())
			for more := true; more; {
				more, err = b.Projection.Compact(t.Context())
				require.NoError(t, err)
			}
			_, err = b.Projection.Collect(t.Context(), 0)
			require.NoError(t, err)
		}
		for range 2 {
			if _, err := relabel(ctx, slow, keyOf(p), "b", fmt.Sprint("ours", attempts)); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 2, attempts)
	require.Equal(t, rev, done.Appended(done.Last()))
	got := &example.Pod{}
	require.NoError(t, s.Get(t.Context(), keyOf(p), storage.GetOptions{}, got))
	require.Equal(t, map[string]string{"a": "theirs", "b": "ours2"}, got.Labels)
	require.Equal(t, fmt.Sprint(uint64(rev)), got.ResourceVersion)
}

// Transactions that have lost in one namespace take turns. They do not delay transactions of another namespace.
func TestTransactionsTakeTurnsByNamespace(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.New())
	s := newStore(b.Cell, pods(nil))
	mine := create(t, s, pod("mine", "a"))
	transactions := &Transactions{Cell: b.Cell, Decides: func(eventlog.Key) []projection.Keys { return nil }}
	for _, others := range []string{"other", ""} {
		transactions.turns.of(others) <- struct{}{}
	}
	attempts := 0
	_, _, err := transactions.Run(t.Context(), false, func(ctx context.Context, _ *Transaction) error {
		attempts++
		require.Equal(t, attempts > 1, transactions.turns.taken("mine"))
		if attempts == 1 {
			_, err := relabel(t.Context(), s, keyOf(mine), "a", "theirs")
			require.NoError(t, err)
		}
		_, err := relabel(ctx, s, keyOf(mine), "b", "ours")
		return err
	})
	require.NoError(t, err)
	require.Equal(t, 2, attempts)
	require.False(t, transactions.turns.taken("mine"))
}

// failing is a transformer that fails its next reads.
type failing struct {
	value.Transformer
	left atomic.Int64
}

func (f *failing) TransformFromStorage(ctx context.Context, data []byte, about value.Context) ([]byte, bool, error) {
	if f.left.Add(-1) >= 0 {
		return nil, false, errors.New("the key service does not answer")
	}
	return f.Transformer.TransformFromStorage(ctx, data, about)
}

// One passing error of the bucket or of the key service does not end a watch: neither the watch that met the error nor
// the watches that share its delivery.
func TestAPassingErrorEndsNoWatch(t *testing.T) {
	selecting := storage.ListOptions{Predicate: storage.SelectionPredicate{
		Label: labels.SelectorFromSet(labels.Set{"side": "left"}), Field: fields.Everything(), GetAttrs: attributes}}
	for _, fails := range []string{"bucket", "key service"} {
		t.Run(fails, func(t *testing.T) {
			bucket, keys := memory.New(), &failing{Transformer: identity.NewEncryptCheckTransformer()}
			b := newBed(t, eventlogtest.Start(t), bucket)
			writer := newStore(b.Cell, pods(nil))
			p := create(t, writer, pod("ns", "a"))
			_, err := relabel(t.Context(), writer, keyOf(p), "side", "left")
			require.NoError(t, err)

			small, err := projection.Open(projection.Config{Log: b.Log, Bucket: bucket, InlineBytes: 1, Budget: cache.NewBudget(1)})
			require.NoError(t, err)
			_, err = small.Commit(t.Context())
			require.NoError(t, err)
			cell := Cell{Log: b.Log, Projection: small, Cluster: "main", Feed: fanout.NewFeed(small)}
			ctx, stop := context.WithCancel(context.Background())
			var running sync.WaitGroup
			running.Go(func() { _ = cell.Feed.Run(ctx) })
			t.Cleanup(func() { stop(); running.Wait() })
			s := newStore(cell, pods(keys))
			start, err := s.GetCurrentResourceVersion(t.Context())
			require.NoError(t, err)
			var all []*recorder
			for range 5 {
				opts := selecting
				opts.ResourceVersion = fmt.Sprint(start)
				all = append(all, record(t, s, opts))
			}
			var failed atomic.Int64
			if fails == "bucket" {
				bucket.Inject(func(_ memory.Op, key string) memory.Fault {
					if strings.Contains(key, "/seg/") && failed.Add(1) == 1 {
						return memory.Fails
					}
					return memory.Works
				})
			} else {
				keys.left.Store(1)
			}
			out, err := relabel(t.Context(), writer, keyOf(p), "side", "right")
			require.NoError(t, err)
			for _, w := range all {
				require.Equal(t, "DELETED ns/a "+out.ResourceVersion, w.next())
			}
			require.True(t, failed.Load() > 0 || keys.left.Load() < 0, "nothing was read")
		})
	}
}

// A passing error does not break off the initial state of a watch: each object is sent once.
func TestAPassingErrorEndsNoState(t *testing.T) {
	for _, how := range []string{"bucket, events", "key service, events", "bucket, chunks"} {
		t.Run(how, func(t *testing.T) {
			bucket, keys := memory.New(), &failing{Transformer: identity.NewEncryptCheckTransformer()}
			b := newBed(t, eventlogtest.Start(t), bucket)
			writer := newStore(b.Cell, pods(nil))
			var want []string
			for i := range 500 {
				p := pod("ns", fmt.Sprintf("p%03d", i))
				noise := make([]byte, 8<<10)
				_, _ = rand.Read(noise)
				p.Annotations = map[string]string{"bulk": hex.EncodeToString(noise)} // longer than one read
				create(t, writer, p)
				want = append(want, p.Name)
			}
			c := projection.Config{Log: b.Log, Bucket: bucket, InlineBytes: 1, Budget: cache.NewBudget(1)}
			_, err := must(projection.Open(c)).Commit(t.Context())
			require.NoError(t, err)
			cell := Cell{Log: b.Log, Projection: must(projection.Open(c)), Cluster: "main", Objects: NewObjects(cache.NewBudget(1 << 20))}
			cell.Feed = fanout.NewFeed(cell.Projection)
			_, err = cell.Projection.Latest(t.Context())
			require.NoError(t, err)
			ctx, stop := context.WithCancel(context.Background())
			var running sync.WaitGroup
			running.Go(func() { _ = cell.Feed.Run(ctx) })
			t.Cleanup(func() { stop(); running.Wait() })
			resource := pods(nil)
			var reads, failed atomic.Int64
			if strings.HasPrefix(how, "bucket") {
				bucket.Inject(func(_ memory.Op, key string) memory.Fault {
					if strings.Contains(key, "/seg/") && reads.Add(1)%3 == 2 {
						failed.Add(1)
						return memory.Fails
					}
					return memory.Works
				})
			} else {
				resource = pods(keys)
				keys.left.Store(1)
			}
			opts := storage.ListOptions{Recursive: true, Predicate: storage.Everything, SendInitialEvents: new(bool)}
			*opts.SendInitialEvents, opts.Predicate.AllowWatchBookmarks = true, true
			to, watching := &stateWriter{nameEncoding: &nameEncoding{}, slow: math.MaxInt}, t.Context()
			if strings.HasSuffix(how, "chunks") {
				watching = withWatchWriter(watching, to)
			}
			w, err := newStore(cell, resource).Watch(watching, "/pods", opts)
			require.NoError(t, err)
			t.Cleanup(w.Stop)
			var got []string
			for e := range w.ResultChan() {
				if e.Type == watch.Bookmark {
					break
				}
				require.Equal(t, watch.Added, e.Type, "%v", e.Object)
				got = append(got, e.Object.(*example.Pod).Name)
			}
			if strings.HasSuffix(how, "chunks") {
				got = strings.Fields(to.names)
			}
			require.Equal(t, want, got)
			require.True(t, failed.Load() > 0 || keys.left.Load() < 0, "nothing has failed")
			t.Log(failed.Load(), "failures")
		})
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// If a bucket keeps failing, a watch ends with a bookmark at the watch's position and without an error event: after an
// error event clients would list. If an encryption key is gone, the client must see that error.
func TestALastingErrorEndsAWatchWell(t *testing.T) {
	for _, fails := range []string{"bucket", "key service"} {
		t.Run(fails, func(t *testing.T) {
			bucket := memory.New()
			b := newBed(t, eventlogtest.Start(t), bucket)
			writer := newStore(b.Cell, pods(nil))
			start, err := writer.GetCurrentResourceVersion(t.Context())
			require.NoError(t, err)
			create(t, writer, pod("ns", "a"))
			small, err := projection.Open(projection.Config{Log: b.Log, Bucket: bucket, InlineBytes: 1, Budget: cache.NewBudget(1)})
			require.NoError(t, err)
			_, err = small.Commit(t.Context())
			require.NoError(t, err)
			keys := value.Transformer(nil)
			if fails == "bucket" {
				bucket.Inject(func(_ memory.Op, key string) memory.Fault {
					if strings.Contains(key, "/events/") {
						return memory.Fails
					}
					return memory.Works
				})
			} else {
				keys = broken{}
			}
			cell := Cell{Log: b.Log, Projection: small, Cluster: "main", Feed: fanout.NewFeed(small)}
			head := small.Current().Revision()
			cell.Feed.Start(fanout.Window{From: head, To: head})
			selects := storage.Everything
			selects.AllowWatchBookmarks = true
			w := record(t, newStore(cell, pods(keys)), storage.ListOptions{ResourceVersion: fmt.Sprint(start), Predicate: selects})
			if fails == "bucket" {
				require.Equal(t, fmt.Sprintf("BOOKMARK / %d", start), w.next())
			} else {
				require.Equal(t, "ERROR InternalError", w.next())
			}
			_, open := <-w.ResultChan()
			require.False(t, open)
		})
	}
}

// broken is a transformer that fails every read.
type broken struct{ value.Transformer }

func (broken) TransformFromStorage(context.Context, []byte, value.Context) ([]byte, bool, error) {
	return nil, false, errors.New("no such key")
}

// A watch that was asked to end, and has left the feed since, ends with its bookmark although the feed has stopped.
func TestAnEndingWatchWaitsForNoFeed(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	cell := b.Cell
	cell.Feed = fanout.NewFeed(b.Projection) // nobody runs it
	s := newStore(cell, pods(nil))
	w := &watcher{store: s, keys: s.keys("/pods/", true), position: 7, results: make(chan watch.Event, 1), ending: true,
		opts: storage.ListOptions{Predicate: storage.SelectionPredicate{AllowWatchBookmarks: true}}}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.ErrorIs(t, w.follow(ctx), errEnded)
	last := <-w.results
	require.Equal(t, watch.Bookmark, last.Type)
	require.Equal(t, "7", last.Object.(*example.Pod).ResourceVersion)
}

// The cache of objects has its own copies of the keys that it counts: these keys keep no block of a segment in memory.
func TestObjectsOwnTheirKeys(t *testing.T) {
	objects := NewObjects(cache.NewBudget(1 << 20))
	gone := make(chan struct{})
	func() {
		block := make([]byte, 1<<20)
		runtime.AddCleanup(&block[0], func(struct{}) { close(gone) }, struct{}{})
		keys := unsafe.String(&block[0], len(block))
		objects.add(version{rowKey: keys[5:15]}, keys[20:25], &example.Pod{})
	}()
	runtime.GC()
	<-gone
	require.NotNil(t, objects.get(version{rowKey: string(make([]byte, 10))}))
}

// halves is a shard selector that selects the objects with names below "m".
type halves struct{ sharding.Selector }

func (halves) Empty() bool                                 { return false }
func (halves) Matches(obj k8sruntime.Object) (bool, error) { return obj.(*example.Pod).Name < "m", nil }
func (halves) String() string                              { return "halves" }

// While a shard is selected, the list does not count the objects that are left: such a count would include all shards.
func TestShardsAreNotCounted(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	s := newStore(b.Cell, pods(nil))
	for _, name := range []string{"a", "b", "c", "x", "y", "z"} {
		create(t, s, pod("ns", name))
	}
	var list example.PodList
	all := storage.Everything
	all.Limit, all.ShardSelector = 2, halves{}
	require.NoError(t, s.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: all}, &list))
	require.Len(t, list.Items, 2)
	require.NotEmpty(t, list.Continue)
	require.Nil(t, list.RemainingItemCount)
	all.ShardSelector = nil
	require.NoError(t, s.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: all}, &list))
	require.EqualValues(t, 4, *list.RemainingItemCount)
}

// panics is a transformer that panics.
type panics struct{ value.Transformer }

func (panics) TransformFromStorage(context.Context, []byte, value.Context) ([]byte, bool, error) {
	panic("a fault")
}

// A panic ends the watch in which it happened, not the process.
func TestAPanicEndsOneWatch(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	create(t, newStore(b.Cell, pods(nil)), pod("ns", "a"))
	w := record(t, newStore(b.Cell, pods(panics{})), storage.ListOptions{})
	require.Equal(t, "ERROR InternalError", w.next())
	_, open := <-w.ResultChan()
	require.False(t, open)
}
