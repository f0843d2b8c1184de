package projection

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// TestALogThatWentBackIsNoticed: if the log lost its end, or has another event in place of a remembered event, every
// later call fails (invariant 9): on a warm reader, on a warm projector and at a cold start.
func TestALogThatWentBackIsNoticed(t *testing.T) {
	for _, more := range []int{0, 3, 4, 9} { // events in the replaced log; the original had 4
		t.Run(fmt.Sprint(more, " events"), func(t *testing.T) {
			c := newCell(t)
			for i := range 4 {
				c.put(fmt.Sprint("n", i), "1")
			}
			c.latest()
			projector := c.another()
			_, err := projector.Commit(c.ctx)
			require.NoError(t, err)

			conn := eventlogtest.Start(t)
			other := eventlogtest.Open(t, eventlog.Config{Conn: conn, InMemory: true})
			c.log, c.last = other, map[string]lastEvent{}
			for i := range more {
				c.n += 100
				c.put(fmt.Sprint("n", i), "2")
			}
			for name, p := range map[string]*Projection{"warm": c.Projection, "projector": projector, "cold": c.another()} {
				if p.view.Load() != nil {
					p.config.Log = other
				}
				if name != "cold" && more == 4 {
					continue // nothing was added, so nothing is read, and only known state can be served
				}
				for range 2 {
					_, err := p.Latest(c.ctx)
					require.ErrorIs(t, err, eventlog.ErrDiverged, name)
				}
				_, err = p.Commit(c.ctx)
				require.ErrorIs(t, err, eventlog.ErrDiverged, name)
				_, err = p.Any(c.ctx)
				require.ErrorIs(t, err, eventlog.ErrDiverged, name)
				_, err = p.AtLeast(c.ctx, 1)
				require.ErrorIs(t, err, eventlog.ErrDiverged, name)
			}
		})
	}
}

// TestFollowersAreToldOfALogThatWentBack: all followers end at once, whichever call noticed the log's change, although
// no event comes. One follower reads the log for the others, and one waits for its turn to read.
func TestFollowersAreToldOfALogThatWentBack(t *testing.T) {
	c := newCell(t)
	c.put("a", "1")
	v := c.latest()
	ended := make(chan error, 2)
	for range cap(ended) {
		go func() {
			ended <- c.Follow(c.ctx, v.Revision(), func(context.Context, *View) error { return nil })
		}()
	}
	eventlogtest.Eventually(t, "one reads the log", func() bool { return len(c.following) == 1 })
	other := *v.tail.records[0]
	other.RequestID = "of another log"
	inBatches(c.Projection, other.Event)
	for range cap(ended) {
		require.ErrorIs(t, <-ended, eventlog.ErrDiverged)
	}
	require.ErrorIs(t, c.Follow(c.ctx, v.Revision(), func(context.Context, *View) error { return nil }), eventlog.ErrDiverged)
}

func TestAnEmptyBucketNeedsTheWholeLog(t *testing.T) {
	c := newCell(t)
	c.put("a", "1")
	c.put("a", "2")
	c.commit()
	require.NoError(t, c.Retain(c.ctx, 0, 1))
	lost := c.over(memory.New())
	_, err := lost.Latest(c.ctx)
	require.ErrorIs(t, err, ErrNoRoot)
	require.Nil(t, lost.Current())
	_, err = lost.Commit(c.ctx)
	require.ErrorIs(t, err, ErrNoRoot)
	require.Contains(t, err.Error(), "logplane/root")
}

// TestAFoundedCellHasARoot: a wrong bucket does not adopt a log that still has its beginning.
func TestAFoundedCellHasARoot(t *testing.T) {
	c := newCell(t)
	c.put("a", "1")
	c.commit()
	b := memory.New()
	wrong, right := c.over(b), c.over(c.bucket)
	for _, p := range []*Projection{wrong, right} {
		p.config.Founded = true
	}
	_, err := wrong.Latest(c.ctx)
	require.ErrorIs(t, err, ErrNoRoot)
	_, err = wrong.Commit(c.ctx)
	require.ErrorIs(t, err, ErrNoRoot)
	_, _, err = b.Get(c.ctx, wrong.rootKey())
	require.ErrorIs(t, err, bucket.ErrNotFound)
	_, err = right.Latest(c.ctx)
	require.NoError(t, err)
}

func TestALogPurgedPastTheRootIsAnError(t *testing.T) {
	c := newCell(t)
	c.put("a", "1")
	c.commit()
	for i := range 5 {
		c.put("a", fmt.Sprint(i))
	}
	require.NoError(t, c.log.Purge(c.ctx, 3)) // no process purges so much
	_, err := c.another().Latest(c.ctx)
	require.ErrorIs(t, err, ErrHole)
}

func TestAnEmptiedBucketIsAnError(t *testing.T) {
	c := newCell(t)
	c.put("a", "1")
	c.commit()
	c.config.Bucket = memory.New()
	_, err := c.reload(c.ctx)
	require.ErrorIs(t, err, errRootGone)
}

