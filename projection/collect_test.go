package projection

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/projection/bucket/memory"
)

// between runs something once before the root is swapped, as other processes could during a stall.
type between struct {
	lax
	do func()
}

func (b *between) Replace(ctx context.Context, key string, body []byte, etag string) (string, error) {
	if do := b.do; do != nil {
		b.do = nil
		do()
	}
	return b.lax.Replace(ctx, key, body, etag)
}

// spilling is a cell with n runs, in which every commit spills.
func spilling(t *testing.T, n int) (*cell, map[string]string) {
	c, want := newCell(t, func(c *Config) { c.InlineBytes = 1 }), map[string]string{}
	for i := range n {
		name := fmt.Sprint("n", i)
		want[name] = fmt.Sprintf("%d@%d", i, c.put(name, fmt.Sprint(i)))
		c.commit()
	}
	return c, want
}

// commitDuring commits an event whose row spills. Between the commit's last PUT and its swap it calls do with another
// projection, which does not know the event. Then it requires every committed value.
func commitDuring(t *testing.T, do func(c *cell, other *Projection)) {
	t.Helper()
	c, want := spilling(t, 3)
	other := c.another()
	stalled := &between{lax: lax{c.bucket}, do: func() { do(c, other) }}
	p := c.over(stalled, func(c *Config) { c.InlineBytes = 1 })
	want["late"] = fmt.Sprintf("x@%d", c.put("late", "x"))
	_, err := p.Commit(c.ctx)
	require.NoError(t, err)
	c.require(want)
}

func (c *cell) require(want map[string]string) {
	c.t.Helper()
	p := c.another()
	v, err := p.Latest(c.ctx)
	require.NoError(c.t, err)
	got, err := state(c.ctx, v, v.Revision())
	require.NoError(c.t, err)
	require.Equal(c.t, want, got)
	for key := range v.snap.root.names() {
		require.True(c.t, key == "" || keysOf(c.t, c)[key], "%s is named and not there", key)
	}
}

// TestCollectionDefeatsACompactionInFlight: garbage is collected while a compaction is between its last PUT and its
// swap. The compaction's outputs are deleted, and no root ever names them (invariant 7). The generation reveals the
// collection to the compaction.
func TestCollectionDefeatsACompactionInFlight(t *testing.T) {
	c, want := spilling(t, runsPerLevel)
	m := c.latest().choose()
	require.NotNil(t, m)
	outputs, err := c.over(lax{c.bucket}).merge(c.ctx, m)
	require.NoError(t, err)
	other := c.another()
	n, err := other.Collect(c.ctx, 0)
	require.NoError(t, err)
	require.Equal(t, len(outputs.refs), n)
	require.ErrorIs(t, outputs.commit(c.ctx), errOvertaken)
	c.require(want)
	done, err := c.Compact(c.ctx)
	require.NoError(t, err)
	require.True(t, done)
	c.require(want)
	require.Len(t, c.latest().snap.runs, 1)
}

// late does something once before the first PUT of a segment, when all inputs of the segment were read.
type late struct {
	lax
	do func()
}

func (b *late) Create(ctx context.Context, key string, body []byte) (string, error) {
	if do := b.do; do != nil && !strings.Contains(key, "/probe/") {
		b.do = nil
		do()
	}
	return b.lax.Create(ctx, key, body)
}

// TestOvertakenWorkLeavesNothing: objects that a compaction or a join writes after another compaction or join was
// faster are deleted at once, as they may contain data that was forgotten meanwhile.
func TestOvertakenWorkLeavesNothing(t *testing.T) {
	for _, join := range []bool{false, true} {
		config := func(c *Config) {
			c.InlineBytes = 1
			if join {
				c.History = 24 * time.Hour
			}
		}
		c, want := newCell(t, config), map[string]string{}
		for i := range 2 * joinAtLeast {
			want["n"] = fmt.Sprintf("%d@%d", i, c.put("n", fmt.Sprint(i)))
			c.commit()
		}
		if join {
			c.compactAll()
			require.NoError(t, c.Retain(c.ctx, c.latest().Applied(), 0))
			c.manyEvents = 1
		}
		stalled := &late{lax: lax{c.bucket}}
		p := c.over(stalled, config)
		p.manyEvents = c.manyEvents
		wrote := false
		stalled.do = func() {
			wrote = true
			c.compactAll()
			_, err := c.Collect(c.ctx, 0)
			require.NoError(t, err)
		}
		done, err := p.compactOrJoin(c.ctx)
		require.NoError(t, err)
		require.True(t, wrote)
		require.False(t, done)
		garbage, _, err := c.garbage(c.ctx, 0)
		require.NoError(t, err)
		require.Empty(t, garbage)
		c.require(want)
	}
}

// TestDiscardSparesWhatIsNamed: the outputs of a compaction that has won are not deleted if the answer was lost.
func TestDiscardSparesWhatIsNamed(t *testing.T) {
	c, want := spilling(t, runsPerLevel)
	out, err := c.merge(c.ctx, c.latest().choose())
	require.NoError(t, err)
	require.NoError(t, out.commit(c.ctx))
	require.ErrorIs(t, out.commit(c.ctx), errOvertaken)
	require.NotEmpty(t, out.made)
	c.discard(c.ctx, out.made, new(root))
	c.require(want)
}

