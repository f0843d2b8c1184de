package kubestore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/kubestore/fanout"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// recorder reads one watch.
type recorder struct {
	t testing.TB
	watch.Interface
	last string
}

func record(t testing.TB, s storage.Interface, opts storage.ListOptions) *recorder {
	t.Helper()
	opts.Recursive = true
	if opts.Predicate.Label == nil {
		opts.Predicate = storage.Everything
	}
	w, err := s.Watch(t.Context(), "/pods", opts)
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	return &recorder{t: t, Interface: w}
}

func watchFrom(t testing.TB, s storage.Interface, rev string) *recorder {
	t.Helper()
	return record(t, s, storage.ListOptions{ResourceVersion: rev})
}

// next returns one event as text.
func (r *recorder) next() string {
	r.t.Helper()
	r.last = r.receive()
	return r.last
}

func (r *recorder) receive() string {
	r.t.Helper()
	select {
	case e, ok := <-r.ResultChan():
		if shared, ok := e.Object.(runtime.CacheableObject); ok { // while another watch has the object too
			e.Object = shared.GetObject()
		}
		switch o := e.Object.(type) {
		case *example.Pod:
			return fmt.Sprintf("%s %s/%s %s", e.Type, o.Namespace, o.Name, o.ResourceVersion)
		case *metav1.Status:
			return fmt.Sprintf("%s %s", e.Type, o.Reason)
		}
		return fmt.Sprintf("closed %v", !ok)
	case <-time.After(30 * time.Second):
		r.t.Fatalf("no event came after %q", r.last)
	}
	return ""
}

// expect compares events as they come. The first wrong event fails the test, before expect waits for an event that may
// never come.
func (r *recorder) expect(want ...string) {
	r.t.Helper()
	for i, event := range want {
		after := r.last
		require.Equal(r.t, event, r.next(), "event %d of %d, after %q", i+1, len(want), after)
	}
}

// history makes random changes to a few new pods and returns the events that a watch of all these pods must see.
func history(t testing.TB, s storage.Interface, r *rand.Rand, changes int, step func(context.Context), prefix string) (events []string) {
	t.Helper()
	exists := map[string]bool{}
	for range changes {
		p := pod("ns", fmt.Sprintf("%s%d", prefix, r.IntN(5)))
		var err error
		var out *example.Pod
		event := watch.Modified
		switch {
		case !exists[p.Name]:
			event, out = watch.Added, create(t, s, p)
		case r.IntN(3) == 0:
			event = watch.Deleted
			out, err = remove(t.Context(), s, keyOf(p))
		default:
			out, err = relabel(t.Context(), s, keyOf(p), "change", fmt.Sprint(len(events)))
		}
		require.NoError(t, err)
		exists[p.Name] = event != watch.Deleted
		events = append(events, fmt.Sprintf("%s ns/%s %s", event, p.Name, out.ResourceVersion))
		step(t.Context())
	}
	return events
}

// TestWatchResumes: a watch is cut off at random moments and always resumed on another process, while events are
// committed and the log is purged. The watch sees every change once and in order (rows 11 and 20, invariant 8).
func TestWatchResumes(t *testing.T) {
	conn := eventlogtest.Start(t)
	for mode, step := range modes {
		t.Run(mode, func(t *testing.T) {
			b := newBed(t, conn, memory.Strict(t))
			stores := []*store{newStore(b.Cell, pods(nil)), newStore(process(t, b.Log, b.bucket), pods(nil))}
			start, err := stores[0].GetCurrentResourceVersion(t.Context())
			require.NoError(t, err)
			r := rand.New(rand.NewPCG(7, uint64(len(mode))))
			live := watchFrom(t, stores[0], fmt.Sprint(start))
			events := history(t, stores[0], r, 120, step(b), "p")
			live.expect(events...)

			last := fmt.Sprint(start)
			for at := 0; at < len(events); {
				w := watchFrom(t, stores[at%2], last)
				n := min(1+r.IntN(20), len(events)-at)
				w.expect(events[at : at+n]...)
				w.Stop()
				at += n
				_, _ = fmt.Sscanf(events[at-1], "%s %s %s", new(string), new(string), &last)
			}
		})
	}
}

// TestSlowWatchRejoins: a watch that is not read leaves the feed, delays nobody, and later continues without a gap.
func TestSlowWatchRejoins(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	s := newStore(b.Cell, pods(nil))
	start, err := s.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	slow, fast := watchFrom(t, s, fmt.Sprint(start)), watchFrom(t, s, fmt.Sprint(start))
	total := bufferedEvents + fanout.QueueLength + 100
	r := rand.New(rand.NewPCG(3, 4))
	events := history(t, s, r, total, func(context.Context) {}, "p")
	fast.expect(events...)
	require.Equal(t, 1, s.Feed.Subscriptions(s.rowKey("/pods/")), "only the watch that is read is still in the feed")
	slow.expect(events...)
}

