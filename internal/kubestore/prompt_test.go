package kubestore

import (
	"context"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/kubestore/fanout"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// startStepped returns a store with one pod. When deliver is called, the store's feed delivers at once everything that
// was written before the call.
func startStepped(t *testing.T) (s *store, p *example.Pod, deliver func()) {
	t.Helper()
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	cell := b.Cell
	cell.Feed = fanout.NewFeed(b.Projection)
	s = newStore(cell, pods(nil))
	p = create(t, s, pod("ns", "a"))
	head := b.Projection.Current().Revision()
	cell.Feed.Start(fanout.Window{From: head, To: head})
	return s, p, func() {
		t.Helper()
		v, err := b.Projection.Latest(t.Context())
		require.NoError(t, err)
		var events []*fanout.Event
		for e, err := range v.EventsOf(t.Context(), projection.Keys{}, head, v.Revision()) {
			require.NoError(t, err)
			events = append(events, fanout.NewPast(e))
		}
		head = v.Revision()
		cell.Feed.Deliver(events, head)
	}
}

// TestPromptWatches: an event for many idle watches reaches the readers of these watches before the feed continues. No
// goroutine is woken in between.
func TestPromptWatches(t *testing.T) {
	s, p, deliver := startStepped(t)
	const watches = 200
	var all []*recorder
	for range watches {
		all = append(all, watchFrom(t, s, p.ResourceVersion))
	}
	waitForMembers(t, s, watches)
	tries := 0
	eventlogtest.Eventually(t, "a change is with all readers at once", func() bool { // at first, watches are still starting
		tries++
		_, err := relabel(t.Context(), s, keyOf(p), "n", strconv.Itoa(tries))
		require.NoError(t, err)
		deliver()
		prompt := 0
		for _, w := range all {
			prompt += len(w.ResultChan())
		}
		for _, w := range all {
			w.next()
		}
		return prompt == watches
	})
}

// TestManyWatchesInOrder: many watches, some with slow readers, get small and large changes, each change once and in
// order. This is true for each way in which a change reaches a watch.
func TestManyWatchesInOrder(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	s := newStore(b.Cell, pods(nil))
	p := create(t, s, pod("ns", "a"))
	const watches, changes = 20, 600
	large := strings.Repeat("x", 70<<10)
	written := make([]chan struct{}, changes)
	for i := range written {
		written[i] = make(chan struct{})
	}
	var reading sync.WaitGroup
	for n := range watches {
		w := watchFrom(t, s, p.ResourceVersion)
		rng := rand.New(rand.NewPCG(uint64(n), 1))
		reading.Go(func() {
			for i := range changes {
				if n%2 == 0 && rng.IntN(40) == 0 { // the reader falls behind
					<-written[min(i+rng.IntN(150), changes-1)]
				}
				e, open := <-w.ResultChan()
				if !open {
					t.Errorf("watch %d ended before change %d", n, i)
					return
				}
				got := e.Object.(interface{ GetLabels() map[string]string }).GetLabels()["n"]
				if got != strconv.Itoa(i) {
					t.Errorf("change %s came to watch %d in place of %d", got, n, i)
					return
				}
			}
		})
	}
	for i := range changes {
		update := func(o runtime.Object) (runtime.Object, error) {
			p := o.(*example.Pod)
			p.Labels, p.Annotations = map[string]string{"n": strconv.Itoa(i)}, nil
			if i%7 == 0 {
				p.Annotations = map[string]string{"large": large}
			}
			return p, nil
		}
		require.NoError(t, s.GuaranteedUpdate(t.Context(), keyOf(p), &example.Pod{}, false, nil, storage.SimpleUpdate(update), nil))
		close(written[i])
	}
	reading.Wait()
}

// TestLargeEventsWaitAlone: a watch with a slow reader holds one large event, or small events that together are no
// larger. An event counts until the reader has encoded it, since the client may not have received it before.
func TestLargeEventsWaitAlone(t *testing.T) {
	for _, size := range []int{bufferedBytes + 1, bufferedBytes/2 + 1, bufferedBytes / 8, 1} {
		synctest.Test(t, func(t *testing.T) {
			w := &watcher{results: make(chan watch.Event, bufferedEvents), encodes: true}
			ctx, cancel := context.WithCancel(t.Context())
			sent := 0
			var sending sync.WaitGroup
			sending.Go(func() {
				for w.send(ctx, watch.Event{Type: watch.Added, Object: pod("ns", "a")}, size) == nil {
					sent++
				}
			})
			synctest.Wait()
			fit := min(bufferedBytes/size+1, bufferedEvents)
			require.Len(t, w.results, fit)
			held := sent
			for range fit {
				e := <-w.results
				synctest.Wait()
				shared, announced := e.Object.(runtime.CacheableObject)
				if !announced {
					continue
				}
				require.Equal(t, held, sent, "the next one waits for this one to be encoded")
				encode := func(o runtime.Object, _ io.Writer) error { require.Equal(t, pod("ns", "a"), o); return nil }
				require.NoError(t, shared.CacheEncode("id", encode, nil))
				synctest.Wait()
				require.Greater(t, sent, held)
			}
			cancel()
			sending.Wait()
		})
	}
}
