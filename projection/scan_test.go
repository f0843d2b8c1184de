package projection

import (
	"fmt"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/cache"
)

// TestSelectionWithoutRoom: a selection reads no more than a scan where most of what it finds in the base has changed
// since, in blocks that it passed over, and no cache has room for these.
func TestSelectionWithoutRoom(t *testing.T) {
	c := newCell(t, func(c *Config) { c.InlineBytes = 1 })
	const objects = 400
	update := func(fact string, every int) {
		for i := 0; i < objects; i += every {
			c.put(fmt.Sprintf("%03d", i), fact+incompressible(10<<10+i)) // some six in a block
		}
		c.commit()
	}
	update("a", 1)
	require.NoError(t, c.flatten(c.ctx))
	update("b", 1)
	update("c", 4)
	counted := bucket.Count(c.bucket)
	p := c.over(counted)
	v, err := p.Latest(c.ctx)
	require.NoError(t, err)
	require.Len(t, v.snap.runs, 3)
	letters := func(rows iter.Seq[Row]) (all []Fact, ok bool) {
		for row := range rows {
			all = append(all, Fact(row.Value[0]))
		}
		return all, true
	}
	wanted := &Selection{Kind: "first letters", Demands: [][]Fact{{'a'}}, Facts: letters}
	read := func(wanted *Selection) (found, reads int) {
		p.cache = newBlockCache(cache.NewBudget(0))
		for _, r := range v.snap.runs {
			for _, part := range r {
				part.reader.Store(nil) // it is opened with that cache
				_, err := part.open(c.ctx)
				require.NoError(t, err)
			}
		}
		before := counted.Counts().GetRange
		for row, err := range v.Select(c.ctx, "", "", v.Revision(), wanted) {
			require.NoError(t, err)
			if row.Value[0] == 'a' {
				found++
			}
		}
		return found, int(counted.Counts().GetRange - before)
	}
	_, scan := read(nil)
	read(wanted) // which learns the facts
	found, selection := read(wanted)
	require.Zero(t, found)
	require.LessOrEqual(t, selection, 2*scan, "reads of %d objects that are not selected any more", objects)
}
