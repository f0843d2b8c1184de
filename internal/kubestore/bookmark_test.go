package kubestore

import (
	"context"
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

// TestBookmarkInterval: who asked for bookmarks hears of the head every minute, and shortly before the
// request's end; who did not hears nothing. Time is the test's, so nobody reads the log: the head is set.
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