// TestDamageIsNamed: a damaged byte anywhere in the bucket gives an error that names the object, and never a wrong
// answer.
func TestDamageIsNamed(t *testing.T) {
	c := newCell(t, func(c *Config) { c.InlineBytes = 1 })
	for i := range 8 {
		c.put(fmt.Sprint("n", i%4), strings.Repeat("x", 50))
		if i%4 == 3 {
			c.commit()
		}
	}
	good, err := state(c.ctx, c.latest(), c.latest().Revision())
	require.NoError(t, err)
	for key, body := range objects(t, c) {
		for i := 0; i < len(body); i += 3 {
			damaged := memory.New()
			for k, b := range objects(t, c) {
				if k == key {
					b[i] ^= 0x10
				}
				_, err := damaged.Create(c.ctx, k, b)
				require.NoError(t, err)
			}
			problems := 0
			_, err := c.over(damaged).Verify(c.ctx, func(problem error) {
				problems++
				require.Contains(t, problem.Error(), key)
			})
			require.True(t, err != nil || problems > 0, "byte %d of %s", i, key)
			v, err := c.over(damaged).Latest(c.ctx)
			var got map[string]string
			if err == nil {
				got, err = state(c.ctx, v, v.Revision())
			}
			if err == nil {
				require.Equal(t, good, got)
			} else if !strings.Contains(err.Error(), "root") {
				require.Contains(t, err.Error(), key)
			}
		}
	}
}

func objects(t *testing.T, c *cell) map[string][]byte {
	out := map[string][]byte{}
	for key := range keysOf(t, c) {
		body, _, err := c.bucket.Get(c.ctx, key)
		require.NoError(t, err)
		out[key] = body
	}
	return out
}

// TestReadersSurviveACollectedSegment: if a segment disappears during a read, the reader reads the root again
// (invariant 7).
func TestReadersSurviveACollectedSegment(t *testing.T) {
	c := newCell(t, func(c *Config) { c.InlineBytes = 1 })
	for i := range 6 {
		c.put(fmt.Sprint("n", i), strings.Repeat("x", 100))
		c.commit()
	}
	c.bucket.Inject(nil)
	cold := c.over(lax{c.bucket})
	v, err := cold.Latest(c.ctx)
	require.NoError(t, err)
	var got []string
	for row, err := range v.Scan(c.ctx, "", "", v.Revision()) {
		require.NoError(t, err)
		got = append(got, row.ID.Name)
		if len(got) == 2 {
			rewrite(t, c, cold)
		}
	}
	require.Equal(t, []string{"n0", "n1", "n2", "n3", "n4", "n5"}, got)
}

// TestAtLeastWaits: AtLeast waits for an event that comes, shares the wait with other callers, and returns ErrFuture if
// no event comes.
func TestAtLeastWaits(t *testing.T) {
	c := newCell(t)
	rev := c.put("a", "1")
	v, err := c.AtLeast(c.ctx, rev)
	require.NoError(t, err)
	require.Equal(t, rev, v.Revision())
	var waiting sync.WaitGroup
	for range 8 {
		waiting.Go(func() {
			v, err := c.AtLeast(c.ctx, rev+2)
			if err != nil || v.Revision() < rev+2 {
				t.Errorf("%v", err)
			}
		})
	}
	c.put("a", "2")
	c.put("a", "3")
	waiting.Wait()
	short, cancel := context.WithTimeout(c.ctx, 50*time.Millisecond)
	defer cancel()
	_, err = c.AtLeast(short, rev+1000)
	require.ErrorIs(t, err, ErrFuture)
}

func TestLearnSparesTheTailRead(t *testing.T) {
	c := newCell(t)
	c.latest()
	a, b := c.put("a", "1"), c.put("b", "2")
	var events []eventlog.Event
	require.NoError(t, c.log.Tail(c.ctx, 0, b, func(e eventlog.Event) error { events = append(events, e); return nil }))
	inBatches(c.Projection, events[1]) // not the next one
	require.Zero(t, c.Current().Revision())
	inBatches(c.Projection, events...)
	inBatches(c.Projection, events...)
	require.Equal(t, b, c.Current().Revision())
	row, ok, err := c.Current().Get(c.ctx, podKey("a").RowKey(), b)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, a, row.Revision)
	select {
	case <-c.Current().superseded:
		t.Error("the newest view is not superseded")
	default:
	}
}

// TestFarBehindReadsTheRootFirst: a function that is far behind reads the root, and not the tail that the root covers.
func TestFarBehindReadsTheRootFirst(t *testing.T) {
	c := newCell(t)
	c.put("a", "0")
	behind := c.another()
	_, err := behind.Latest(c.ctx)
	require.NoError(t, err)
	big := strings.Repeat("x", 64<<10)
	for i := range 80 { // 5 MiB
		c.put("a", fmt.Sprint(i, big))
	}
	c.commit()
	last := c.put("a", "last")
	v, err := behind.Latest(c.ctx)
	require.NoError(t, err)
	require.Equal(t, last, v.Revision())
	require.Equal(t, last-1, v.Applied())
	require.Len(t, v.tail.records, 1)
}

// TestTailBehindALargeEvent: the last event of a root is read again to be compared. The events after that event must be
// read even if that event alone exceeds the bytes that one read may have before the root is read again.
func TestTailBehindALargeEvent(t *testing.T) {
	c := newCell(t)
	c.put("a", "1")
	c.put("large", strings.Repeat("x", behindBytes+1))
	c.commit()
	reader := c.another()
	_, err := reader.Latest(c.ctx)
	require.NoError(t, err)
	last := c.put("a", "2")
	v, err := reader.Latest(c.ctx)
	require.NoError(t, err)
	require.Equal(t, last, v.Revision())
}
