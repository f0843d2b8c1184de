package projection

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// hourly keeps the checkpoint of the first commit, and no other during a test.
func hourly(inline int) func(*Config) {
	return func(c *Config) {
		c.InlineBytes, c.Checkpoints = inline, []CheckpointRule{{Every: time.Hour, Keep: time.Hour}}
	}
}

// ruin is a cell whose bucket will be damaged. The bucket is not strict, because a strict bucket would forbid the
// damage.
func ruin(t *testing.T, config func(*Config)) *cell {
	quiet(t)
	c := newCell(t)
	c.bucket = memory.New()
	c.Projection = c.over(c.bucket, config)
	return c
}

// founded is the configuration of every process except the one that makes the cell.
func founded(config func(*Config)) func(*Config) {
	return func(c *Config) {
		config(c)
		c.Founded = true
	}
}

// damage flips a bit of an object. In a segment, the bit is in the first block.
func (c *cell) damage(key string) {
	c.t.Helper()
	body, etag, err := c.bucket.Get(c.ctx, key)
	require.NoError(c.t, err)
	body[20] ^= 1
	_, err = c.bucket.Replace(c.ctx, key, body, etag)
	require.NoError(c.t, err)
}

// named are the keys of the objects in a folder of the bucket, ascending.
func (c *cell) named(folder string) (keys []string) {
	c.t.Helper()
	require.NoError(c.t, c.bucket.List(c.ctx, "logplane/"+folder, func(a bucket.Attributes) error {
		keys = append(keys, a.Key)
		return nil
	}))
	return keys
}

// restarted is the cell with new processes.
func (c *cell) restarted(config func(*Config)) *cell {
	next := *c
	next.last = map[string]lastEvent{}
	maps.Copy(next.last, c.last)
	next.log = eventlogtest.Open(c.t, eventlog.Config{Conn: c.conn, InMemory: true})
	next.Projection = next.over(c.bucket, config)
	return &next
}

// recovered carries out a plan, in its own process, and returns the cell afterwards. The cell must be clean.
func (c *cell) recovered(config func(*Config)) (*cell, *RecoverPlan) {
	c.t.Helper()
	before := keysOf(c.t, c)
	operator := c.restarted(config)
	plan, err := operator.PlanRecover(c.ctx)
	require.NoError(c.t, err)
	require.Error(c.t, plan.Wrong)
	require.Equal(c.t, before, keysOf(c.t, c), "a plan changes nothing")
	require.NoError(c.t, operator.Recover(c.ctx, plan))
	after := c.restarted(config)
	requireClean(c.t, after.over(c.bucket, config))
	again, err := c.restarted(config).PlanRecover(c.ctx)
	require.NoError(c.t, err)
	require.NoError(c.t, again.Wrong)
	return after, plan
}

// requireState requires the state of the newest view.
func (c *cell) requireState(want map[string]string) {
	c.t.Helper()
	v := c.latest()
	got, err := state(c.ctx, v, v.Revision())
	require.NoError(c.t, err)
	require.Equal(c.t, want, got)
}

// TestRecoverLosesNothing: whatever happened to the root, nothing is lost if the log or event segments reach back to a
// checkpoint. The log continues in the same epoch, and no revision expires.
func TestRecoverLosesNothing(t *testing.T) {
	lost := func(c *cell) { require.NoError(c.t, c.bucket.Delete(c.ctx, c.rootKey())) }
	for name, test := range map[string]struct {
		inline int
		purge  bool
		harm   func(*cell)
	}{
		"damaged, and the log has all":          {1 << 20, false, func(c *cell) { c.damage(c.rootKey()) }},
		"lost, and the log has all":             {1 << 20, false, lost},
		"damaged, and event segments bridge":    {1, true, func(c *cell) { c.damage(c.rootKey()) }},
		"lost, and event segments bridge":       {1, true, lost},
		"lost with every checkpoint":            {1, true, func(c *cell) { lost(c); require.NoError(c.t, c.bucket.Delete(c.ctx, c.named("ckpt/")[0])) }},
		"lost, and every checkpoint is damaged": {1, true, func(c *cell) { lost(c); c.damage(c.named("ckpt/")[0]) }},
	} {
		t.Run(name, func(t *testing.T) {
			config := hourly(test.inline)
			c := ruin(t, config)
			want, first := map[string]string{}, Revision(0)
			for i := range 12 {
				rev := c.put(fmt.Sprint("n", i%5), fmt.Sprint("v", i))
				first = max(first, 1)
				want[fmt.Sprint("n", i%5)] = fmt.Sprintf("v%d@%d", i, rev)
				if i%3 == 1 {
					c.barrier()
				}
				if i%2 == 1 {
					c.commit()
				}
			}
			gone := c.put("gone", "x")
			c.remove("gone")
			c.commit()
			require.Len(t, c.named("ckpt/"), 1)
			if test.purge {
				require.NoError(t, c.Retain(c.ctx, 0, c.latest().Applied()))
			}
			last := c.put("tail", "only the log has it")
			want["tail"] = fmt.Sprintf("only the log has it@%d", last)
			test.harm(c)

			_, err := c.restarted(founded(config)).Latest(c.ctx)
			require.ErrorContains(t, err, "'logplane recover'")
			c, plan := c.recovered(config)
			require.Zero(t, plan.To)
			require.Zero(t, plan.Missing)
			c.requireState(want)
			require.Zero(t, c.newest().Epoch)
			row, found, err := c.latest().Get(c.ctx, podKey("gone").RowKey(), gone)
			require.NoError(t, err)
			require.True(t, found)
			require.Equal(t, "x", string(row.Value))
			require.Equal(t, last+1, c.put("next", "y"), "the log goes on")
			c.commit()
			requireClean(t, c.over(c.bucket, config))
		})
	}
}

