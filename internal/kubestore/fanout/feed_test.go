package fanout

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
)

// TestFeedFarBehind: a feed that was cut off for long never gathers more events than a window holds. Such a feed
// delivers nothing, so that each watch reads the missed events by itself, and the feed's new window is the newest past.
func TestFeedFarBehind(t *testing.T) {
	const share = 100 << 10 // bytes of a window
	for _, c := range []struct {
		name         string
		events, body int
		behind       bool
	}{
		{"few events", 10, 0, false},
		{"more events", windowEvents, 0, true},
		{"more bytes", 10, share / 5, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := t.Context()
			log := eventlogtest.Open(t, eventlog.Config{Conn: eventlogtest.Start(t), InMemory: true})
			budget := cache.NewBudget(windowShares * share)
			p, err := projection.Open(projection.Config{Log: log, Bucket: memory.Strict(t), Budget: budget})
			require.NoError(t, err)
			written, body := 0, bytes.Repeat([]byte("x"), c.body)
			write := func(n int) *projection.View {
				var writes []eventlog.Write
				for range n {
					key := eventlog.Key{Cluster: "main", Resource: "pods", Prefix: "/pods", Namespace: "ns", Name: fmt.Sprint(written)}
					writes = append(writes, eventlog.Write{Key: key, Op: eventlog.Added, ContentType: "text/plain", Body: body})
					written++
				}
				_, err := log.Append(ctx, eventlog.Basis{}, fmt.Sprint("until-", written), writes...)
				require.NoError(t, err)
				v, err := p.Latest(ctx)
				require.NoError(t, err)
				return v
			}
			feed := NewFeed(p)
			v := write(1)
			feed.Start(feed.past(ctx, v))
			sub := &Subscription{Keys: projection.Keys{Start: "main/pods/", End: projection.PrefixEnd("main/pods/")}}
			feed.Join(sub)
			for left := c.events; left > 0; left -= 1000 {
				write(min(left, 1000))
			}
			_, err = p.Commit(ctx)
			require.NoError(t, err)
			v = write(1)
			require.Less(t, v.Applied(), v.Revision())

			err = feed.follow(ctx, v)
			if !c.behind {
				require.NoError(t, err)
				require.Len(t, sub.Queue(), c.events+1)
				require.Equal(t, v.Revision(), feed.window.To)
				return
			}
			require.ErrorIs(t, err, errBehind)
			require.Empty(t, sub.Queue())
			require.EqualValues(t, 1, feed.window.To)
			w := feed.past(ctx, v)
			require.Equal(t, v.Revision(), w.To)
			require.LessOrEqual(t, w.bytes, int64(share))
			require.Len(t, w.After(w.From), int(w.To-w.From), "events that the window says it has")
		})
	}
}

// TestSlowWatchHoldsLittle: a watch that falls behind by many bytes leaves the feed, keeps its queued events and has no
// gap. A watch that keeps up gets as many bytes and stays.
func TestSlowWatchHoldsLittle(t *testing.T) {
	log := eventlogtest.Open(t, eventlog.Config{Conn: eventlogtest.Start(t), InMemory: true})
	p, err := projection.Open(projection.Config{Log: log, Bucket: memory.Strict(t)})
	require.NoError(t, err)
	feed := NewFeed(p)
	feed.Start(Window{})
	slow, fast := &Subscription{Keys: projection.OneKey("main/pods/ns/a")}, &Subscription{Keys: projection.OneKey("main/pods/ns/a")}
	for _, s := range []*Subscription{slow, fast} {
		feed.Join(s)
		s.Done(nil)
	}
	const events = 20
	for rev := range eventlog.Revision(events) {
		key := eventlog.Key{Cluster: "main", Resource: "pods", Prefix: "/pods", Namespace: "ns", Name: "a"}
		e := eventlog.Event{Write: eventlog.Write{Key: key, Op: eventlog.Modified, Body: make([]byte, 1<<20)}, Revision: rev + 1}
		feed.Deliver([]*Event{NewPast(e)}, e.Revision)
		d := <-fast.Queue()
		require.Equal(t, e.Revision, d.Event.Revision)
		fast.Done(d)
	}
	var got eventlog.Revision
	for d := range slow.Queue() {
		got++
		require.Equal(t, got, d.Event.Revision)
	}
	require.EqualValues(t, queueBytes>>20-1, got, "each event has a little more than its body")
	require.Equal(t, got, slow.Complete())
	require.Equal(t, 1, feed.Subscriptions("main/pods/ns/a"))
}
