package kubestore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
)

// leftSide selects the pods with side=left.
func leftSide() storage.SelectionPredicate {
	return storage.SelectionPredicate{Label: labels.SelectorFromSet(labels.Set{"side": "left"}), Field: fields.Everything(),
		GetAttrs: attributes, AllowWatchBookmarks: true}
}

// gap is a cell with one checkpoint. Later changes are in archived events only.
type gap struct {
	*bed
	counts *bucket.Counted
	stuck  atomic.Pointer[chan struct{}]
	once   sync.Once
	start  string
	head   projection.Revision
	// want has the events that a watch of the left side from start has seen live.
	want []string
}

// past returns a store of a process with the given budget, and the view of the gap's end.
func (g *gap) past(budget int64) (*store, *projection.View) {
	g.t.Helper()
	g.counts = bucket.Count(stalling{g.bucket, g})
	c := projection.Config{Log: g.Log, Bucket: g.counts, InlineBytes: 1, History: 290 * 365 * 24 * time.Hour}
	c.Budget = cache.NewBudget(budget)
	p, err := projection.Open(c)
	require.NoError(g.t, err)
	v, err := p.AsOf(g.t.Context(), g.head)
	require.NoError(g.t, err)
	return newStore(Cell{Log: g.Log, Projection: p, Cluster: "main"}, pods(nil)), v
}

// stall makes reads of archived events hang until their context ends. The first such read closes stuck. Nil ends the
// stall.
func (g *gap) stall(stuck chan struct{}) {
	if stuck == nil {
		g.stuck.Store(nil)
		return
	}
	g.stuck.Store(&stuck)
}

// stalling is a bucket whose reads its gap may stall.
type stalling struct {
	bucket.Bucket
	of *gap
}

func (s stalling) GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	if stuck := s.of.stuck.Load(); stuck != nil && strings.Contains(key, "/events/") {
		s.of.once.Do(func() { close(*stuck) })
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.Bucket.GetRange(ctx, key, offset, length)
}

// reads returns the number of requests to the bucket so far.
func (g *gap) reads() int64 { return g.counts.Counts().Get + g.counts.Counts().GetRange }

// watch replays the gap.
func (g *gap) watch(s *store, v *projection.View, selects storage.SelectionPredicate, end <-chan struct{}) *recorder {
	g.t.Helper()
	opts := storage.ListOptions{ResourceVersion: g.start, Recursive: true, Predicate: selects}
	w, err := s.Watch(withEnd(WithPast(g.t.Context(), v), end), "/pods", opts)
	require.NoError(g.t, err)
	g.t.Cleanup(w.Stop)
	return &recorder{t: g.t, Interface: w}
}

// newGap relabels, deletes and creates again ten pods in turn. Each pod has 'bulk' random bytes in hex.
func newGap(t *testing.T, rounds, bulk int) *gap {
	t.Helper()
	g := &gap{bed: newBed(t, eventlogtest.Start(t), memory.Strict(t))}
	keeper, _ := g.past(64 << 20)
	s := newStore(g.Cell, pods(nil))
	commit := func() {
		_, err := keeper.Projection.Commit(t.Context())
		require.NoError(t, err)
	}
	fresh := func(i int, side string) {
		p := pod("ns", fmt.Sprint("p", i))
		random := make([]byte, bulk)
		_, _ = rand.Read(random)
		p.Annotations, p.Labels = map[string]string{"bulk": hex.EncodeToString(random)}, map[string]string{"side": side}
		create(t, s, p)
	}
	side := func(n int) string { return []string{"left", "left", "right", "right", "left", "right"}[n%6] }
	for i := range 10 {
		fresh(i, side(i))
	}
	commit()
	create(t, s, pod("ns", "between"))
	start, err := s.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	g.start = fmt.Sprint(start)
	live := record(t, s, storage.ListOptions{ResourceVersion: g.start, Predicate: leftSide()})
	for n := range rounds {
		for i := range 10 {
			key := fmt.Sprint("/pods/ns/p", i)
			if (n+i)%5 == 0 {
				_, err = remove(t.Context(), s, key)
				require.NoError(t, err)
				fresh(i, side(n*7+i))
				continue
			}
			_, err = relabel(t.Context(), s, key, "side", side(n*5+i*3))
			require.NoError(t, err)
			_, err = relabel(t.Context(), s, key, "n", fmt.Sprint(n))
			require.NoError(t, err)
		}
		commit()
	}
	last := pod("ns", "last")
	last.Labels = map[string]string{"side": "left"}
	last = create(t, s, last)
	for sentinel := "ADDED ns/last " + last.ResourceVersion; len(g.want) == 0 || g.want[len(g.want)-1] != sentinel; {
		event := live.next()
		if !strings.HasPrefix(event, "BOOKMARK") {
			g.want = append(g.want, event)
		}
	}
	head, err := s.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	g.head = projection.Revision(head)
	create(t, s, pod("ns", "after"))
	commit()
	applied := keeper.Projection.Current().Applied()
	require.NoError(t, keeper.Projection.Retain(t.Context(), applied, applied))
	_, err = keeper.Projection.Collect(t.Context(), 0)
	require.NoError(t, err)
	return g
}

