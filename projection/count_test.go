package projection

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/projection/cache"
	"github.com/logplane/logplane/projection/segment"
)

// TestCountsOfBlocks: a count decodes only the blocks of the oldest run that share keys with newer runs or the tail.
func TestCountsOfBlocks(t *testing.T) {
	c := newCell(t, func(c *Config) { c.InlineBytes = 1 })
	const objects = 400
	name := func(i int) string { return fmt.Sprintf("%03d", i) }
	for i := range objects {
		c.put(name(i), incompressible(30<<10+i)) // two in a block
		if i%50 == 7 {
			c.put(name(i), "a second version in the base")
		}
	}
	c.remove(name(90))
	c.commit()
	require.NoError(t, c.flatten(c.ctx))
	old := c.latest().Revision()
	count := func(at Revision, from, to string) (decoded int) {
		t.Helper()
		v := c.latest()
		c.cache = newBlockCache(cache.NewBudget(64 << 20))
		for _, r := range v.snap.runs {
			for _, part := range r {
				part.reader.Store(nil) // so that it is opened with the new cache
			}
		}
		n, err := v.Count(c.ctx, "main/pods/ns/"+from, "main/pods/ns/"+to, at)
		require.NoError(t, err)
		for _, part := range v.snap.runs[len(v.snap.runs)-1] {
			for block := range objects {
				if _, ok := c.cache.Block(part.ref.Key, block); ok {
					decoded++
				}
			}
		}
		scanned := 0
		for _, err := range v.Scan(c.ctx, "main/pods/ns/"+from, "main/pods/ns/"+to, at) {
			require.NoError(t, err)
			scanned++
		}
		require.Equal(t, scanned, n, "from %q to %q at %d", from, to, at)
		return decoded
	}
	require.LessOrEqual(t, count(old, "", "~"), 20, "of 200 blocks the first, and those that share a key")
	require.LessOrEqual(t, count(old, "100", "300"), 20, "and the last")

	c.remove(name(200))
	c.put(name(300), "changed")
	c.put("300-new", "new")
	c.commit()
	c.put(name(350), "in the tail")
	c.remove(name(10))
	head := c.latest().Revision()
	require.LessOrEqual(t, count(head, "", "~"), 40, "and those of five keys, with what is decoded with them")
	require.Greater(t, count(old-1, "", "~"), 100, "of a revision before the base's last, its blocks say nothing")
	for at := old - 3; at <= head; at++ {
		count(at, "", "~")
		count(at, "05", "3")
	}
}

// TestCountFromFarAway: a number of rows that was known long ago is not used if the events since then may outnumber the
// rows. The test gives a wrong number, so that the count shows whether that number was used.
func TestCountFromFarAway(t *testing.T) {
	c := newCell(t)
	const rows, wrong = 5, 100
	for i := range rows {
		c.put(fmt.Sprint(i), "x")
	}
	first := c.last["4"].revision
	for range fewEvents + wrong {
		c.put("0", "changed")
	}
	c.commit()
	c.put("one more", "x")
	v := c.latest()
	all := Keys{"main/pods/", PrefixEnd("main/pods/")}
	count := func(at, knownAt Revision) int {
		n, err := v.CountFrom(c.ctx, all, at, wrong, knownAt)
		require.NoError(t, err)
		return n
	}
	head := v.Revision()
	require.Equal(t, wrong+1, count(head, first+1))
	require.Equal(t, wrong-1, count(first+1, head))
	require.Equal(t, rows+1, count(head, first))
	require.Equal(t, rows, count(first, head))
}

// TestOldSegmentsAreCounted: in segments whose index has no live keys, the rows are counted.
func TestOldSegmentsAreCounted(t *testing.T) {
	keys := sealKeys(t, exampleRecords())
	r, err := segment.OpenBytes("counted", keys)
	require.NoError(t, err)
	limit := func() string { return "" }
	require.Positive(t, r.Scan("", "").CountBlocks(limit))
	old, err := segment.OpenBytes("old", readFixture(t, "v1", "keys"))
	require.NoError(t, err)
	require.Zero(t, old.Scan("", "").CountBlocks(limit))
}
