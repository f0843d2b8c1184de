package projection

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/segment"
)

// TestRootsOfLargeArchives: a root does not grow with its archive: 10 GB, or 100 GB, of events in segments of 8 MiB add
// some kilobytes to a root, and so to each commit. They add nothing to a checkpoint.
func TestRootsOfLargeArchives(t *testing.T) {
	size := func(gigabytes int) (inRoot, inCheckpoint, pages int) {
		c := newCell(t)
		c.put("a", "x")
		c.commit()
		next := c.latest().snap.draft()
		const each = 1000 // revisions in a segment
		for n := range gigabytes << 30 / joinedBytes {
			first := Revision(n*each + 1)
			next.Events = append(next.Events, segmentRef{Key: c.segmentKey("events", first, first+each-1), Size: joinedBytes, Footer: 24 << 10, Rows: each,
				MinKey: []byte(segment.EventKey(uint64(first))), MaxKey: []byte(segment.EventKey(uint64(first + each - 1))), MinRevision: first, MaxRevision: first + each - 1})
		}
		next.Inline, next.records = nil, nil
		next.Spilled = next.Events[len(next.Events)-1].MaxRevision
		next.Applied, next.Floor = next.Spilled, next.Spilled
		v := &View{p: c.Projection, snap: c.snapshotOf(next.root, nil, nil, "", nil)}
		for refs := v.pageable(); refs != nil; refs = v.pageable() {
			pg, err := c.writePage(c.ctx, refs)
			require.NoError(t, err)
			next.Pages, next.Events = append(next.Pages, pg), next.Events[len(refs):]
			v.snap = c.snapshotOf(next.root, nil, nil, "", nil)
		}
		require.NoError(t, next.check())
		segments := 0
		for part, err := range v.snap.archive(c.ctx, 0, next.Applied) {
			require.NoError(t, err)
			require.EqualValues(t, segments*each+1, part.ref.MinRevision)
			segments++
		}
		require.Equal(t, gigabytes<<30/joinedBytes, segments)
		body := encodeRoot(next.root)
		made, err := c.writeCheckpoint(c.ctx, next.root)
		require.NoError(t, err)
		copied, _, err := c.bucket.Get(c.ctx, made.Key)
		require.NoError(t, err)
		for name := range keysOf(t, c) {
			if strings.HasPrefix(name, "logplane/pages/") {
				page, _, err := c.bucket.Get(c.ctx, name)
				require.NoError(t, err)
				require.Less(t, len(page), 64<<10)
			}
		}
		t.Logf("%3d GB of events: root %d bytes, of them %d pages; checkpoint %d bytes", gigabytes, len(body), len(next.Pages), len(copied))
		return len(body), len(copied), len(next.Pages)
	}
	small, checkpoint, _ := size(1)
	for _, gigabytes := range []int{10, 100} {
		root, copied, pages := size(gigabytes)
		require.NotZero(t, pages)
		require.Less(t, root, 64<<10+small)
		require.LessOrEqual(t, copied, checkpoint+16)
	}
}

