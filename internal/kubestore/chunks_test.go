package kubestore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
)

// megabyte is a chunk that claims to take a megabyte.
type megabyte struct{ items int }

func (*megabyte) Bytes() int               { return 1 << 20 }
func (m *megabyte) Size() (count, sum int) { return m.items, 1 << 20 }

// bulky is a store of n objects in segments, each in a chunk of its own. Nothing is cached.
func bulky(t *testing.T, n int) (*store, *memory.Bucket) {
	bucket := memory.Strict(t)
	b := newBed(t, eventlogtest.Start(t), bucket)
	s := newStore(b.Cell, pods(nil))
	for i := range n {
		p := pod("ns", fmt.Sprintf("p%04d", i))
		p.Annotations = map[string]string{"padding": strings.Repeat(" ", mostBytes)}
		data, err := s.encode(p)
		require.NoError(t, err)
		_, err = b.Log.Append(t.Context(), eventlog.Basis{}, fmt.Sprintf("bulky-%d", beds.Add(1)), eventlog.Write{
			Key: s.key(keyOf(p)), Op: eventlog.Added, ContentType: s.ContentType, Body: data})
		require.NoError(t, err)
	}
	b.purge(t.Context())
	var err error
	s.Projection, err = projection.Open(projection.Config{Log: b.Log, Bucket: bucket, Budget: cache.NewBudget(1)})
	require.NoError(t, err)
	s.Objects = NewObjects(cache.NewBudget(0))
	return s, bucket
}

// inChunks lists in chunks, and then looks at each chunk of the answer.
func inChunks(t *testing.T, s *store, p *Chunks, limit int64, look func(int)) (chunks int, err error) {
	p.Resource = s.GroupResource
	defer p.Close()
	list := &example.PodList{}
	predicate := storage.Everything
	predicate.Limit = limit
	listChunks(t, s, p, predicate, list)
	require.Empty(t, list.Items)
	for chunk, err := range p.All() {
		if err != nil {
			return chunks, err
		}
		look(chunks)
		chunks += chunk.(*megabyte).items
	}
	return chunks, nil
}

// TestListsHoldFewChunks: the number of chunks that a list holds does not depend on its length. A list holds the chunks
// that are read before the answer, the current chunk, and the chunks that are made ahead.
func TestListsHoldFewChunks(t *testing.T) {
	for _, n := range []int{20, 40} {
		s, _ := bulky(t, n)
		for _, c := range []struct {
			name            string
			sized, fleeting bool
			limit           int64
			want            int // chunks
		}{
			{"streamed", false, false, 0, n}, {"sized", true, false, 0, n}, {"page", false, false, 15, 15}, {"page, sized", true, false, 15, 15},
			{"fleeting", false, true, 0, n}, {"page, fleeting", false, true, 15, 15},
		} {
			var mu sync.Mutex
			var made []weak.Pointer[megabyte] // by mu, as are the variables below
			most := 0
			look := func(n int) {
				if n%5 > 0 {
					return
				}
				goruntime.GC()
				mu.Lock()
				defer mu.Unlock()
				live := 0
				for _, m := range made {
					if m.Value() != nil {
						live++
					}
				}
				most = max(most, live)
			}
			p := &Chunks{Encoding: c.name, Sized: c.sized, Fleeting: c.fleeting, Encode: func(_ context.Context, list runtime.Object, _ bool) (Chunk, error) {
				m := &megabyte{meta.LenList(list)}
				mu.Lock()
				before := len(made)
				made = append(made, weak.Make(m))
				mu.Unlock()
				look(before)
				return m, nil
			}}
			got, err := inChunks(t, s, p, c.limit, look)
			require.NoError(t, err)
			require.Equal(t, c.want, got, c.name)
			count, length := p.Size()
			if c.sized || c.limit > 0 {
				require.Equal(t, c.want, count)
				require.Equal(t, c.want<<20, length)
				require.Len(t, made, c.want+c.want-firstBytes>>20, "those that are not held are made twice")
			}
			require.LessOrEqual(t, most, firstBytes>>20+2+mostAhead, "%s of %d", c.name, n)
		}
	}
}