// TestRecoverNamesWhatIsLost: only the root had some revisions. The plan names the revisions that neither bucket nor
// log has. The log's events are kept. The cell continues in a new epoch, above every revision that was ever used. If
// the missing revisions deleted an object that was then made again, the cell has the new object.
func TestRecoverNamesWhatIsLost(t *testing.T) {
	for _, how := range []string{"damaged", "lost", "old"} {
		t.Run(how, func(t *testing.T) {
			config := hourly(1 << 20)
			c := ruin(t, config)
			kept := c.put("kept", "1")
			c.put("again", "old")
			c.commit()
			require.Len(t, c.named("ckpt/"), 1)
			old, _, err := c.bucket.Get(c.ctx, c.rootKey())
			require.NoError(t, err)
			c.put("missing", "1")
			c.put("changed", "1")
			c.remove("again")
			missing := c.commit()
			again := c.put("again", "new")
			require.NoError(t, c.Retain(c.ctx, 0, missing))
			changed := c.put("changed", "2")
			_, etag, err := c.bucket.Get(c.ctx, c.rootKey())
			require.NoError(t, err)
			switch how {
			case "damaged":
				c.damage(c.rootKey())
			case "lost":
				require.NoError(t, c.bucket.Delete(c.ctx, c.rootKey()))
			case "old":
				_, err = c.bucket.Replace(c.ctx, c.rootKey(), old, etag)
				require.NoError(t, err)
			}
			_, err = c.restarted(founded(config)).Latest(c.ctx)
			require.ErrorContains(t, err, "'logplane recover'")

			c, plan := c.recovered(config)
			require.NoError(t, plan.Lost)
			require.Equal(t, []Revision{2, plan.Log.First - 1}, []Revision{plan.Revision, plan.Missing})
			require.False(t, plan.Until.Before(plan.Time))
			require.Greater(t, plan.To, changed+eventlog.FenceGap-1)
			c.requireState(map[string]string{"kept": fmt.Sprint("1@", kept), "again": fmt.Sprint("new@", again), "changed": fmt.Sprint("2@", changed)})
			require.EqualValues(t, plan.To, c.newest().Epoch)
			_, _, err = c.latest().Get(c.ctx, podKey("kept").RowKey(), changed)
			require.ErrorIs(t, err, ErrExpired, "clients list again")
			c.last = map[string]lastEvent{}
			require.Equal(t, plan.To, c.put("next", "x"))
			c.commit()
			requireClean(t, c.over(c.bucket, config))
		})
	}
}

// TestRecoverWithoutTheLog: root and log are lost together. The bucket's events are there, and new revisions are above
// all revisions that the bucket names.
func TestRecoverWithoutTheLog(t *testing.T) {
	config := hourly(1)
	c := ruin(t, config)
	rev := c.put("a", "1")
	c.commit()
	last := c.put("b", "1")
	c.commit()
	c.put("c", "only the log has it")
	c.damage(c.rootKey())
	c.conn = eventlogtest.Start(t)

	fresh := c.restarted(config)
	_, err := fresh.Found(c.ctx)
	require.ErrorContains(t, err, "'logplane recover'")
	c, plan := c.recovered(config)
	require.ErrorIs(t, plan.Lost, eventlog.ErrDiverged)
	require.Equal(t, last, plan.Revision)
	require.Equal(t, last+eventlog.FenceGap, plan.To)
	c.requireState(map[string]string{"a": fmt.Sprint("1@", rev), "b": fmt.Sprint("1@", last)})
	c.last = map[string]lastEvent{}
	require.Equal(t, plan.To, c.put("next", "x"))
}

// TestNoCellOverALostRoot: a new cell is never made over the remains of a cell whose root was lost, because the new
// cell would collect these remains.
func TestNoCellOverALostRoot(t *testing.T) {
	config := hourly(1)
	c := ruin(t, config)
	c.put("a", "1")
	c.commit()
	require.NoError(t, c.bucket.Delete(c.ctx, c.rootKey()))
	c.conn = eventlogtest.Start(t)
	before := keysOf(t, c)
	_, err := c.restarted(config).Found(c.ctx)
	require.ErrorContains(t, err, "run 'logplane recover'")
	require.Equal(t, before, keysOf(t, c))
}

