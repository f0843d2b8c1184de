package kubestore

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// TestWindowHoldsWhatItSays: a watch that resumes at any revision of the window gets every change after it, whatever
// the window has let go: the window says so itself, by where it begins.
func TestWindowHoldsWhatItSays(t *testing.T) {
	for _, c := range []struct {
		name         string
		changes      int
		bytes, apart int // of one change; revisions from one to the next
	}{
		{"few", 10, 1, 1},
		{"as many as it may hold", windowEvents, 0, 1},
		{"one more", windowEvents + 1, 0, 1},
		{"many more", 2*windowEvents + 7, 0, 3},
		{"large ones", 200, windowBytes / 20, 2},
		{"each larger than the window", 4, windowBytes + 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			body, trims := bytes.Repeat([]byte("x"), c.bytes), 0
			w := window{from: 3, to: 3}
			var added []eventlog.Revision // those that the window says it holds
			for i := range c.changes {
				rev, from := eventlog.Revision(4+i*c.apart), w.from
				w.add(&change{Event: eventlog.Event{Revision: rev, Write: eventlog.Write{Body: body}}})
				added = append(added, rev)
				require.Equal(t, rev, w.to)
				if w.from == from && i+1 < c.changes {
					continue
				}
				trims++
				for len(added) > 0 && added[0] <= w.from {
					added = added[1:]
				}
				require.Equal(t, added, revisionsOf(w.after(w.from)), "the window says that it begins after %d", w.from)
				for _, at := range []int{0, len(added) / 2, len(added) - 1} {
					if len(added) > 0 {
						require.Equal(t, added[at+1:], revisionsOf(w.after(added[at])), "after %d", added[at])
					}
				}
			}
			require.LessOrEqual(t, len(w.changes), windowEvents)
			require.Positive(t, trims)
		})
	}
}

func revisionsOf(changes []*change) []eventlog.Revision {
	revisions := make([]eventlog.Revision, len(changes))
	for i, c := range changes {
		revisions[i] = c.Revision
	}
	return revisions
}

// TestWindowOfANewProcess: a watch that comes back to a process that has just started misses nothing, from the floor
// on: not even the very first event after it.
func TestWindowOfANewProcess(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	s := newStore(b.Cell, pods(nil))
	floor := create(t, s, pod("ns", "a"))
	rev, err := s.versioner.ParseResourceVersion(floor.ResourceVersion)
	require.NoError(t, err)
	var want []string
	for _, name := range []string{"b", "c", "d"} {
		want = append(want, fmt.Sprintf("ADDED ns/%s %s", name, create(t, s, pod("ns", name)).ResourceVersion))
	}
	b.commit(t.Context())
	require.NoError(t, b.Projection.Retain(t.Context(), eventlog.Revision(rev), 0))

	fresh := newStore(process(t, b.Log, b.bucket), pods(nil))
	watchFrom(t, fresh, floor.ResourceVersion).expect(want...)
	last := create(t, s, pod("ns", "last"))
	watchFrom(t, fresh, floor.ResourceVersion).expect(append(want, "ADDED ns/last "+last.ResourceVersion)...)
}

// TestEndComesBehindWhatWaits: a process that stops sends each watch what it has for it, and only then the last
// bookmark: a client goes on elsewhere from the bookmark's revision.
func TestEndComesBehindWhatWaits(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	s := newStore(b.Cell, pods(nil))
	first := create(t, s, pod("ns", "first"))
	end := make(chan struct{})
	opts := storage.ListOptions{ResourceVersion: first.ResourceVersion, Recursive: true, Predicate: storage.Everything}
	opts.Predicate.AllowWatchBookmarks = true
	w, err := s.Watch(WithEnd(t.Context(), end), "/pods", opts)
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	waitForMembers(t, s, 1)
	var want []string
	for i := range bufferedEvents + bufferedChanges/2 { // more than the reader's buffer, and less than makes the watch fall out
		want = append(want, fmt.Sprintf("ADDED ns/p%d %s", i, create(t, s, pod("ns", fmt.Sprint("p", i))).ResourceVersion))
	}
	head, err := s.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	eventlogtest.Eventually(t, "the feed has reached the last of them", func() bool {
		s.Feed.mu.Lock()
		defer s.Feed.mu.Unlock()
		return uint64(s.Feed.window.to) == head
	})
	close(end)
	(&recorder{t: t, Interface: w}).expect(append(want, fmt.Sprintf("BOOKMARK / %d", head), "closed true")...)
}