// TestChunksAreMadeConcurrently: chunks that are made concurrently come in the order of their rows. When a list ends,
// early or not, none of its goroutines runs on. A panic surfaces in the list's own goroutine, and ends the list's
// request.
func TestChunksAreMadeConcurrently(t *testing.T) {
	defer func(before chan struct{}) { helpers = before }(helpers)
	helpers = make(chan struct{}, mostAhead)
	const n = 30
	s, _ := bulky(t, n)
	for name, c := range map[string]struct {
		sized  bool
		stop   int
		panics string
	}{"whole": {false, n, ""}, "sized": {true, n, ""}, "stops": {false, 11, ""}, "panics": {false, n, "p0020"}, "panics before the answer": {true, n, "p0020"}} {
		var mu sync.Mutex
		running, most := 0, 0 // by mu
		begun := map[string]chan struct{}{}
		for i := range n {
			begun[fmt.Sprintf("p%04d", i)] = make(chan struct{})
		}
		last, beyond := fmt.Sprintf("p%04d", c.stop-1), fmt.Sprintf("p%04d", c.stop)
		awaits := map[string]chan struct{}{"p0000": begun["p0001"], "p0001": begun["p0000"], last: begun[beyond]}
		p := &Chunks{Resource: s.GroupResource, Sized: c.sized, Encode: func(_ context.Context, list runtime.Object, _ bool) (Chunk, error) {
			mu.Lock()
			running++
			most = max(most, running)
			one := list.(*example.PodList).Items[0].Name
			select {
			case <-begun[one]: // the chunk is made again
			default:
				close(begun[one])
			}
			mu.Unlock()
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				running--
			}()
			if awaits[one] != nil {
				select {
				case <-awaits[one]:
				case <-time.After(time.Minute):
					assert.Fail(t, "a chunk is not made at once with its neighbour")
				}
			}
			switch one {
			case c.panics:
				panic(one)
			case beyond:
				time.Sleep(50 * time.Millisecond) // longer than the list takes
			}
			return &bulkyNaming{naming{[]string{one}}}, nil
		}}
		var names []string
		list := func() {
			defer p.Close()
			listChunks(t, s, p, storage.Everything, &example.PodList{})
			for chunk, err := range p.All() {
				require.NoError(t, err)
				if names = append(names, chunk.(*bulkyNaming).names...); len(names) == c.stop {
					break
				}
			}
		}
		if c.panics == "" {
			list()
			require.Len(t, names, c.stop, name)
		} else {
			require.PanicsWithValue(t, c.panics, list, name)
			require.Less(t, len(names), n, name)
		}
		mu.Lock()
		require.Zero(t, running, name)
		require.Greater(t, most, 1, name)
		require.LessOrEqual(t, most, mostAhead, name)
		mu.Unlock()
		for i, one := range names {
			require.Equal(t, fmt.Sprintf("p%04d", i), one, name)
		}
	}
}

// TestFleetingChunks: a chunk that depends on more than its items is made for each list, from cached items.
func TestFleetingChunks(t *testing.T) {
	s := newStore(newBed(t, eventlogtest.Start(t), memory.Strict(t)).Cell, pods(nil))
	s.Objects = NewObjects(cache.NewBudget(64 << 20)) // with room for a megabyte
	p := pod("ns", "a")
	p.Labels = map[string]string{"a": "b"}
	create(t, s, p)
	labels := map[uintptr]int{} // a cached item has the same map each time
	for range 3 {
		p := &Chunks{Fleeting: true, Encode: func(_ context.Context, list runtime.Object, _ bool) (Chunk, error) {
			labels[reflect.ValueOf(list.(*example.PodList).Items[0].Labels).Pointer()]++
			return &megabyte{1}, nil
		}}
		got, err := inChunks(t, s, p, 0, func(int) {})
		require.NoError(t, err)
		require.Equal(t, 1, got)
	}
	require.Equal(t, []int{3}, slices.Collect(maps.Values(labels)))
}

