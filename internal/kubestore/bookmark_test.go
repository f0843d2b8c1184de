package kubestore

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/kubestore/fanout"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// TestBookmarkInterval: a watch that asked for bookmarks gets the head every minute, and shortly before the request's
// end. A watch that did not ask for bookmarks gets none. The time is synthetic, so nothing reads the log and the head
// is set by the test.
func TestBookmarkInterval(t *testing.T) {
	cell := newBed(t, eventlogtest.Start(t), memory.Strict(t)).Cell
	synctest.Test(t, func(t *testing.T) {
		cell.Feed = fanout.NewFeed(cell.Projection)
		cell.Feed.Start(fanout.Window{From: 7, To: 7})
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Second)
		defer cancel()
		follow := func(bookmarks bool) watch.Interface {
			all := storage.Everything
			all.AllowWatchBookmarks = bookmarks
			w, err := newStore(cell, pods(nil)).Watch(ctx, "/pods/", storage.ListOptions{ResourceVersion: "7", Recursive: true, Predicate: all})
			require.NoError(t, err)
			return w
		}
		asked, silent := follow(true), follow(false)
		for i, at := range []time.Duration{time.Minute, 2 * time.Minute, 148 * time.Second} {
			head := uint64(8 + i)
			cell.Feed.Deliver(nil, eventlog.Revision(head))
			e := <-asked.ResultChan()
			require.Equal(t, watch.Bookmark, e.Type)
			require.Equal(t, at, time.Since(start))
			about, err := meta.Accessor(e.Object)
			require.NoError(t, err)
			rev, err := storage.APIObjectVersioner{}.ParseResourceVersion(about.GetResourceVersion())
			require.NoError(t, err)
			require.Equal(t, head, rev)
		}
		for range silent.ResultChan() {
			t.Error("an event that nobody asked for")
		}
		require.Equal(t, 150*time.Second, time.Since(start))
	})
}

// A watch that leaves the feed and joins it again, because more events come at once than its queue holds, gets
// bookmarks as often as any other watch.
func TestBookmarksOfAWatchThatRejoins(t *testing.T) {
	cell := newBed(t, eventlogtest.Start(t), memory.Strict(t)).Cell
	synctest.Test(t, func(t *testing.T) {
		cell.Feed = fanout.NewFeed(cell.Projection)
		cell.Feed.Start(fanout.Window{From: 7, To: 7})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		all := storage.Everything
		all.AllowWatchBookmarks = true
		w, err := newStore(cell, pods(nil)).Watch(ctx, "/pods/", storage.ListOptions{ResourceVersion: "7", Recursive: true, Predicate: all})
		require.NoError(t, err)
		var writing sync.WaitGroup
		writing.Go(func() {
			key := eventlog.Key{Cluster: "main", Resource: "pods", Prefix: "/pods", Namespace: "ns", Name: "a"}
			for rev := eventlog.Revision(8); ctx.Err() == nil; {
				var burst []*fanout.Event
				for range 1000 { // events of an object that the watch does not cover
					e := eventlog.Event{Write: eventlog.Write{Key: key, Op: eventlog.Modified, ContentType: "text/plain"}, Revision: rev}
					burst = append(burst, fanout.NewPast(e))
					rev++
				}
				cell.Feed.Deliver(burst, rev-1)
				select {
				case <-time.After(25 * time.Second):
				case <-ctx.Done():
				}
			}
		})
		bookmarks := 0
		for e := range w.ResultChan() {
			require.Equal(t, watch.Bookmark, e.Type)
			bookmarks++
		}
		writing.Wait()
		require.GreaterOrEqual(t, bookmarks, 7) // a burst at the same time may cost one bookmark
	})
}