// TestRecoverKeepsThePast: a checkpoint that is damaged, or names a damaged object, is reported, and an older
// checkpoint is used. The past is listed again, from checkpoints and from event segments that no checkpoint names.
func TestRecoverKeepsThePast(t *testing.T) {
	config := func(c *Config) {
		c.InlineBytes, c.History = 1, time.Hour
		c.Checkpoints = []CheckpointRule{{Every: 1, Keep: time.Hour}}
	}
	c := ruin(t, config)
	for i := range 8 {
		c.put("a", fmt.Sprint("v", i+1))
		applied := c.commit()
		require.NoError(t, c.Retain(c.ctx, applied-min(applied, 2), applied))
	}
	checkpoints := c.named("ckpt/")
	require.Len(t, checkpoints, 8)
	c.damage(checkpoints[7])
	c.damage(c.rootKey())
	c, plan := c.recovered(config)
	require.Equal(t, checkpoints[6], plan.From)
	require.ErrorContains(t, plan.Passed[0], checkpoints[7])
	require.Zero(t, plan.To, "event segments bridge the last commit")
	for at := Revision(1); at <= 8; at++ {
		row, found, err := c.GetAt(c.ctx, podKey("a").RowKey(), at)
		require.NoError(t, err, "revision %d", at)
		require.True(t, found)
		require.Equal(t, fmt.Sprint("v", at), string(row.Value))
	}
	history, err := c.History(c.ctx, podKey("a").RowKey())
	require.NoError(t, err)
	require.Len(t, history, 8)
}

// TestRecoverFromNothing: if no root or checkpoint can be read, recover says why, and makes no root. It makes none in
// an empty bucket either, because that is not the cell's bucket.
func TestRecoverFromNothing(t *testing.T) {
	config := hourly(1)
	c := ruin(t, config)
	c.put("a", "1")
	c.commit()
	c.put("b", "1")
	c.commit()
	require.NoError(t, c.Retain(c.ctx, 0, c.latest().Applied()))
	for _, key := range append(c.named("seg/"), c.named("events/")...) {
		c.damage(key)
	}
	c.damage(c.rootKey())
	_, err := c.restarted(config).PlanRecover(c.ctx)
	require.ErrorContains(t, err, "put back a copy of the bucket")
	require.ErrorContains(t, err, c.named("seg/")[0])

	other := newCell(t)
	other.put("a", "1")
	_, err = other.PlanRecover(c.ctx)
	require.ErrorContains(t, err, "give the cell's own bucket")
}

// TestRecoverCrashes: a crash at any write of a recovery leaves garbage, or a cell that every process refuses until it
// is recovered or fenced again.
func TestRecoverCrashes(t *testing.T) {
	config := hourly(1)
	for crash := 1; ; crash++ {
		c := ruin(t, hourly(1<<20))
		kept := c.put("kept", "1")
		c.commit()
		c.put("missing", "1")
		missing := c.commit()
		tail := c.put("tail", "1")
		require.NoError(t, c.Retain(c.ctx, 0, missing))
		c.damage(c.rootKey())

		operator := c.restarted(config)
		plan, err := operator.PlanRecover(c.ctx)
		require.NoError(t, err)
		writes := 0
		operator.fenceLog = func(ctx context.Context, to Revision) error {
			if writes++; writes == crash {
				return errStorm
			}
			return operator.log.Fence(ctx, to)
		}
		b := &failing{Bucket: c.bucket, fails: func() bool { writes++; return writes >= crash }}
		operator.Projection.config.Bucket = b
		done := operator.Recover(c.ctx, plan) == nil
		if !done {
			p := c.restarted(config)
			_, err := p.Latest(c.ctx)
			require.Error(t, err)
			said := err.Error()
			p = c.restarted(config)
			switch {
			case strings.Contains(said, "'logplane recover'"):
				plan, err := p.PlanRecover(c.ctx)
				require.NoError(t, err)
				require.NoError(t, p.Recover(c.ctx, plan))
			default:
				require.Contains(t, said, "'logplane fence'")
				plan, err := p.PlanFence(c.ctx, 0)
				require.NoError(t, err)
				require.NoError(t, p.Fence(c.ctx, plan))
			}
		}
		c = c.restarted(config)
		c.requireState(map[string]string{"kept": fmt.Sprint("1@", kept), "tail": fmt.Sprint("1@", tail)})
		requireClean(t, c.over(c.bucket, config))
		if done {
			require.Greater(t, crash, 4)
			return
		}
	}
}

// failing is a bucket. A write fails if the function fails returns true.
type failing struct {
	*memory.Bucket
	fails func() bool
}

func (b *failing) Create(ctx context.Context, key string, body []byte) (string, error) {
	if b.fails() {
		return "", errStorm
	}
	return b.Bucket.Create(ctx, key, body)
}

func (b *failing) Replace(ctx context.Context, key string, body []byte, etag string) (string, error) {
	if b.fails() {
		return "", errStorm
	}
	return b.Bucket.Replace(ctx, key, body, etag)
}
