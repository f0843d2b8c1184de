package projection

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// rowsOf is every live row of a view, whole.
func rowsOf(t testing.TB, c *cell, v *View) map[string]Row {
	t.Helper()
	rows := map[string]Row{}
	for row, err := range v.Scan(c.ctx, "", "", v.Revision()) {
		require.NoError(t, err)
		rows[row.Key] = row
	}
	return rows
}

// opened is a cell that was restored, with an empty log of its own that began.
func (c *cell) opened(b bucket.Bucket, prefix string) *cell {
	c.t.Helper()
	fresh := &cell{t: c.t, ctx: c.ctx, conn: eventlogtest.Start(c.t), last: map[string]lastEvent{}}
	fresh.log = eventlogtest.Open(c.t, eventlog.Config{Conn: fresh.conn, InMemory: true})
	p, err := Open(Config{Log: fresh.log, Bucket: b, Prefix: prefix, Founded: true})
	require.NoError(c.t, err)
	first, err := p.Begin(c.ctx)
	require.NoError(c.t, err)
	require.NotZero(c.t, first)
	fresh.Projection = p
	return fresh
}

// A cell is restored from its bucket at each revision: above the floor, at a checkpoint, between two, from the archive,
// and before there was any. Every row of the new cell is the one that was live then.
func TestRestoreIsExact(t *testing.T) {
	quiet(t)
	for seed := range seeds(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			archive := seed%2 == 0
			config := func(c *Config) {
				c.InlineBytes = []int{1, 600, 3000}[seed%3]
				c.Checkpoints = []CheckpointRule{{Every: 20 * time.Millisecond, Keep: time.Hour}}
				if archive {
					c.History = time.Hour
				}
			}
			r := newRandom(newCell(t, config), 70+seed, 20)
			r.Projection = r.over(lax{r.bucket}, config)
			for i := range 40 {
				for range 1 + r.IntN(6) {
					r.step()
				}
				r.commit()
				if i%3 == 0 {
					r.tend(r.Projection)
				}
				time.Sleep(time.Millisecond) // the log's clock goes on between two commits
			}
			v := r.latest()
			require.NoError(t, r.Retain(r.ctx, v.Applied()-5, v.Applied()-5))
			_, err := r.Collect(r.ctx, 0)
			require.NoError(t, err)

			source, err := OpenSource(r.ctx, r.bucket, "logplane", nil)
			require.NoError(t, err)
			newest, _ := source.Newest()
			var into bucket.Bucket // the source's own
			if seed%4 > 1 {
				into = memory.Strict(t)
			}
			restored := map[Revision]Restored{}
			want := map[Revision]map[string]Row{}
			for at := Revision(0); at <= newest; at++ {
				done, err := source.Restore(r.ctx, at, into, fmt.Sprint("new/", at))
				if err != nil {
					require.ErrorIs(t, err, ErrExpired)
					require.False(t, archive, "revision %d", at)
					continue
				}
				past, err := r.at(r.ctx, at)
				require.NoError(t, err)
				restored[at], want[at] = done, rowsOf(t, r.cell, past)
				require.EqualValues(t, len(want[at]), done.Objects)
			}
			require.Greater(t, len(restored), int(newest)/3)
			t.Logf("%d of %d revisions were restored", len(restored), newest)

			// The source is deleted.
			for key := range keysOf(t, r.cell) {
				if key != r.rootKey() {
					require.NoError(t, r.bucket.Delete(r.ctx, key))
				}
			}
			if into == nil {
				into = r.bucket
			}
			for at, done := range restored {
				copied, err := OpenSource(r.ctx, into, fmt.Sprint("new/", at), nil)
				require.NoError(t, err)
				v := copied.p.Current()
				require.Equal(t, want[at], rowsOf(t, r.cell, v), "at %d", at)
				require.Equal(t, done.Next-1, v.Revision())
				require.Equal(t, v.Revision(), v.Floor())
			}
			at := newest - Revision(r.IntN(5))
			fresh := r.opened(into, fmt.Sprint("new/", at))
			require.Equal(t, want[at], rowsOf(t, r.cell, fresh.latest()))
			require.Equal(t, restored[at].Next, fresh.put("another", "1"))
			fresh.commit()
			requireClean(t, fresh.another(func(c *Config) { c.Bucket, c.Prefix = into, fmt.Sprint("new/", at) }))
			require.EqualValues(t, 1, fresh.log.Epoch())
		})
	}
}
