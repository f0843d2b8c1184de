package projection

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestCheckpointsPinNoArchive: a checkpoint keeps no archived event: events that the root no longer names are garbage
// at once. The same holds in a cell whose checkpoints are of an earlier version, which copied the archive into them.
// Every kept moment can still be read.
func TestCheckpointsPinNoArchive(t *testing.T) {
	config := func(c *Config) {
		c.InlineBytes, c.History = 1, time.Hour
		c.Checkpoints = []CheckpointRule{{Every: 1, Keep: time.Hour}}
	}
	c := newCell(t, config)
	c.Projection = c.over(lax{c.bucket}, config)
	key := podKey("a").RowKey()
	for i := range 12 {
		c.put("a", fmt.Sprint("v", i))
		applied := c.commit()
		require.NoError(t, c.Retain(c.ctx, applied-min(applied, 2), 0))
	}
	next := c.latest().snap.draft()
	require.Len(t, next.Checkpoints, 12)
	require.Len(t, next.Events, 12, "the root has all of the archive")
	for i, at := range next.Checkpoints {
		body, _, err := c.bucket.Get(c.ctx, at.Key)
		require.NoError(t, err)
		past, err := decodeRoot(body)
		require.NoError(t, err)
		require.Len(t, past.Events, min(i+1, 3), "those above the checkpoint's floor %d", past.Floor)
		require.Greater(t, past.Events[0].MaxRevision, past.Floor)

		// Earlier versions wrote such a checkpoint.
		past.Events = c.latest().snap.root.Events[:i+1]
		body = encodeRoot(past)
		next.Checkpoints[i].Key += "-whole"
		_, err = c.bucket.Create(c.ctx, next.Checkpoints[i].Key, body)
		require.NoError(t, err)
	}
	before, err := c.History(c.ctx, key)
	require.NoError(t, err)
	require.Len(t, before, 12)

	// History no longer keeps events before the sixth checkpoint, which reaches back to revision 3.
	next.Checkpoints = next.Checkpoints[5:]
	next.Horizon, next.Archive = next.Clock, next.Checkpoints[0].Time
	c.forgetEvents(next.root)
	c.become(next)
	require.EqualValues(t, 6, next.archiveStart())
	_, err = c.Collect(c.ctx, 0)
	require.NoError(t, err)
	var events []string
	for name := range keysOf(t, c) {
		if strings.HasPrefix(name, "logplane/events/") {
			events = append(events, name)
		}
	}
	require.Len(t, events, 12-3, "those that nothing reads are still in the bucket")

	p := c.another(config)
	requireClean(t, p)
	history, err := p.History(c.ctx, key)
	require.NoError(t, err)
	require.Equal(t, before, history, "rows stay until they are compacted")
	requireVersions(t, p, key, history, math.MaxInt)
	for at := Revision(3); at <= 12; at++ {
		row, found, err := p.GetAt(c.ctx, key, at)
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, fmt.Sprint("v", at-1), string(row.Value))
	}
	_, _, err = p.GetAt(c.ctx, key, 2)
	require.ErrorIs(t, err, ErrExpired)
}