// TestAListThatCannotBeReadAgain: a failure while a list is read again is returned as an error.
func TestAListThatCannotBeReadAgain(t *testing.T) {
	s, bucket := bulky(t, 20)
	p := &Chunks{Sized: true, Encode: func(_ context.Context, list runtime.Object, _ bool) (Chunk, error) {
		return &megabyte{meta.LenList(list)}, nil
	}}
	got, err := inChunks(t, s, p, 0, func(n int) {
		if n == 4 {
			bucket.Inject(func(memory.Op, string) memory.Fault { return memory.Fails })
		}
	})
	require.Error(t, err)
	require.False(t, errors.Is(err, context.Canceled))
	require.GreaterOrEqual(t, got, firstBytes>>20)
	require.Less(t, got, 20)
}

// TestWarmListsReadNoValues: a list whose chunks are cached reads no values, even if the cache has no room for the
// values. A chunk that must be made again reads only its own values. A list whose chunks must all be made reads as much
// as any scan.
func TestWarmListsReadNoValues(t *testing.T) {
	const n, bytes = 2000, 3000
	log, counted := manyPods(t, n, bytes)
	budget := cache.NewBudget(1 << 20) // the summaries of blocks have room, the values do not
	p, err := projection.Open(projection.Config{Log: log, Bucket: counted, Budget: budget})
	require.NoError(t, err)
	objects := NewObjects(cache.NewBudget(1 << 20))
	s := newStore(Cell{Log: log, Projection: p, Cluster: "main", Objects: objects}, corePods())
	list := func(encoding string) (read int64, names []string, chunks int) {
		var made atomic.Int32
		p := &Chunks{Resource: s.GroupResource, Encoding: encoding, Encode: func(_ context.Context, list runtime.Object, _ bool) (Chunk, error) {
			made.Add(1)
			chunk := &naming{}
			for _, pod := range list.(*corev1.PodList).Items {
				assert.Contains(t, pod.Annotations, "noise")
				chunk.names = append(chunk.names, pod.Name+"@"+pod.ResourceVersion)
			}
			return chunk, nil
		}}
		defer p.Close()
		before := counted.Counts().GetRange
		listChunks(t, s, p, storage.Everything, &corev1.PodList{})
		for chunk, err := range p.All() {
			require.NoError(t, err)
			names = append(names, chunk.(*naming).names...)
		}
		return counted.Counts().GetRange - before, names, int(made.Load())
	}
	_, first, chunks := list("a")
	require.Len(t, first, n)
	require.Greater(t, chunks, n/mostItems)
	read, again, made := list("a")
	require.Zero(t, read)
	require.Zero(t, made)
	require.Equal(t, first, again)

	changed := &corev1.Pod{}
	require.NoError(t, s.GuaranteedUpdate(t.Context(), "/pods/ns-0001/pod-0001500", changed, false, nil, storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
		obj.(*corev1.Pod).Labels["tier"] = "other"
		return obj, nil
	}), nil))
	read, again, made = list("a")
	require.Equal(t, 1, made)
	require.LessOrEqual(t, read, int64(2))
	want := slices.Clone(first)
	want[1500] = "pod-0001500@" + changed.ResourceVersion
	require.Equal(t, want, again)

	read, again, made = list("b")
	require.Equal(t, want, again)
	require.Equal(t, chunks, made)
	require.Greater(t, chunks, 25)
	require.LessOrEqual(t, read, int64(6), "two chunks are read for themselves, and the rest at once")
}

// bulkyNaming is a chunk so large that a list holds few such chunks.
type bulkyNaming struct{ naming }

func (*bulkyNaming) Bytes() int { return 1 << 20 }

// naming is a chunk with the names of its items.
type naming struct{ names []string }

func (*naming) Bytes() int               { return 100 }
func (n *naming) Size() (count, sum int) { return len(n.names), len(n.names) }

// listChunks lists all Pods that the predicate selects.
func listChunks(t *testing.T, s *store, p *Chunks, predicate storage.SelectionPredicate, list runtime.Object) {
	t.Helper()
	given, err := s.ListChunks(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: predicate}, list, p)
	require.NoError(t, err)
	require.True(t, given)
}