// A watch of the past with a selection sees the same events as a live watch. It costs a few passes over the archived
// events, however many there are, and holds no more than its share of the budget.
func TestAReplaySelectsInOnePass(t *testing.T) {
	g := newGap(t, 20, 512)
	want := append(g.want, fmt.Sprintf("BOOKMARK / %d", g.head), "closed true")
	for _, budget := range []int64{256 << 10, 96 << 10} { // the second budget makes the replay forget
		s, v := g.past(budget)
		_, before := s.Projection.Budget().Used()
		everything := storage.Everything
		everything.AllowWatchBookmarks = true
		events := 0
		for w := g.watch(s, v, everything, nil); w.next() != "closed true"; {
			events++
		}
		require.Greater(t, events, 300)

		s, v = g.past(budget)
		opened := g.reads()
		w := g.watch(s, v, storage.Everything, nil)
		for w.next() != "closed true" {
		}
		plain := g.reads() - opened

		s, v = g.past(budget)
		opened = g.reads()
		g.watch(s, v, leftSide(), nil).expect(want...)
		selecting := g.reads() - opened
		t.Logf("%d events, %d reads, %d if it selects", events, plain, selecting)
		if budget == 256<<10 {
			require.LessOrEqual(t, selecting, 3*plain)
		}
		_, after := s.Projection.Budget().Used()
		require.Equal(t, before, after)
	}
}

// A replay that would hold too much ends with an answer, not with a server error.
func TestAReplayThatHoldsTooMuch(t *testing.T) {
	g := newGap(t, 3, 8<<10)
	s, v := g.past(16 << 10)
	w := g.watch(s, v, leftSide(), nil)
	last := ""
	for event := w.next(); event != "closed true"; event = w.next() {
		last = event
	}
	require.Equal(t, "ERROR Expired", last)
	list := s.NewListFunc()
	err := s.GetList(WithPast(t.Context(), v), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list)
	require.Equal(t, "Expired", string(reason(t, err)), "%v", err)
	require.ErrorContains(t, err, projection.ErrTooMuch.Error())
}

// A watch of the past ends when it is asked to: with a bookmark at the position that it has reached, and no error. This
// holds even if the watch's reader is slow.
func TestAReplayEnds(t *testing.T) {
	g := newGap(t, 4, 512)
	s, v := g.past(64 << 20)
	all := storage.Everything
	all.AllowWatchBookmarks = true
	ended := make(chan struct{})
	close(ended)
	g.watch(s, v, all, ended).expect("BOOKMARK / "+g.start, "closed true")

	// From here on the bucket does not answer.
	s, v = g.past(1)
	stuck, end := make(chan struct{}), make(chan struct{})
	g.stall(stuck)
	w := g.watch(s, v, all, end)
	<-stuck
	close(end)
	w.expect("BOOKMARK / "+g.start, "closed true")
	g.stall(nil)

	s, v = g.past(64 << 20)
	for _, selects := range []storage.SelectionPredicate{all, leftSide()} {
		end := make(chan struct{})
		w := g.watch(s, v, selects, end)
		events := []string{w.next()}
		close(end)
		for event := w.next(); event != "closed true"; event = w.next() {
			events = append(events, event)
		}
		last, bookmark := events[len(events)-2], events[len(events)-1]
		require.LessOrEqual(t, len(events), 1+bufferedEvents+2)
		var reached, marked uint64
		_, err := fmt.Sscanf(last[strings.LastIndex(last, " "):], "%d", &reached)
		require.NoError(t, err)
		_, err = fmt.Sscanf(bookmark, "BOOKMARK / %d", &marked)
		require.NoError(t, err, bookmark)
		require.GreaterOrEqual(t, marked, reached)
		require.Less(t, marked, uint64(g.head))
	}
}

// TestReplayEndsBehindWhatItSent: if a replay is asked to end while its reader has yet to encode an event, the bookmark
// is not before that event.
func TestReplayEndsBehindWhatItSent(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	s := newStore(b.Cell, pods(nil))
	start, err := s.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	for n := range 3 {
		large := pod("ns", fmt.Sprint("p", n))
		large.Annotations = map[string]string{"large": strings.Repeat("x", bufferedBytes)}
		create(t, s, large)
	}
	v, err := b.Projection.Latest(t.Context())
	require.NoError(t, err)
	end := make(chan struct{})
	ctx := WithPast(withEnd(t.Context(), end), v)
	everything := storage.Everything
	everything.AllowWatchBookmarks = true
	w, err := s.Watch(ctx, "/pods/", storage.ListOptions{ResourceVersion: fmt.Sprint(start), Recursive: true, Predicate: everything})
	require.NoError(t, err)
	first := <-w.ResultChan()
	_, announced := first.Object.(runtime.CacheableObject)
	require.True(t, announced)
	close(end)
	last, ok := <-w.ResultChan()
	require.True(t, ok)
	require.Equal(t, watch.Bookmark, last.Type)
	sent, err := storage.APIObjectVersioner{}.ObjectResourceVersion(first.Object.(runtime.CacheableObject).GetObject())
	require.NoError(t, err)
	reached, err := storage.APIObjectVersioner{}.ObjectResourceVersion(last.Object)
	require.NoError(t, err)
	require.GreaterOrEqual(t, reached, sent)
	_, ok = <-w.ResultChan()
	require.False(t, ok)
}
