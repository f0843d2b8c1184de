package kubestore

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/kubestore/fanout"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// TestWindowOfANewProcess: a watch that resumes at the floor, on a process that has just started, misses nothing, not
// even the first event after the floor.
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

// TestWatchOfAProcessThatWasCutOff: a process cannot reach the log, and meanwhile the snapshot gains more events than a
// window holds. The process's watch still gets every change.
func TestWatchOfAProcessThatWasCutOff(t *testing.T) {
	server := eventlogtest.Run(t, t.TempDir())
	b := newBed(t, eventlogtest.Connect(t, server), memory.Strict(t))
	s := newStore(b.Cell, pods(nil))
	conn, link := eventlogtest.ConnectThrough(t, server)
	config := eventlog.Config{Conn: conn, Stream: b.stream, Prefix: b.stream, InMemory: true}
	cutOff := newStore(process(t, eventlogtest.Open(t, config), b.bucket), pods(nil))
	first := create(t, s, pod("ns", "first"))
	w := watchFrom(t, cutOff, first.ResourceVersion)
	var want []string
	add := func(name string) {
		want = append(want, fmt.Sprintf("ADDED ns/%s %s", name, create(t, s, pod("ns", name)).ResourceVersion))
	}
	add("before")
	w.expect(want...)
	want = nil
	link.Cut()
	add("early")
	for n := range 20 {
		var steps []eventlog.Write
		for i := range 1000 {
			key := eventlog.Key{Cluster: "main", Resource: "steps", Prefix: "/steps", Name: fmt.Sprintf("%d-%d", n, i)}
			steps = append(steps, eventlog.Write{Key: key, Op: eventlog.Added, ContentType: "text/plain"})
		}
		_, err := b.Log.Append(t.Context(), eventlog.Basis{}, fmt.Sprint("steps-", n), steps...)
		require.NoError(t, err)
	}
	add("late")
	b.purge(t.Context())
	link.Resume()
	add("after")
	w.expect(want...)
}

// TestEndComesBehindWhatWaits: a process that stops sends each watch its waiting events, and only then the last
// bookmark, since the client resumes elsewhere from the bookmark's revision.
func TestEndComesBehindWhatWaits(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	s := newStore(b.Cell, pods(nil))
	first := create(t, s, pod("ns", "first"))
	end := make(chan struct{})
	opts := storage.ListOptions{ResourceVersion: first.ResourceVersion, Recursive: true, Predicate: storage.Everything}
	opts.Predicate.AllowWatchBookmarks = true
	w, err := s.Watch(withEnd(t.Context(), end), "/pods", opts)
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	follower := watchFrom(t, s, first.ResourceVersion)
	waitForMembers(t, s, 2)
	var want []string
	for i := range bufferedEvents + fanout.QueueLength/2 { // too few for the watch to leave the feed
		want = append(want, fmt.Sprintf("ADDED ns/p%d %s", i, create(t, s, pod("ns", fmt.Sprint("p", i))).ResourceVersion))
	}
	head, err := s.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	follower.expect(want...) // so the feed has delivered the last of them
	close(end)
	(&recorder{t: t, Interface: w}).expect(append(want, fmt.Sprintf("BOOKMARK / %d", head), "closed true")...)
}
