package projection

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket/filesystem"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// TestReplicatedLog: on three servers, a write through one server can be read at once through each other server
// (invariant 4), across commits. The barriers that such reads need leave no holes, and barriers alone cause no root.
func TestReplicatedLog(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a cluster")
	}
	servers := eventlogtest.Cluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := &cell{t: t, ctx: ctx, log: servers.Log(0), bucket: memory.Strict(t), last: map[string]lastEvent{}}
	var projections []*Projection
	for i := range 3 {
		c.log = servers.Log(i)
		projections = append(projections, c.another(func(c *Config) { c.InlineBytes = 2000 }))
	}
	for i := range 60 {
		rev := c.put("a", fmt.Sprint(i))
		for _, p := range projections {
			v, err := p.Latest(ctx)
			require.NoError(t, err)
			row, ok, err := v.Get(ctx, podKey("a").RowKey(), v.Revision())
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, rev, row.Revision)
		}
		if i%7 == 0 {
			_, err := projections[i%3].Commit(ctx)
			require.NoError(t, err)
		}
	}
	applied, err := projections[0].Commit(ctx)
	require.NoError(t, err)
	for range 5 {
		again, err := projections[0].Commit(ctx)
		require.NoError(t, err)
		require.Equal(t, applied, again)
	}
	v, err := projections[1].Latest(ctx)
	require.NoError(t, err)
	n := 0
	for e, err := range projections[1].events(ctx, Keys{}, 0, v.Revision()) {
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(n), string(e.Body))
		n++
	}
	require.Equal(t, 60, n)
}

// TestRandomHistoryOnTheFilesystem: random histories on the filesystem bucket, which the embedded server uses.
func TestRandomHistoryOnTheFilesystem(t *testing.T) {
	quiet(t)
	c := newCell(t)
	folder, err := filesystem.Open(t.TempDir())
	require.NoError(t, err)
	small := func(c *Config) { c.InlineBytes = 700 }
	r := newRandom(c, 77, 20)
	projections := []*Projection{c.over(folder, small), c.over(folder, small)}
	c.Projection = projections[0]
	for range 60 {
		for range 1 + r.IntN(5) {
			r.step()
		}
		r.tend(projections[r.IntN(2)])
		r.check(r.ctx, projections[r.IntN(2)], r.Rand)
	}
	r.check(r.ctx, c.over(folder, small), r.Rand)
}
