package projection

import (
	"context"
	"crypto/sha256"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/projection/bucket/memory"
)

// loseOneSwap makes the next swap of the root fail without effect. The author of the swap cannot know whether the swap
// took effect.
func (c *cell) loseOneSwap() {
	lost := false
	c.bucket.Inject(func(op memory.Op, _ string) memory.Fault {
		if op != memory.OpReplace || lost {
			return memory.Works
		}
		lost = true
		return memory.Fails
	})
}

// newest is the root in the bucket.
func (c *cell) newest() *root {
	now, err := c.rootNow(c.ctx)
	require.NoError(c.t, err)
	return now.root
}

// TestALostSwapIsNotTakenForWon: the nonce tells the outcome of a swap that was not answered. The work of the swap is
// done in the end. Another root in the bucket does not make the work count as done.
func TestALostSwapIsNotTakenForWon(t *testing.T) {
	for name, do := range map[string]func(c *cell){
		"commit": func(c *cell) {
			rev := c.put("late", "x")
			require.Equal(t, rev, c.commit())
			require.Equal(t, rev, c.newest().Applied)
		},
		"retain": func(c *cell) {
			require.NoError(t, c.Retain(c.ctx, 5, 3))
			require.EqualValues(t, 5, c.newest().Floor)
		},
		"compaction": func(c *cell) {
			done, err := c.Compact(c.ctx)
			require.NoError(t, err)
			require.True(t, done)
			require.Len(t, c.newest().Segments, 1)
		},
		"collection": func(c *cell) {
			_, err := c.bucket.Create(c.ctx, "logplane/seg/0/orphan", nil)
			require.NoError(t, err)
			n, err := c.Collect(c.ctx, 0)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.EqualValues(t, 1, c.newest().Generation)
		},
		"fence": func(c *cell) {
			plan, err := c.PlanFence(c.ctx, 0)
			require.NoError(t, err)
			require.NoError(t, c.Fence(c.ctx, plan))
			require.EqualValues(t, plan.To, c.newest().Epoch)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := spilling(t, runsPerLevel)
			c.loseOneSwap()
			do(c)
		})
	}
}

// TestALostSwapDeletesNothing: a collector must not take a lost swap for won. Otherwise the collector would delete the
// segments of a commit in flight, whose swap can still succeed. The root would then name missing objects (invariant 7).
func TestALostSwapDeletesNothing(t *testing.T) {
	commitDuring(t, func(c *cell, other *Projection) {
		c.loseOneSwap()
		_, err := other.Collect(c.ctx, 0)
		require.NoError(t, err)
	})
}

// TestAWrongRootIsNotWritten: a draft that breaks a promise of every root is not written. Such a draft is made only
// once, because another draft of the same root would break the same promise.
func TestAWrongRootIsNotWritten(t *testing.T) {
	c := newCell(t)
	c.put("a", "1")
	c.commit()
	before, drafts := c.newest(), 0
	_, err := c.swap(c.ctx, func(_ context.Context, v *View) (*draft, error) {
		drafts++
		next := v.snap.draft()
		next.Floor = next.Applied + 1
		return next, nil
	})
	require.ErrorContains(t, err, "refuse to write a wrong root: floor 2")
	require.Equal(t, 1, drafts)
	require.Equal(t, before, c.newest())
}

// roots remembers the hashes of all bodies that were to become the root.
type roots struct {
	lax
	bodies map[[32]byte]bool
}

func (b roots) Replace(ctx context.Context, key string, body []byte, etag string) (string, error) {
	b.bodies[sha256.Sum256(body)] = true
	return b.lax.Replace(ctx, key, body, etag)
}

// TestEveryRootIsDifferent: two projectors that fold the same events onto the same root write different roots. If the
// roots were equal, then on a server whose ETags are hashes both projectors would believe that they had won.
func TestEveryRootIsDifferent(t *testing.T) {
	c := newCell(t)
	c.put("a", "1")
	c.commit()
	bodies := roots{lax{c.bucket}, map[[32]byte]bool{}}
	const projectors = 4
	for range projectors {
		p := c.over(bodies)
		_, err := p.Latest(c.ctx)
		require.NoError(t, err)
		v := p.Current()
		_, err = p.put(c.ctx, (&snapshot{root: v.snap.root, records: v.snap.records, etag: "stale", index: v.snap.index}).draft())
		require.ErrorContains(t, err, "not the expected one")
	}
	require.Len(t, bodies.bodies, projectors)
}
