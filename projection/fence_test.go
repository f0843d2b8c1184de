package projection

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// onDisk is a cell whose log is in a folder that the test may replace.
func onDisk(t *testing.T, dir string) (*cell, *server.Server) {
	c := newCell(t)
	s := eventlogtest.Run(t, dir)
	c.conn = eventlogtest.Connect(t, s)
	c.log = eventlogtest.Open(t, eventlog.Config{Conn: c.conn})
	c.Projection = c.another()
	return c, s
}

// reopened is the same cell after a restart of all processes, with the log in the folder.
func (c *cell) reopened(dir string) (*cell, *server.Server) {
	s := eventlogtest.Run(c.t, dir)
	next := *c
	next.conn = eventlogtest.Connect(c.t, s)
	next.log = eventlogtest.Open(c.t, eventlog.Config{Conn: next.conn})
	next.Projection = next.another()
	return &next, s
}

// TestALostTailIsFenced rehearses invariant 9: the log's disk is lost, and an old copy is restored. Every process
// stops. After the fence, every object in the bucket's snapshot is there, and new revisions are above every revision
// that was ever seen. Older revisions have expired, so that clients list again.
func TestALostTailIsFenced(t *testing.T) {
	for _, inline := range []int{1, 0} {
		t.Run(fmt.Sprint("inline ", inline), func(t *testing.T) {
			small := func(c *Config) { c.InlineBytes = inline }
			dir, backup := t.TempDir(), t.TempDir()
			c, s := onDisk(t, dir)
			c.Projection = c.another(small)
			want := map[string]string{}
			put := func(name, value string) Revision {
				rev := c.put(name, value)
				want[name] = fmt.Sprintf("%s@%d", value, rev)
				return rev
			}
			for i := range 5 {
				put(fmt.Sprint("n", i), "before")
			}
			c.commit()
			s.Shutdown()
			s.WaitForShutdown()
			require.NoError(t, os.CopyFS(backup, os.DirFS(dir)))

			c, s = c.reopened(dir)
			c.Projection = c.another(small)
			for i := range 5 {
				put(fmt.Sprint("n", i+2), "after")
			}
			c.commit()
			seen := put("n9", "last")
			c.commit()
			s.Shutdown()
			s.WaitForShutdown()

			// The old copy's head is behind the root. Every call of every process fails.
			c, s = c.reopened(backup)
			for _, p := range []*Projection{c.another(), c.Projection} {
				_, err := p.Latest(c.ctx)
				require.ErrorIs(t, err, eventlog.ErrDiverged)
				_, err = p.Commit(c.ctx)
				require.ErrorIs(t, err, eventlog.ErrDiverged)
			}
			require.ErrorIs(t, c.another().Run(c.ctx, 1), eventlog.ErrDiverged)
			// A writer may even have appended blindly to this log, up to the root's revision. Then the event at that
			// revision reveals the old copy.
			blind := eventlogtest.Open(t, eventlog.Config{Conn: c.conn})
			for range 20 {
				_, err := blind.Append(c.ctx, eventlog.Basis{}, fmt.Sprint("blind-", c.n), eventlog.Write{Op: eventlog.Added, Key: podKey(fmt.Sprint("blind", c.n))})
				require.NoError(t, err)
				c.n++
			}
			_, err := c.another().Latest(c.ctx)
			require.ErrorIs(t, err, eventlog.ErrDiverged)

			c.log = eventlogtest.Open(t, eventlog.Config{Conn: c.conn}) // the operator's process
			operator := c.another()
			plan, err := operator.PlanFence(c.ctx, 0)
			require.NoError(t, err)
			require.ErrorIs(t, plan.Lost, eventlog.ErrDiverged)
			require.NoError(t, operator.Fence(c.ctx, plan))
			_, err = operator.Latest(c.ctx)
			require.ErrorIs(t, err, eventlog.ErrDiverged)

			c.log = eventlogtest.Open(t, eventlog.Config{Conn: c.conn})
			c.Projection = c.another(small)
			v := c.latest()
			got, err := state(c.ctx, v, v.Revision())
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.Equal(t, plan.To-1, v.Revision())
			_, _, err = v.Get(c.ctx, podKey("n9").RowKey(), seen)
			require.ErrorIs(t, err, ErrExpired)
			for _, err := range c.events(c.ctx, Keys{}, seen, v.Revision()) {
				require.ErrorIs(t, err, ErrExpired)
			}
			for name := range c.last { // writers ask the view, and ignore their memory
				pre, err := v.precondition(c.ctx, podKey(name))
				require.NoError(t, err)
				require.Zero(t, pre)
			}
			require.Greater(t, put("n1", "new"), seen)
			require.Greater(t, put("fresh", "new"), seen)
			c.commit()
			c.require(want)
			requireClean(t, c.another())
			require.EqualValues(t, plan.To, c.log.Epoch())
			_ = s
		})
	}
}

