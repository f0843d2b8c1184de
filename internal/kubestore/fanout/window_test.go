package fanout

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// testBytes is room for windowEvents events without bodies.
const testBytes = int64(windowEvents * (eventOverhead + 1))

// TestWindowHoldsWhatItSays: a watch that resumes at any revision of the window gets every change after it. The
// window's From says which events it has dropped.
func TestWindowHoldsWhatItSays(t *testing.T) {
	for _, c := range []struct {
		name         string
		changes      int
		bytes, apart int // the bytes of a change; the distance in revisions to the next change
	}{
		{"few", 10, 1, 1},
		{"as many as it may hold", windowEvents, 0, 1},
		{"one more", windowEvents + 1, 0, 1},
		{"many more", 2*windowEvents + 7, 0, 3},
		{"large ones", 200, int(testBytes / 20), 2},
		{"each larger than the window", 4, int(testBytes + 1), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			body, trims := bytes.Repeat([]byte("x"), c.bytes), 0
			w := Window{From: 3, To: 3}
			var added []eventlog.Revision // the revisions that the window claims to hold
			for i := range c.changes {
				rev, from := eventlog.Revision(4+i*c.apart), w.From
				w.add(newEvent("", eventlog.Event{Revision: rev, Write: eventlog.Write{Body: body}}), testBytes)
				added = append(added, rev)
				require.Equal(t, rev, w.To)
				if w.From == from && i+1 < c.changes {
					continue
				}
				trims++
				for len(added) > 0 && added[0] <= w.From {
					added = added[1:]
				}
				require.Equal(t, added, revisionsOf(w.After(w.From)), "the window says that it begins after %d", w.From)
				for _, at := range []int{0, len(added) / 2, len(added) - 1} {
					if len(added) > 0 {
						require.Equal(t, added[at+1:], revisionsOf(w.After(added[at])), "after %d", added[at])
					}
				}
			}
			require.LessOrEqual(t, len(w.events), windowEvents)
			require.LessOrEqual(t, w.bytes, testBytes)
			require.Positive(t, trims)
		})
	}
}

// TestEventsTakeWhatTheyCount: an event that came from the log takes as much memory as the window counts, within a
// fifth.
func TestEventsTakeWhatTheyCount(t *testing.T) {
	conn := eventlogtest.Start(t)
	require.NoError(t, eventlog.Create(t.Context(), eventlog.Config{Conn: conn}))
	log, err := eventlog.Open(t.Context(), eventlog.Config{Conn: conn})
	require.NoError(t, err)
	const n = 1000
	for i := range n {
		_, err := log.Append(t.Context(), eventlog.Basis{}, fmt.Sprintf("9ad1ec07-a3f1-4f3c-8a3e-%012d", i), eventlog.Write{
			Key: eventlog.Key{Cluster: "main", Resource: "configmaps", Prefix: "/configmaps", Namespace: "default", Name: fmt.Sprint("a-name-", i)},
			Op:  eventlog.Added, ContentType: "application/cbor", Body: make([]byte, 1000),
		})
		require.NoError(t, err)
	}
	enough := errors.New("enough")
	read := func() (w Window) {
		require.ErrorIs(t, log.Follow(t.Context(), eventlog.Position{}, func(b eventlog.Batch) error {
			for _, e := range b {
				w.add(newEvent("", e), 1<<30)
			}
			if len(w.events) == n {
				return enough
			}
			return nil
		}), enough)
		return w
	}
	kept := []Window{read()} // the log's server caches the events that it has read
	before := heap()
	kept = append(kept, read())
	require.InEpsilon(t, heap()-before, kept[1].bytes, 0.2)
	runtime.KeepAlive(kept)
}

// heap returns the memory of all objects that are reachable.
func heap() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

func revisionsOf(events []*Event) []eventlog.Revision {
	revisions := make([]eventlog.Revision, len(events))
	for i, e := range events {
		revisions[i] = e.Revision
	}
	return revisions
}