// TestWatchExpires: a watch from a revision below the floor ends with 410. A watch from a future revision waits for
// that revision.
func TestWatchExpires(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	s := newStore(b.Cell, pods(nil))
	p := create(t, s, pod("ns", "a"))
	changed, err := relabel(t.Context(), s, keyOf(p), "a", "b")
	require.NoError(t, err)
	rev, err := s.versioner.ParseResourceVersion(changed.ResourceVersion)
	require.NoError(t, err)
	future := watchFrom(t, s, fmt.Sprint(rev+1))
	b.commit(t.Context())
	require.NoError(t, b.Projection.Retain(t.Context(), eventlog.Revision(rev), 0))
	require.Equal(t, "ERROR Expired", watchFrom(t, s, p.ResourceVersion).next())
	at := watchFrom(t, s, changed.ResourceVersion)
	first, err := relabel(t.Context(), s, keyOf(p), "a", "c")
	require.NoError(t, err)
	second, err := relabel(t.Context(), s, keyOf(p), "a", "d")
	require.NoError(t, err)
	at.expect("MODIFIED ns/a "+first.ResourceVersion, "MODIFIED ns/a "+second.ResourceVersion)
	require.Equal(t, "MODIFIED ns/a "+second.ResourceVersion, future.next())
}

// TestWatchSelectors: if a change makes an object match, or no longer match, the watch gets ADDED or DELETED, both from
// the past and from the feed (row 12).
func TestWatchSelectors(t *testing.T) {
	conn := eventlogtest.Start(t)
	for mode, step := range modes {
		t.Run(mode, func(t *testing.T) {
			b := newBed(t, conn, memory.Strict(t))
			s, step := newStore(b.Cell, pods(nil)), step(b)
			start, err := s.GetCurrentResourceVersion(t.Context())
			require.NoError(t, err)
			opts := storage.ListOptions{ResourceVersion: fmt.Sprint(start), Predicate: storage.SelectionPredicate{
				Label: labels.SelectorFromSet(labels.Set{"on": "yes"}), Field: fields.Everything(),
				GetAttrs: func(obj runtime.Object) (labels.Set, fields.Set, error) {
					return labels.Set{"on": strings.TrimSuffix(obj.(*example.Pod).Labels["on"], "!")}, nil, nil
				},
			}}
			live := record(t, s, opts)
			p := create(t, s, pod("ns", "a"))
			var want []string
			for _, c := range []struct {
				on    string
				event watch.EventType
			}{
				{"no", ""}, {"yes", watch.Added}, {"yes!", watch.Modified}, {"no", watch.Deleted}, {"never", ""},
				{"yes", watch.Added}, {"", watch.Deleted}, // deleted while it matches
			} {
				var out *example.Pod
				if c.on == "" {
					out, err = remove(t.Context(), s, keyOf(p))
				} else {
					out, err = relabel(t.Context(), s, keyOf(p), "on", c.on)
				}
				require.NoError(t, err)
				step(t.Context())
				if c.event != "" {
					want = append(want, fmt.Sprintf("%s ns/a %s", c.event, out.ResourceVersion))
				}
			}
			live.expect(want...)
			record(t, s, opts).expect(want...)
		})
	}
}

// TestWatchWithoutFeed: a function refuses watches.
func TestWatchWithoutFeed(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	c := b.Cell
	c.Feed = nil
	_, err := New(c, pods(nil)).Watch(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything})
	require.True(t, apierrors.IsMethodNotSupported(err), "%v", err)
}

// TestWatchEndsWithFeed: when the process stops following the log, its watches are closed and do not wait for ever.
func TestWatchEndsWithFeed(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	c := b.Cell
	c.Feed = fanout.NewFeed(b.Projection)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	s := newStore(c, pods(nil))
	w := watchFrom(t, s, "")
	go func() { ended <- c.Feed.Run(ctx) }()
	p := create(t, s, pod("ns", "a"))
	require.Equal(t, "ADDED ns/a "+p.ResourceVersion, w.next())
	stop()
	require.NoError(t, <-ended)
	require.Equal(t, "closed true", w.next())
	require.Equal(t, "closed true", watchFrom(t, s, p.ResourceVersion).next())
}

// TestWatchOverBrokenConnection: a process's connection to the log breaks again and again while another process purges
// the log. The process's watch neither loses nor repeats an event.
func TestWatchOverBrokenConnection(t *testing.T) {
	server := eventlogtest.Run(t, t.TempDir())
	b := newBed(t, eventlogtest.Connect(t, server), memory.Strict(t))
	conn, link := eventlogtest.ConnectThrough(t, server)
	far, err := eventlog.Open(t.Context(), eventlog.Config{Conn: conn, Stream: b.stream, Prefix: b.stream, InMemory: true})
	require.NoError(t, err)
	s := newStore(b.Cell, pods(nil))
	start, err := s.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	w := watchFrom(t, newStore(process(t, far, b.bucket), pods(nil)), fmt.Sprint(start))
	r := rand.New(rand.NewPCG(5, 6))
	for n := range 6 {
		before := history(t, s, r, 10, func(context.Context) {}, fmt.Sprintf("%da", n))
		link.Cut()
		cut := history(t, s, r, 10, b.purge, fmt.Sprintf("%db", n))
		link.Resume()
		want := append(before, cut...)
		w.expect(want...)
	}
}

// TestStopEnds: when the channel of a stopped watch is closed, the watch has left the feed.
func TestStopEnds(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	s := newStore(b.Cell, pods(nil))
	p := create(t, s, pod("ns", "a"))
	var watching []*recorder
	for range 50 {
		w := watchFrom(t, s, "")
		require.Equal(t, "ADDED ns/a "+p.ResourceVersion, w.next())
		watching = append(watching, w)
	}
	for _, w := range watching {
		w.Stop()
		require.Equal(t, "closed true", w.next())
	}
	require.Zero(t, s.Feed.Subscriptions(s.rowKey("/pods/")))
}