func requireClean(t testing.TB, p *Projection) {
	t.Helper()
	v, err := p.Verify(t.Context(), func(problem error) { t.Error(problem) })
	require.NoError(t, err)
	require.Zero(t, v.Foreign)
}

// TestOldEpochsEnd: a healthy log is folded before it is fenced, so that nothing is lost. A process from before the
// fence stops, and its late writes are void.
func TestOldEpochsEnd(t *testing.T) {
	quiet(t)
	c := newCell(t)
	c.put("a", "1")
	c.commit()
	c.put("b", "2")
	stale := eventlogtest.Open(t, eventlog.Config{Conn: c.conn, InMemory: true})
	old, err := Open(Config{Log: stale, Bucket: c.bucket})
	require.NoError(t, err)
	_, err = old.Latest(c.ctx)
	require.NoError(t, err)

	operator := c.another()
	plan, err := operator.PlanFence(c.ctx, 2*eventlog.FenceGap)
	require.NoError(t, err)
	require.NoError(t, plan.Lost)
	require.NoError(t, operator.Fence(c.ctx, plan))

	late := eventlog.Write{Op: eventlog.Added, Key: podKey("late"), Body: []byte("x")}
	_, err = stale.Append(c.ctx, eventlog.Basis{}, "late", late)
	require.ErrorIs(t, err, eventlog.ErrFenced)
	_, err = old.Latest(c.ctx)
	require.ErrorIs(t, err, eventlog.ErrFenced)
	require.ErrorIs(t, err, eventlog.ErrDiverged)
	_, err = old.Commit(c.ctx)
	require.ErrorIs(t, err, eventlog.ErrFenced)

	c.log = eventlogtest.Open(t, eventlog.Config{Conn: c.conn, InMemory: true})
	c.Projection = c.another()
	want := map[string]string{"a": "1@1", "b": "2@2"}
	for range 2 { // from the tail, and from the snapshot
		v := c.latest()
		got, err := state(c.ctx, v, v.Revision())
		require.NoError(t, err)
		require.Equal(t, want, got)
		rows, err := c.History(c.ctx, late.Key.RowKey())
		require.NoError(t, err)
		require.Len(t, rows, 1)
		require.True(t, rows[0].Void)
		for e, err := range c.events(c.ctx, Keys{}, v.Floor(), v.Revision()) {
			require.NoError(t, err)
			require.Fail(t, "a void event was delivered", e.RequestID)
		}
		c.commit()
	}
	requireClean(t, c.another())
}

// TestAFenceThatBreaksOff: if a fence stops after any step, the next fence completes it. Until then no process reads or
// writes.
func TestAFenceThatBreaksOff(t *testing.T) {
	for _, fate := range []memory.Fault{memory.Fails, memory.FailsButPersisted} {
		c := newCell(t)
		c.put("a", "1")
		c.commit()
		operator := c.another()
		plan, err := operator.PlanFence(c.ctx, 0)
		require.NoError(t, err)
		c.bucket.Inject(func(op memory.Op, _ string) memory.Fault {
			if op == memory.OpReplace {
				return fate
			}
			return memory.Works
		})
		err = operator.Fence(c.ctx, plan)
		c.bucket.Inject(nil)
		c.log = eventlogtest.Open(t, eventlog.Config{Conn: c.conn, InMemory: true})
		if fate == memory.Fails {
			require.Error(t, err)
			_, err = c.another().Latest(c.ctx)
			require.ErrorIs(t, err, ErrHole)
			again := c.another()
			plan, err = again.PlanFence(c.ctx, 0)
			require.NoError(t, err)
			require.NoError(t, again.Fence(c.ctx, plan))
			c.log = eventlogtest.Open(t, eventlog.Config{Conn: c.conn, InMemory: true})
		} else {
			require.NoError(t, err)
		}
		c.Projection = c.another()
		c.require(map[string]string{"a": "1@1"})
		require.EqualValues(t, plan.To, c.latest().snap.root.Epoch)
		_, err = c.another().PlanFence(c.ctx, 7)
		require.Error(t, err)
		requireClean(t, c.another())
	}
	require.False(t, errors.Is(eventlog.ErrDiverged, eventlog.ErrFenced))
}

