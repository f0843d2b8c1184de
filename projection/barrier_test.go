package projection

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// onThreeServers is a cell whose log three servers keep. Its second projection is connected to another server.
func onThreeServers(t testing.TB) (c *cell, other *Projection) {
	servers := eventlogtest.Cluster(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	c = &cell{t: t, ctx: ctx, bucket: memory.Strict(t), last: map[string]lastEvent{}, log: servers.Log(1)}
	other = c.another()
	c.log = servers.Log(0)
	c.Projection = c.another()
	return c, other
}

// asked is how many requests of each kind this process has sent to logs.
func asked(t testing.TB) map[string]float64 {
	registry := prometheus.NewRegistry()
	registry.MustRegister(eventlog.Collectors()...)
	families, err := registry.Gather()
	require.NoError(t, err)
	counts := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "logplane_log_round_trips_total" {
				counts[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	return counts
}

// TestExactReadsAreOneRoundTrip: on three servers, an exact read that follows another one sends its barrier and nothing
// else. It does not read its own barriers, and asks for the first revision once a second.
func TestExactReadsAreOneRoundTrip(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a cluster")
	}
	c, other := onThreeServers(t)
	c.put("a", "1")
	c.latest()
	before, began, last := asked(t), time.Now(), c.latest().Revision()
	const reads = 200
	for range reads {
		v := c.latest()
		require.Greater(t, v.Revision(), last)
		last = v.Revision()
		require.Equal(t, "1", value(t, c, v, "a"))
	}
	after, seconds := asked(t), time.Since(began).Seconds()
	require.EqualValues(t, reads+1, after["barrier"]-before["barrier"])
	if seconds < 10 { // each read is then younger than electionTime
		require.LessOrEqual(t, after["tail"]-before["tail"], 1.0)
	}
	require.LessOrEqual(t, after["head"]-before["head"], 2+seconds)

	// A write of another process can be read at once, also between barriers.
	theirs, err := other.Latest(c.ctx)
	require.NoError(t, err)
	for i := range 20 {
		c.latest()
		at, err := theirs.State(c.ctx, podKey("b"))
		require.NoError(t, err)
		rev, err := theirs.Append(c.ctx, fmt.Sprint("theirs", i), at.Put("text/plain", fmt.Append(nil, i), 0))
		require.NoError(t, err)
		for range 3 {
			v := c.latest()
			require.Greater(t, v.Revision(), rev)
			require.Equal(t, fmt.Sprint(i), value(t, c, v, "b"))
		}
		theirs, err = other.AtLeast(c.ctx, c.latest().Revision()) // whose barrier this process has not read
		require.NoError(t, err)
	}

	// A commit has every event except barriers that were not read.
	c.latest() // reads the other process's barrier
	v := c.latest()
	require.Less(t, v.tail.at.Revision, v.Revision())
	applied, err := c.Commit(c.ctx)
	require.NoError(t, err)
	require.GreaterOrEqual(t, applied, v.tail.records[len(v.tail.records)-1].Revision)

	// A purge by another process may be unknown for a second. The first write of a purged key then fails once.
	require.NoError(t, c.Retain(c.ctx, applied, applied))
	require.NoError(t, other.config.Log.Purge(c.ctx, applied-1))
	refused := 0
	for {
		v := c.latest()
		at, err := v.State(c.ctx, podKey("a"))
		require.NoError(t, err)
		if _, err = v.Append(c.ctx, fmt.Sprint("purged", refused), at.Put("text/plain", []byte("2"), 0)); err == nil {
			break
		}
		require.ErrorIs(t, err, eventlog.ErrConflict)
		refused++
		require.LessOrEqual(t, refused, 1)
	}
	require.Equal(t, "2", value(t, c, c.latest(), "a"))
}

func value(t testing.TB, c *cell, v *View, name string) string {
	row, ok, err := v.Get(c.ctx, podKey(name).RowKey(), v.Revision())
	require.NoError(t, err)
	require.True(t, ok)
	return string(row.Value)
}

// TestOldViewReadsItsBarriers: once a view is as old as the time that an election takes, the process does not assume
// that the view lacks only a barrier.
func TestOldViewReadsItsBarriers(t *testing.T) {
	quiet(t)
	c := newCell(t)
	c.put("a", "1")
	v := *c.latest()
	next := eventlog.Bounds{Head: v.Revision() + 1, Barrier: true}
	require.True(t, v.lacksOnlyBarrier(next))
	require.False(t, v.lacksOnlyBarrier(eventlog.Bounds{Head: next.Head}))
	require.False(t, v.lacksOnlyBarrier(eventlog.Bounds{Head: next.Head + 1, Barrier: true}))
	v.asked = time.Now().Add(-electionTime)
	require.False(t, v.lacksOnlyBarrier(next))
}

// TestBarrierThatIsAnotherEvent: if the log went back, another event may have the revision of a barrier that was not
// read. The process notices as soon as it reads that event (invariant 9).
func TestBarrierThatIsAnotherEvent(t *testing.T) {
	quiet(t)
	c := newCell(t)
	c.put("a", "1")
	v := c.latest()
	require.NotNil(t, c.reached(eventlog.Bounds{First: 1, Head: v.Revision() + 1, Barrier: true}, time.Now()))
	require.Equal(t, v.Revision()+1, c.Projection.view.Load().Revision())
	byRoot := c.another()
	_, err := byRoot.Latest(c.ctx)
	require.NoError(t, err)
	require.NotNil(t, byRoot.reached(eventlog.Bounds{First: 1, Head: v.Revision() + 1, Barrier: true}, time.Now()))

	c.put("a", "2") // where these processes know a barrier
	c.put("a", "3")
	_, err = c.Latest(c.ctx)
	require.ErrorIs(t, err, eventlog.ErrDiverged)

	_, err = c.another().Commit(c.ctx)
	require.NoError(t, err)
	_, err = byRoot.reload(c.ctx)
	require.ErrorIs(t, err, eventlog.ErrDiverged)
}

func BenchmarkExactRead(b *testing.B) {
	c, _ := onThreeServers(b)
	c.put("a", "1")
	c.latest()
	b.Run("alone", func(b *testing.B) {
		for b.Loop() {
			if _, err := c.Latest(c.ctx); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("16 at once", func(b *testing.B) {
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := c.Latest(c.ctx); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}
