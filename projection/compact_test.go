package projection

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/bucket"
)

// compacted compacts once, and requires that there was something to compact.
func (c *cell) compacted() *View {
	c.t.Helper()
	done, err := c.Compact(c.ctx)
	require.NoError(c.t, err)
	require.True(c.t, done, "there is something to compact")
	return c.latest()
}

// incompressible is a value of this many bytes that does not compress.
func incompressible(bytes int) string {
	r, b := rand.New(rand.NewPCG(1, uint64(bytes))), make([]byte, bytes)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return string(b)
}

// TestTombstonesHideWhatLiesBelow: a compaction that does not include the base keeps tombstones, however old they are.
// The base has the versions that the tombstones hide. So without a tombstone a deleted object would return (invariant
// 11).
func TestTombstonesHideWhatLiesBelow(t *testing.T) {
	c := newCell(t, func(c *Config) { c.InlineBytes = 1 })
	for i := range runsPerLevel { // a base so large that few runs are not merged into it
		c.put(fmt.Sprint("large", i), incompressible(16<<10))
		c.put("gone", fmt.Sprint(i))
		c.commit()
	}
	c.compacted()
	c.remove("gone")
	for i := range runsPerLevel {
		c.put(fmt.Sprint("small", i), "x")
		c.commit()
	}
	v := c.latest()
	require.NoError(t, c.Retain(c.ctx, v.Applied(), v.Applied()-1))
	c.latest() // learns that the log has been purged
	v = c.compacted()
	var levels []uint8
	for _, r := range v.snap.runs {
		levels = append(levels, r.level())
	}
	require.Equal(t, []uint8{1, baseLevel}, levels, "the levels after a compaction that must leave the base alone")
	_, found, err := v.Get(c.ctx, podKey("gone").RowKey(), v.Revision())
	require.NoError(t, err)
	require.False(t, found, "a deleted object has returned")
}

// TestEveryRunIsCut: whatever is merged, a part has about partBytes, even in a run above the base, or with versions of
// only one key. So the bytes that a compaction holds and sends at once do not grow.
func TestEveryRunIsCut(t *testing.T) {
	c := newCell(t, func(c *Config) { c.InlineBytes = 1 })
	c.partBytes = 64 << 10
	const value = 12 << 10
	n := 0
	fill := func(runs, each int, name func() string) *View {
		for range runs {
			for range each {
				n++
				c.put(name(), incompressible(value+n))
			}
			c.commit()
		}
		v := c.compacted()
		for _, s := range v.snap.root.Segments {
			if s.level() > 0 {
				require.Less(t, int(s.Size), c.partBytes*5/4+value+64<<10, "with the block at hand")
			}
		}
		return v
	}
	v := fill(runsPerLevel, 24, func() string { return fmt.Sprintf("n%03d", n) })
	require.Len(t, v.snap.runs, 1)
	v = fill(runsPerLevel, 4, func() string { return fmt.Sprintf("o%03d", n) })
	require.Len(t, v.snap.runs, 2)
	require.EqualValues(t, 1, v.snap.runs[0].level())
	require.Greater(t, len(v.snap.runs[0]), 4, "a run above the base is one segment")
	v = fill(runsPerLevel, 8, func() string { return "hot" })
	hot := v.snap.runs[len(v.snap.runs)-1].overlapping(podKey("hot").RowKey(), podKey("hot").RowKey()+"\x00")
	require.Greater(t, len(hot), 4, "the versions of one key are one segment")
	for at := v.Revision(); at > v.Revision()-8*runsPerLevel; at-- {
		row, found, err := v.Get(c.ctx, podKey("hot").RowKey(), at)
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, at, row.Revision)
	}
	requireClean(t, c.another())
}

// TestTombstonesOutliveTheirEvents: a tombstone stays for as long as the log has its event: a writer that does not know
// the event could never create the object again. The root permits the purge of the event, but only the log can say that
// the event was purged.
func TestTombstonesOutliveTheirEvents(t *testing.T) {
	c := newCell(t, func(c *Config) { c.InlineBytes = 1 })
	c.put("a", "1")
	gone := c.remove("a")
	for i := range runsPerLevel {
		c.put(fmt.Sprint("other", i), "x")
		c.commit()
	}
	away := errors.New("the log cannot be reached")
	c.purgeLog = func(context.Context, Revision) error { return away }
	require.ErrorIs(t, c.Retain(c.ctx, c.latest().Applied(), gone), away)
	v := c.compacted()
	require.Equal(t, baseLevel, int(v.snap.runs[0].level()))
	expected, err := v.precondition(c.ctx, podKey("a"))
	require.NoError(t, err)
	require.Equal(t, gone, expected, "what a creation expects the log to hold")
	_, err = c.log.Append(c.ctx, eventlog.Basis{}, "again", eventlog.Write{Key: podKey("a"), Op: eventlog.Added, Precondition: expected})
	require.NoError(t, err)
}

// TestVoidRowsOutliveTheirEvents: the row of a void event, too, stays for as long as the log has the event: in the log
// that event is the key's last one.
func TestVoidRowsOutliveTheirEvents(t *testing.T) {
	quiet(t)
	c := newCell(t, func(c *Config) { c.InlineBytes = 1 })
	live := c.put("a", "1")
	lost := c.write(eventlog.Write{Key: podKey("a"), Op: eventlog.Modified, Base: live + 100, Precondition: live})
	for i := range runsPerLevel {
		c.put(fmt.Sprint("other", i), "x")
		c.commit()
	}
	require.NoError(t, c.Retain(c.ctx, c.latest().Applied(), 0))
	v := c.compacted()
	row, found, err := v.Get(c.ctx, podKey("a").RowKey(), v.Revision())
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, live, row.Revision)
	expected, err := v.precondition(c.ctx, podKey("a"))
	require.NoError(t, err)
	require.Equal(t, lost, expected, "what an update expects the log to hold")
}