// replicated is a cell on three servers, with one object.
func replicated(t *testing.T) (*eventlogtest.Servers, *cell) {
	if testing.Short() {
		t.Skip("it starts a cluster")
	}
	servers := eventlogtest.Cluster(t)
	c := newCell(t)
	c.log = servers.Log(0)
	c.Projection = c.another()
	c.put("a", "1")
	c.commit()
	return servers, c
}

// TestAReplicatedLogIsFenced: a fence on three servers, and everything after it, works as on one server.
func TestAReplicatedLogIsFenced(t *testing.T) {
	servers, c := replicated(t)
	want := map[string]string{"a": fmt.Sprintf("1@%d", c.last["a"].revision)}
	old := c.Projection
	c.log = servers.Log(1)
	operator := c.another()
	plan, err := operator.PlanFence(c.ctx, 0)
	require.NoError(t, err)
	require.NoError(t, operator.Fence(c.ctx, plan))
	_, err = old.Latest(c.ctx)
	require.ErrorIs(t, err, eventlog.ErrFenced)
	c.log = servers.Log(2)
	c.Projection = c.another()
	require.GreaterOrEqual(t, c.latest().Revision(), plan.To-1)
	rev := c.put("b", "2")
	require.GreaterOrEqual(t, rev, plan.To)
	want["b"] = fmt.Sprintf("2@%d", rev)
	c.require(want)
	c.commit()
	c.require(want)
	requireClean(t, c.another())
}

// TestEpochsNeverComeAgain: an epoch never recurs, even if the bucket is reset to its state before a fence, and the
// cell is fenced again. Late writes of a process of the epoch in between are void.
func TestEpochsNeverComeAgain(t *testing.T) {
	servers, c := replicated(t)
	kept, _, err := c.bucket.Get(c.ctx, c.rootKey())
	require.NoError(t, err)
	fence := func(log int) FencePlan {
		c.log = servers.Log(log)
		operator := c.another()
		plan, err := operator.PlanFence(c.ctx, 0)
		require.NoError(t, err)
		require.NoError(t, operator.Fence(c.ctx, plan))
		c.log = servers.Log(log)
		c.Projection = c.another()
		return plan
	}
	first := fence(1)
	between := c.latest()
	_, etag, err := c.bucket.Get(c.ctx, c.rootKey())
	require.NoError(t, err)
	_, err = c.bucket.Replace(c.ctx, c.rootKey(), kept, etag)
	require.NoError(t, err)
	second := fence(2)
	require.Greater(t, second.To, first.To)
	late, err := between.State(c.ctx, podKey("late"))
	require.NoError(t, err)
	_, err = between.Append(c.ctx, "late", late.Put("application/json", []byte("x"), 0))
	require.ErrorIs(t, err, eventlog.ErrFenced)
	c.require(map[string]string{"a": fmt.Sprintf("1@%d", c.last["a"].revision)})
}

// TestTheLeastFenceIsNoticed: a fence is made for a log that lost its end. A writer whose view includes the lost end
// notices even the least fence that an operator may choose, however much was lost. Here the writer's view is 15 million
// events above the log's head.
func TestTheLeastFenceIsNoticed(t *testing.T) {
	c := newCell(t)
	c.put("a", "1")
	c.commit()
	v := c.latest()
	at, err := v.State(c.ctx, podKey("b"))
	require.NoError(t, err)
	const lost = 15 << 20
	_, err = c.another().PlanFence(c.ctx, v.Revision()+lost)
	require.ErrorContains(t, err, fmt.Sprint("at least ", v.Revision()+eventlog.FenceGap))
	plan, err := c.another().PlanFence(c.ctx, v.Revision()+eventlog.FenceGap)
	require.NoError(t, err)
	frozen, tail := *v, *v.tail
	tail.at.Revision += lost
	frozen.tail = &tail
	require.NoError(t, c.another().Fence(c.ctx, plan))
	at.view = &frozen
	_, err = frozen.Append(c.ctx, "late", at.Put("application/cbor", []byte("x"), 0))
	require.ErrorIs(t, err, eventlog.ErrFenced)
}

// TestAFenceHasAnUpperBound: a fence leaves revisions for later events.
func TestAFenceHasAnUpperBound(t *testing.T) {
	c := newCell(t)
	c.put("a", "1")
	for _, to := range []Revision{lastFence + 1, 1 << 63, ^Revision(0)} {
		_, err := c.another().PlanFence(c.ctx, to)
		require.ErrorContains(t, err, "at most")
	}
	plan, err := c.another().PlanFence(c.ctx, lastFence)
	require.NoError(t, err)
	require.EqualValues(t, lastFence, plan.To)
}
