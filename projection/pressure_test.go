package projection

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
)

// grow adds events to the log. It does not commit them.
func (c *cell) grow(events, size int) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range events {
		value := make([]byte, size)
		for i := range value {
			value[i] = byte(rng.Uint32())
		}
		c.put(fmt.Sprint("grown-", c.n), string(value))
	}
}

// TestWritesAreRefusedWhileNothingIsCommitted: while no commit succeeds, every write beyond the budget is refused,
// until a commit succeeds.
func TestWritesAreRefusedWhileNothingIsCommitted(t *testing.T) {
	quiet(t)
	small := func(c *Config) { c.TailBytes = 100_000 }
	c := newCell(t, small)
	c.put("a", "1")
	c.commit()
	c.bucket.Inject(func(op memory.Op, _ string) memory.Fault {
		if op == memory.OpReplace {
			return memory.Fails
		}
		return memory.Works
	})
	c.grow(60, 1000)
	require.NoError(t, c.latest().pressed())
	c.grow(60, 1000)
	v := c.latest()
	require.ErrorIs(t, v.pressed(), ErrBehind)
	_, ok, err := v.Get(c.ctx, podKey("a").RowKey(), v.Revision())
	require.NoError(t, err)
	require.True(t, ok, "reads go on")
	c.bucket.Inject(nil)
	require.ErrorIs(t, c.latest().pressed(), ErrBehind, "a request that fails is enough for a while")
	c.sparing.Store(0)
	v = c.latest()
	require.NoError(t, v.pressed())
	require.Equal(t, v.Revision(), v.Applied())
}

// TestAWriteWaitsForRelief: a write that finds the tail over its budget during a commit waits for the commit, and is
// not refused.
func TestAWriteWaitsForRelief(t *testing.T) {
	c := newCell(t)
	c.put("a", "1")
	c.commit()
	stalled := &between{lax: lax{c.bucket}}
	p := c.over(stalled, func(c *Config) { c.TailBytes = 100_000 })
	_, err := p.Latest(c.ctx)
	require.NoError(t, err)
	c.grow(60, 1000) // over a quarter of the budget: the next request commits
	written := make(chan error, 1)
	stalled.do = func() {
		c.grow(60, 1000)
		v, err := p.Latest(c.ctx)
		require.NoError(t, err)
		require.ErrorIs(t, v.pressed(), ErrBehind)
		go func() {
			at, err := v.State(c.ctx, podKey("b"))
			if err == nil {
				_, err = v.Append(c.ctx, "request", at.Put("", []byte("1"), 0))
			}
			written <- err
		}()
	}
	_, err = p.Latest(c.ctx)
	require.NoError(t, err)
	require.NoError(t, <-written)
}

// TestAnotherCommitRelieves: another process commits, and nobody writes any more. A process notices the commit, without
// a write of its own to the bucket.
func TestAnotherCommitRelieves(t *testing.T) {
	c := newCell(t)
	counted := bucket.Count(c.bucket)
	p := c.over(counted, func(c *Config) { c.TailBytes = 50_000 })
	_, err := p.Latest(c.ctx)
	require.NoError(t, err)
	p.sparing.Store(time.Now().Add(time.Hour).UnixNano())
	c.grow(60, 1000)
	v, err := p.Latest(c.ctx)
	require.NoError(t, err)
	require.ErrorIs(t, v.pressed(), ErrBehind)
	c.commit()
	p.sparing.Store(0)
	v, err = p.Latest(c.ctx)
	require.NoError(t, err)
	require.NoError(t, v.pressed())
	require.Zero(t, counted.Counts().Create+counted.Counts().Replace)
}

// TestAReaderCommitsWithoutAProjector: without a projector, a process itself commits once its tail is long, and not
// before.
func TestAReaderCommitsWithoutAProjector(t *testing.T) {
	c := newCell(t, func(c *Config) { c.TailBytes = 200_000 })
	c.grow(20, 1000)
	require.Zero(t, c.latest().Applied())
	c.grow(20, 1000)
	looking, err := c.another(func(c *Config) { c.TailBytes, c.ReadOnly = 1, true }).Latest(c.ctx)
	require.NoError(t, err)
	require.Zero(t, looking.Applied(), "who only looks changes nothing")
	v := c.latest()
	require.Equal(t, v.Revision(), v.Applied())
	for range 10 {
		c.grow(20, 1000)
		require.LessOrEqual(t, c.latest().tail.bytes, 50_000)
	}
}

