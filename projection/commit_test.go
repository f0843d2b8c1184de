package projection

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// TestEveryStepOfCommitMayFail: a first commit and a later one spill. Each of their bucket requests in turn fails, or
// fails but persists, or the process dies before or after the request. A cold reader and the next commit then see every
// acknowledged event (invariants 6, 7, 11). The test counts the commit's own steps, and does not list them.
func TestEveryStepOfCommitMayFail(t *testing.T) {
	for _, fault := range []memory.Fault{memory.Fails, memory.FailsButPersisted} {
		for _, dies := range []bool{false, true} {
			for _, inline := range []int{1, 400, 1 << 20} {
				t.Run(fmt.Sprintf("fault %d dies %t inline %d", fault, dies, inline), func(t *testing.T) {
					t.Parallel()
					steps := 1
					for step := 0; step < steps; step++ {
						steps = max(steps, failAt(t, step, fault, dies, inline))
					}
					require.GreaterOrEqual(t, steps, 5)
				})
			}
		}
	}
}

// failAt runs three commits. The request with the given number, counted over all three, fails. failAt returns how many
// requests there were.
func failAt(t *testing.T, step int, fault memory.Fault, dies bool, inline int) int {
	small := func(c *Config) { c.InlineBytes = inline }
	c := newCell(t, small)
	var requests atomic.Int64
	ctx, kill := context.WithCancel(c.ctx)
	defer kill()
	c.bucket.Inject(func(op memory.Op, key string) memory.Fault {
		if requests.Add(1) != int64(step+1) {
			return memory.Works
		}
		if dies {
			kill()
		}
		return fault
	})
	want := map[string]string{}
	for round := range 3 {
		for i := range 4 {
			name := fmt.Sprint("n", (round+i)%5)
			want[name] = fmt.Sprintf("%d@%d", round, c.put(name, fmt.Sprint(round)))
		}
		if gone := fmt.Sprint("n", round); round > 0 {
			c.remove(gone)
			delete(want, gone)
		}
		if _, err := c.Commit(ctx); err != nil {
			require.True(t, dies || errors.Is(err, memory.ErrInjected), "%v", err)
		}
		if ctx.Err() != nil { // the process died; another replaces it
			c.Projection, ctx = c.another(small), c.ctx
		}
	}
	made := int(requests.Load())
	c.bucket.Inject(nil)
	for _, p := range []*Projection{c.Projection, c.another(small)} {
		v, err := p.Latest(c.ctx)
		require.NoError(t, err)
		got, err := state(c.ctx, v, v.Revision())
		require.NoError(t, err)
		require.Equal(t, want, got)
		_, err = p.Commit(c.ctx)
		require.NoError(t, err)
		n := 0
		for _, err := range p.events(c.ctx, Keys{}, 0, v.Revision()) {
			require.NoError(t, err)
			n++
		}
		require.Equal(t, c.n, n, "step %d", step)
	}
	return made
}