// elsewhere is a bucket whose clock differs from this process's clock.
type elsewhere struct {
	lax
	ahead time.Duration
}

func (b elsewhere) List(ctx context.Context, prefix string, yield func(bucket.Attributes) error) error {
	return b.lax.List(ctx, prefix, func(a bucket.Attributes) error {
		a.Modified = a.Modified.Add(b.ahead)
		return yield(a)
	})
}

// TestGraceIsOfTheBucketsTime: only the bucket's clock decides how old garbage is, because that clock gave the objects
// their times.
func TestGraceIsOfTheBucketsTime(t *testing.T) {
	for _, ahead := range []time.Duration{-24 * time.Hour, 24 * time.Hour} {
		c, want := spilling(t, runsPerLevel)
		c.compacted()
		p := c.over(elsewhere{lax{c.bucket}, ahead})
		n, err := p.Collect(c.ctx, time.Hour)
		require.NoError(t, err)
		require.Zero(t, n, "garbage of this second, by a bucket's clock that is %s ahead", ahead)
		n, err = p.Collect(c.ctx, 0)
		require.NoError(t, err)
		require.Equal(t, runsPerLevel, n)
		c.require(want)
	}
}

// yielding runs do in place of the swap of the root; do decides when the swap happens.
type yielding struct {
	lax
	do func(swap func())
}

func (b *yielding) Replace(ctx context.Context, key string, body []byte, etag string) (replaced string, err error) {
	swap := func() { replaced, err = b.lax.Replace(ctx, key, body, etag) }
	do := b.do
	b.do = nil
	if do == nil {
		swap()
	} else {
		do(swap)
	}
	return replaced, err
}

// TestCollectionSparesWhatWasNamedMeanwhile: an object that is garbage when a collection lists the bucket may be named
// by a commit before the collection's swap. Such an object stays (invariant 7).
func TestCollectionSparesWhatWasNamedMeanwhile(t *testing.T) {
	c, want := spilling(t, 3)
	var collected int
	collector := &between{lax: lax{c.bucket}}
	slow := &yielding{lax: lax{c.bucket}, do: func(swap func()) {
		collector.do = swap // after the collector's list, before its swap
		var err error
		collected, err = c.over(collector).Collect(c.ctx, 0)
		require.NoError(t, err)
	}}
	want["late"] = fmt.Sprintf("x@%d", c.put("late", "x"))
	_, err := c.over(slow, func(c *Config) { c.InlineBytes = 1 }).Commit(c.ctx)
	require.NoError(t, err)
	require.Zero(t, collected)
	c.require(want)
}

// TestOnceTendsTheBucket: a cell is also tended if its projector is a function that a timer calls: the cell's runs stay
// few, and the inputs of merges are collected once they are old enough.
func TestOnceTendsTheBucket(t *testing.T) {
	c := newCell(t, func(c *Config) { c.InlineBytes = 1; c.Grace = time.Nanosecond })
	merges := 0
	for i := range 4 * runsPerLevel {
		last := c.put(fmt.Sprint("n", i%3), fmt.Sprint(i))
		applied, merged, err := c.Once(c.ctx)
		require.NoError(t, err)
		require.Equal(t, last, applied)
		if merged {
			merges++
		}
	}
	v := c.latest()
	require.Positive(t, merges)
	require.Less(t, len(v.snap.runs), 2*runsPerLevel)
	require.NotZero(t, v.snap.root.Swept, "garbage was collected")
	require.Less(t, len(keysOf(t, c)), 6*runsPerLevel, "each commit wrote two objects")
}

// TestCompactionReadsARunOnce: a run is not read again for each part of a large base, however few parts the run
// touches.
func TestCompactionReadsARunOnce(t *testing.T) {
	c := newCell(t, func(c *Config) { c.InlineBytes = 1 })
	c.put("a", "before the large ones")
	for i := range 5 * partBytes >> 20 {
		c.put(fmt.Sprintf("m-%02d", i), incompressible(1<<20+i))
	}
	c.put("z", "after them")
	c.commit()
	require.NoError(t, c.flatten(c.ctx))
	parts := c.latest().snap.runs[0]
	require.Greater(t, len(parts), 4)
	for range runsPerLevel {
		c.put("a", "touched")
		c.put("z", "touched")
		c.commit()
	}
	gets := map[string]int{}
	p := c.over(&gotten{c.bucket, gets})
	v, err := p.Latest(c.ctx)
	require.NoError(t, err)
	_, err = p.merge(c.ctx, &merge{inputs: v.snap.runs, level: baseLevel, generation: v.snap.root.Generation})
	require.NoError(t, err)
	for _, r := range v.snap.runs[:runsPerLevel] {
		require.LessOrEqual(t, gets[r[0].ref.Key], 2, "its footer and its one block")
	}
	for _, untouched := range parts[1 : len(parts)-1] {
		require.Zero(t, gets[untouched.ref.Key])
	}
}

// gotten counts the ranged reads of each object.
type gotten struct {
	bucket.Bucket
	gets map[string]int
}

func (b *gotten) GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	b.gets[key]++
	return b.Bucket.GetRange(ctx, key, offset, length)
}