// TestTheProjectorsCadence: an idle cell costs no request. A projector under pressure does not wait for its cadence.
func TestTheProjectorsCadence(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits")
	}
	c := newCell(t)
	counted := bucket.Count(c.bucket)
	p := c.over(counted)
	c.put("covered by the first commit", "x")
	ctx, cancel := context.WithCancel(c.ctx)
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, time.Hour) }()
	applied := func(rev Revision) {
		eventlogtest.Eventually(t, "the projector applied", func() bool { v := p.Current(); return v != nil && v.Applied() >= rev })
	}
	eventlogtest.Eventually(t, "the projector is there", func() bool { return p.Current() != nil && p.Current().Applied() > 0 })
	applied(c.put("first", "x"))
	eventlogtest.Eventually(t, "garbage was looked for, once", func() bool {
		now := counted.Counts()
		return now.List == 1 && now.Get == 2 // the root is read at the start, and again after the list
	})
	before := counted.Counts()
	c.put("second", "x")
	for range 50 {
		c.barrier()
	}
	head, err := c.log.Head(c.ctx)
	require.NoError(t, err)
	eventlogtest.Eventually(t, "the projector has seen", func() bool { return p.Current().Revision() >= head.Head })
	require.Equal(t, before, counted.Counts(), "the next commit waits, barriers cause none")
	var last Revision
	for i := range behindEvents + 10 {
		last = c.put(fmt.Sprint("pressing-", i), "x")
	}
	applied(last - 100)
	require.Equal(t, before.Replace+1, counted.Counts().Replace)
	cancel()
	require.NoError(t, <-done)
}

// timed records how much time is left for the swap of the root.
type timed struct {
	lax
	left time.Duration
}

func (b *timed) Replace(ctx context.Context, key string, body []byte, etag string) (string, error) {
	deadline, _ := ctx.Deadline()
	b.left = time.Until(deadline)
	return b.lax.Replace(ctx, key, body, etag)
}

// TestReliefIsBounded: relieve delays a request for a bounded time, however long the request itself may take.
func TestReliefIsBounded(t *testing.T) {
	c := newCell(t)
	c.put("a", "1")
	c.commit()
	b := &timed{lax: lax{c.bucket}}
	p := c.over(b, func(c *Config) { c.TailBytes = 100_000 })
	c.grow(60, 1000)
	ctx, cancel := context.WithTimeout(c.ctx, time.Hour)
	defer cancel()
	v, err := p.Latest(ctx)
	require.NoError(t, err)
	require.Equal(t, v.Revision(), v.Applied(), "nobody gave relief")
	require.Positive(t, b.left)
	require.LessOrEqual(t, b.left, relieveTime)
}

// TestTheTailIsHeld: the tail is held in the caches' budget until it is committed.
func TestTheTailIsHeld(t *testing.T) {
	budget := cache.NewBudget(1 << 20)
	c := newCell(t, func(c *Config) { c.Budget, c.InlineBytes = budget, 1 })
	for n := range 10 {
		c.put(fmt.Sprint(n), strings.Repeat("x", 1000))
	}
	v := c.latest()
	cached, held := budget.Used()
	require.Zero(t, cached)
	require.EqualValues(t, v.tail.bytes, held)
	require.Greater(t, held, int64(10_000))
	c.commit()
	v = c.latest()
	_, held = budget.Used()
	require.EqualValues(t, v.tail.bytes, held)
	require.Less(t, held, int64(1000))
	_, err := state(c.ctx, v, v.Revision())
	require.NoError(t, err)
	cached, held = budget.Used()
	require.Positive(t, cached, "blocks")

	registry := prometheus.NewRegistry()
	registry.MustRegister(budgetBytes, cachedBytes, heldBytes)
	metrics, err := registry.Gather()
	require.NoError(t, err)
	told := map[string]float64{}
	for _, m := range metrics {
		told[m.GetName()] = m.GetMetric()[0].GetGauge().GetValue()
	}
	require.Equal(t, map[string]float64{"logplane_cache_budget_bytes": 1 << 20, "logplane_cache_bytes": float64(cached), "logplane_cache_held_bytes": float64(held)}, told)
}

// TestALongTailLeavesRoomForBlocks: a tail that exceeds the whole budget leaves room for blocks: a block that was read
// once is not read again.
func TestALongTailLeavesRoomForBlocks(t *testing.T) {
	c := newCell(t)
	counted := bucket.Count(c.bucket)
	p := c.over(counted, func(c *Config) { c.Budget, c.InlineBytes = cache.NewBudget(100_000), 1 })
	c.put("a", "1")
	_, err := p.Commit(c.ctx)
	require.NoError(t, err)
	c.grow(200, 1000)
	v, err := p.Latest(c.ctx)
	require.NoError(t, err)
	_, held := p.Budget().Used()
	require.Greater(t, held, p.Budget().Limit())
	_, err = state(c.ctx, v, v.Revision())
	require.NoError(t, err)
	before := counted.Counts()
	_, err = state(c.ctx, v, v.Revision())
	require.NoError(t, err)
	require.Equal(t, before, counted.Counts())
}