// TestCollectionDefeatsACommitInFlight: a collection defeats a commit that has written its segments, too: the commit
// starts again with new names.
func TestCollectionDefeatsACommitInFlight(t *testing.T) {
	commitDuring(t, func(c *cell, other *Projection) {
		n, err := other.Collect(c.ctx, 0)
		require.NoError(t, err)
		require.Equal(t, 2, n)
	})
}

// TestACompactionIsRebased: commits of others do not defeat a compaction: the compaction's outcome goes onto the newer
// root.
func TestACompactionIsRebased(t *testing.T) {
	c, want := spilling(t, runsPerLevel)
	stalled := &between{lax: lax{c.bucket}}
	p := c.over(stalled)
	stalled.do = func() {
		for i := range 3 {
			want["n1"] = fmt.Sprintf("again@%d", c.put("n1", "again"))
			want[fmt.Sprint("new", i)] = fmt.Sprintf("x@%d", c.put(fmt.Sprint("new", i), "x"))
			c.commit()
		}
	}
	done, err := p.Compact(c.ctx)
	require.NoError(t, err)
	require.True(t, done)
	c.require(want)
	c.Projection = c.another()
	require.Len(t, c.latest().snap.runs, 4)
}

// TestOneOfTwoCompactionsWins: if two projectors compact the same runs, one wins, and the other's outputs are deleted.
func TestOneOfTwoCompactionsWins(t *testing.T) {
	c, want := spilling(t, runsPerLevel)
	stalled := &between{lax: lax{c.bucket}}
	p := c.over(stalled)
	stalled.do = func() {
		done, err := c.Compact(c.ctx)
		require.NoError(t, err)
		require.True(t, done)
	}
	done, err := p.Compact(c.ctx)
	require.NoError(t, err)
	require.False(t, done)
	c.require(want)
	n, err := c.Collect(c.ctx, 0)
	require.NoError(t, err)
	require.Equal(t, runsPerLevel, n)
	c.require(want)
}

// TestGraceIsKept: garbage younger than the grace period stays. If there is nothing to collect, nothing is written.
func TestGraceIsKept(t *testing.T) {
	c, _ := spilling(t, runsPerLevel)
	_, err := c.Compact(c.ctx)
	require.NoError(t, err)
	serial := c.latest().snap.root.Serial
	n, err := c.Collect(c.ctx, time.Hour)
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = c.Collect(c.ctx, 0)
	require.NoError(t, err)
	require.Equal(t, runsPerLevel, n)
	n, err = c.Collect(c.ctx, 0)
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, serial+1, c.latest().snap.root.Serial)
}

// TestTheBaseKeepsItsUntouchedParts: the base is rewritten in parts. Parts without newer versions between their keys
// stay as they are.
func TestTheBaseKeepsItsUntouchedParts(t *testing.T) {
	p, err := Open(Config{Log: newCell(t).log, Bucket: memory.New(), InlineBytes: 1})
	require.NoError(t, err)
	part := func(level uint8, keys ...string) run {
		var records []*record
		for i, k := range keys {
			r := newRecord(exampleRecords()[0].Event)
			r.key, r.Key.Name, r.Revision = "main/deployments/ns/"+k, k, Revision(i+1+100*int(9-level))
			records = append(records, r)
		}
		next := &draft{root: new(root)}
		require.NoError(t, p.spill(t.Context(), next, records))
		ref := next.Segments[0]
		ref.Level = level
		return run{new(root).newPart(p, ref)}
	}
	base := append(append(part(9, "a", "b"), part(9, "d", "e")...), part(9, "g", "h")...)
	outputs, err := p.merge(t.Context(), &merge{inputs: []run{part(0, "c", "x"), part(1, "b"), base}, level: baseLevel})
	require.NoError(t, err)
	require.Len(t, outputs.refs, 3)
	require.Equal(t, base[1].ref.Key, outputs.refs[1].Key)
	require.EqualValues(t, 4, outputs.refs[0].Rows) // a, b twice, c
	require.EqualValues(t, 3, outputs.refs[2].Rows)
	require.NoError(t, (&root{Segments: outputs.refs}).check())
}

// TestTombstonesGoLast: deletions leave nothing behind once floor and purge point have passed them, but not before
// (invariant 11).
func TestTombstonesGoLast(t *testing.T) {
	c := newCell(t, func(c *Config) { c.InlineBytes = 1 })
	c.put("a", "1")
	gone := c.remove("a")
	for i := range 2 * runsPerLevel {
		c.put(fmt.Sprint("b", i), "1")
		c.commit()
	}
	compact := func() *View {
		for i := range 2 * runsPerLevel {
			c.put(fmt.Sprint("c", i), fmt.Sprint(i))
			c.commit()
		}
		c.compactAll()
		return c.latest()
	}
	_, ok, err := compact().last(c.ctx, podKey("a"))
	require.NoError(t, err)
	require.True(t, ok, "floor and log still have it")
	require.NoError(t, c.Retain(c.ctx, gone, 0))
	_, ok, err = compact().last(c.ctx, podKey("a"))
	require.NoError(t, err)
	require.True(t, ok, "the log still has it")
	require.NoError(t, c.Retain(c.ctx, gone, gone))
	v := compact()
	_, ok, err = v.last(c.ctx, podKey("a"))
	require.NoError(t, err)
	require.False(t, ok)
	c.last["a"] = lastEvent{}
	c.put("a", "again")
	rows := 0
	for _, err := range c.latest().versions(c.ctx, podKey("a").RowKey(), c.latest().Revision()+1, 0) {
		require.NoError(t, err)
		rows++
	}
	require.Equal(t, 1, rows)
}