// TestProjectorsRace: many projectors commit concurrently while events come: each event is applied once, in order
// (invariant 7).
func TestProjectorsRace(t *testing.T) {
	c := newCell(t)
	var projectors, writers sync.WaitGroup
	done := make(chan struct{})
	for i := range 4 {
		p := c.another(func(c *Config) { c.InlineBytes = 500 + 300*i })
		projectors.Go(func() {
			for {
				if _, err := p.Commit(c.ctx); err != nil {
					c.t.Errorf("commit: %v", err)
					return
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for i := range 3 {
		writers.Go(func() { increments(c, fmt.Sprint("counter-", i), 60) })
	}
	writers.Wait()
	close(done)
	projectors.Wait()
	_, err := c.Commit(c.ctx)
	require.NoError(t, err)
	cold := c.another()
	v, err := cold.Latest(c.ctx)
	require.NoError(t, err)
	require.Equal(t, v.Revision(), v.Applied())
	require.Empty(t, holes(v.snap.root))
	for i := range 3 {
		row, ok, err := v.Get(c.ctx, podKey(fmt.Sprint("counter-", i)).RowKey(), v.Revision())
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, "60", string(row.Value))
	}
	n := 0
	for _, err := range cold.events(c.ctx, Keys{}, 0, v.Revision()) {
		require.NoError(t, err)
		n++
	}
	require.Equal(t, 180, n)
}

// increments reads and writes one object as kubestore does, and checks that it reads its own writes.
func increments(c *cell, name string, times int) {
	p, key := c.another(), podKey(name)
	for i := 1; i <= times; i++ {
		v, err := p.Latest(c.ctx)
		if err != nil {
			c.t.Error(err)
			return
		}
		before, err := v.State(c.ctx, key)
		row, ok := before.Row()
		if err == nil && ok && string(row.Value) != fmt.Sprint(i-1) {
			err = fmt.Errorf("read %s after writing %d", row.Value, i-1)
		}
		if err == nil {
			_, err = v.Append(c.ctx, fmt.Sprintf("%s-%d", name, i), before.Put("text/plain", []byte(fmt.Sprint(i)), 0))
		}
		if err != nil {
			c.t.Error(err)
			return
		}
	}
}

// TestReadersDuringCommits: concurrent readers share their questions to the log. Their reads succeed while events come,
// are committed and are purged.
func TestReadersDuringCommits(t *testing.T) {
	c := newCell(t, func(c *Config) { c.InlineBytes = 800 })
	var readers sync.WaitGroup
	done := make(chan struct{})
	shared := c.another()
	for i := range 6 {
		rng := rand.New(rand.NewPCG(1, uint64(i)))
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				v, err := shared.Latest(c.ctx)
				if err != nil {
					c.t.Error(err)
					return
				}
				at := v.Floor() + Revision(rng.IntN(int(v.Revision()-v.Floor())+1))
				got, err := state(c.ctx, v, at)
				if err != nil && !errors.Is(err, ErrExpired) {
					c.t.Error(err)
					return
				}
				if err == nil && len(got) != min(int(at), 10) {
					c.t.Errorf("%d objects at %d", len(got), at)
					return
				}
			}
		})
	}
	for i := range 200 {
		c.put(fmt.Sprint("n", i%10), fmt.Sprint(i))
		if i%7 == 6 {
			applied := c.commit()
			require.NoError(t, c.Retain(c.ctx, applied-5, applied-3))
		}
	}
	close(done)
	readers.Wait()
}

func TestCommitOfNothingWritesNothing(t *testing.T) {
	c := newCell(t)
	c.put("a", "1")
	applied := c.commit()
	c.bucket.Inject(func(op memory.Op, key string) memory.Fault {
		t.Errorf("%s %s", op, key)
		return memory.Works
	})
	for range 3 {
		c.barrier()
		require.Equal(t, applied, c.commit())
	}
	c.bucket.Inject(nil)
	v := c.latest()
	require.Equal(t, applied+3, v.Revision())
	last := c.put("a", "2")
	require.Equal(t, last, c.commit())
}

// TestWhatCompressesSpills: bodies that compress to almost nothing do not stay inline, where every reader of the root
// would hold them.
func TestWhatCompressesSpills(t *testing.T) {
	c := newCell(t, func(c *Config) { c.InlineBytes = 1 << 10 })
	for i := range 4 {
		c.put(fmt.Sprint("n", i), strings.Repeat("a", 5<<10))
	}
	_, err := c.Commit(c.ctx)
	require.NoError(t, err)
	require.Empty(t, c.Current().snap.inline)
	c.put("n4", strings.Repeat("a", 5<<10))
	_, err = c.Commit(c.ctx)
	require.NoError(t, err)
	require.Len(t, c.Current().snap.inline, 1)
}

// TestCommitCostsOnePut: a commit costs one PUT. Spilling costs two more.
func TestCommitCostsOnePut(t *testing.T) {
	c := newCell(t)
	c.put("a", "1")
	c.commit()
	puts := map[memory.Op]int{}
	c.bucket.Inject(func(op memory.Op, key string) memory.Fault { puts[op]++; return memory.Works })
	for i := range 10 {
		c.put("a", fmt.Sprint(i))
		c.commit()
	}
	require.Equal(t, map[memory.Op]int{memory.OpReplace: 10}, puts)
}

// TestRetentionIsOfLogTime: floor and purge point move only by log time. One commit moves the floor by no more than
// twice the log time since the previous root (invariant 12).
func TestRetentionIsOfLogTime(t *testing.T) {
	p, err := Open(Config{Log: new(eventlog.Log), Bucket: memory.New(), Retention: time.Hour, LogRetention: 10 * time.Minute})
	require.NoError(t, err)
	r, start := &root{}, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(revision Revision, minutes int) *root {
		next := r.clone()
		next.Applied, next.AppliedTime = revision, start.Add(time.Duration(minutes)*time.Minute).UnixNano()
		p.age(next, time.Now())
		require.NoError(t, (&root{Floor: next.Floor, Applied: next.Applied, Purge: next.Purge, Ring: next.Ring, Inline: []byte{0}}).check())
		require.GreaterOrEqual(t, next.Floor, r.Floor)
		require.GreaterOrEqual(t, next.Clock, r.Clock)
		return next
	}
	for m := range 60 {
		r = at(Revision(m+1), m)
		require.Zero(t, r.Floor, m)
		if m >= 12 {
			require.InDelta(t, m+1-10, int(r.Purge), 1)
		}
	}
	for m := 60; m < 300; m++ {
		r = at(Revision(m+1), m)
		require.InDelta(t, m+1-60, int(r.Floor), 1)
		require.Less(t, len(r.Ring), 3*ringMarks)
	}
	// The log's clock goes back, but nothing else does.
	r = at(301, 100)
	floor := r.Floor
	r = at(302, 101)
	require.Equal(t, floor, r.Floor)
	// A far too short retention does not move the floor faster.
	p.config.Retention = time.Second
	r = at(303, 302)
	require.LessOrEqual(t, int(r.Floor), int(floor)+4)
}

func TestRetentionPurgesTheLog(t *testing.T) {
	c := newCell(t, func(c *Config) { c.Retention, c.LogRetention = 2*time.Nanosecond, time.Nanosecond })
	for i := range 20 {
		c.put("a", fmt.Sprint(i))
		c.commit()
	}
	last := c.latest()
	require.Greater(t, last.first, last.Revision()-5)
	require.Greater(t, last.Floor(), last.Revision()-5)
	got, err := state(c.ctx, last, last.Revision())
	require.NoError(t, err)
	require.Len(t, got, 1)
}

// TestFound: the first root comes before the first event. A log with events and a bucket without a root belong to two
// cells.
func TestFound(t *testing.T) {
	c := newCell(t)
	for _, first := range []bool{true, false} {
		made, err := c.another().Found(c.ctx)
		require.NoError(t, err)
		require.Equal(t, first, made)
	}
	head := c.put("a", "1")
	made, err := c.another(func(config *Config) { config.Founded = true }).Found(c.ctx)
	require.NoError(t, err)
	require.False(t, made)
	v, err := c.Latest(c.ctx)
	require.NoError(t, err)
	require.Equal(t, head, v.Revision())

	wrong := memory.Strict(t)
	_, err = c.over(wrong).Found(c.ctx)
	require.ErrorIs(t, err, ErrNoRoot)
	require.NoError(t, wrong.List(c.ctx, "", func(a bucket.Attributes) error { return fmt.Errorf("there is %v", a) }))
}