// TestArchiveOfPages: each moment and each history is read through the archive's pages as from the root. Event segments
// that History no longer keeps are garbage, even those in the middle of a page. A page is garbage if none of its
// segments is kept.
func TestArchiveOfPages(t *testing.T) {
	config := func(c *Config) {
		c.InlineBytes, c.History = 1, time.Hour
		c.Checkpoints = []CheckpointRule{{Every: 1, Keep: time.Hour}}
	}
	c := newCell(t, config)
	c.Projection = c.over(lax{c.bucket}, config)
	c.manyEvents = 8
	key := podKey("a").RowKey()
	const all = 30
	for i := range all {
		c.put("a", fmt.Sprint("v", i))
		applied := c.commit()
		require.NoError(t, c.Retain(c.ctx, applied-min(applied, 2), 0))
		require.NoError(t, compactOnly(c.ctx, c.Projection))
	}
	pages := c.latest().snap.root.Pages
	require.Len(t, pages, 6, "pages of four segments, so that the root has fewer than eight")
	require.Equal(t, page{Key: pages[1].Key, MinRevision: 5, MaxRevision: 8}, pages[1])

	kept := func(from Revision) {
		next := c.latest().snap.draft()
		at := next.checkpointAt(from)
		next.Checkpoints = next.Checkpoints[at:]
		next.Horizon, next.Archive = next.Clock, next.Checkpoints[0].Time
		c.forgetEvents(next.root)
		require.Equal(t, from, next.archiveStart())
		c.become(next)
		_, err := c.Collect(c.ctx, 0)
		require.NoError(t, err)

		p := c.another(config)
		requireClean(t, p)
		for at := from; at <= all; at++ {
			row, found, err := p.GetAt(c.ctx, key, at)
			require.NoError(t, err)
			require.True(t, found)
			require.Equal(t, fmt.Sprint("v", at-1), string(row.Value))
		}
		var events []Revision
		for e, err := range p.Archived(c.ctx, Keys{}, from, all, nil) {
			require.NoError(t, err)
			events = append(events, e.Revision)
		}
		require.Len(t, events, int(all-from))
		history, err := p.History(c.ctx, key)
		require.NoError(t, err)
		history = slices.DeleteFunc(history, func(row Row) bool { return row.Revision < from-3 }) // not yet compacted away
		versions, _, err := p.Versions(c.ctx, key, ^Revision(0), len(history), nil)
		require.NoError(t, err)
		require.Equal(t, revisionsOf(history), revisionsOf(versions))
		_, found, err := p.EventAt(c.ctx, key, from+1)
		require.NoError(t, err)
		require.True(t, found)
		_, found, err = p.EventAt(c.ctx, key, from)
		require.NoError(t, err)
		require.False(t, found)
	}
	objects := func(folder string) (n int) {
		for name := range keysOf(t, c) {
			if strings.HasPrefix(name, "logplane/"+folder+"/") {
				n++
			}
		}
		return n
	}
	kept(6)
	require.Equal(t, 5, objects("pages"), "the first page has nothing that is kept")
	require.Equal(t, all-3, objects("events"), "7 to 30, and 4 to 6 for the checkpoint at 6")
	kept(7)
	require.Equal(t, 5, objects("pages"))
	require.Equal(t, all-4, objects("events"))
	kept(8)
	require.Equal(t, 4, objects("pages"))
}

// TestLostPages: a lost or damaged page is reported. The objects that the page may name are not taken for garbage.
func TestLostPages(t *testing.T) {
	config := func(c *Config) { c.InlineBytes, c.History = 1, time.Hour }
	c := newCell(t, config)
	c.manyEvents = 4
	for i := range 6 {
		c.put("a", fmt.Sprint("v", i))
		applied := c.commit()
		require.NoError(t, c.Retain(c.ctx, applied, 0))
		require.NoError(t, compactOnly(c.ctx, c.Projection))
	}
	pages := c.latest().snap.root.Pages
	require.Len(t, pages, 2)
	_, err := c.Collect(c.ctx, 0)
	require.NoError(t, err)
	requireClean(t, c.another(config)) // no object that pages name was taken for garbage
	for _, name := range []string{"00000000000000000001-00000000000000000001", "00000000000000000006-00000000000000000006"} {
		_, err = c.bucket.Create(c.ctx, "logplane/events/"+name+"-orphan", nil)
		require.NoError(t, err)
	}
	for i, b := range []bucket.Bucket{&worn{lax: lax{c.bucket}, key: pages[0].Key}, lax{c.bucket}} {
		p := c.over(b, config)
		var problems []string
		_, err = p.Verify(c.ctx, func(problem error) { problems = append(problems, problem.Error()) })
		require.NoError(t, err)
		require.Len(t, problems, 1)
		require.Contains(t, problems[0], pages[0].Key)
		deleted, err := p.Collect(c.ctx, 0)
		require.NoError(t, err)
		require.Equal(t, 1-i, deleted, "what is above the page's end is garbage; of the rest nobody knows")
		w := p.rewrite(trimming("/pods", 0, 5))
		next, err := w.draft(c.ctx, p.Current())
		require.NoError(t, err)
		require.Equal(t, pages[0], next.Pages[0], "it is left as it is")
		require.NotEqual(t, pages[1], next.Pages[1])
		p.discard(c.ctx, w.made, w.since)
		if i == 0 {
			require.NoError(t, c.bucket.Delete(c.ctx, pages[0].Key))
		}
	}

	for _, refs := range [][]segmentRef{nil, {{MinRevision: 2, MaxRevision: 2}}, {{MinRevision: 1, MaxRevision: 1}}, {{MinRevision: 1, MaxRevision: 1}, {MinRevision: 3, MaxRevision: 3}}} {
		require.Error(t, (&page{MinRevision: 1, MaxRevision: 3}).check(refs))
	}
}
