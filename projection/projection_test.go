package projection

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
)

func TestReadsCrossSnapshotAndTail(t *testing.T) {
	for _, inline := range []int{1, 256 << 10} {
		t.Run(fmt.Sprint("inline ", inline), func(t *testing.T) {
			c := newCell(t, func(c *Config) { c.InlineBytes = inline })
			ctx := c.ctx
			v := c.latest()
			require.Zero(t, v.Revision())
			require.EqualValues(t, 1, v.first)
			a1 := c.put("a", "1")
			b2 := c.put("b", "2")
			require.EqualValues(t, b2, c.commit())
			a3 := c.put("a", "3")
			b4 := c.remove("b")
			check := func() {
				v := c.latest()
				require.Equal(t, b4, v.Revision())
				for at, want := range []map[string]string{
					{}, {"a": "1@1"}, {"a": "1@1", "b": "2@2"}, {"a": "3@3", "b": "2@2"}, {"a": "3@3"}} {
					got, err := state(ctx, v, Revision(at))
					require.NoError(t, err)
					require.Equal(t, want, got, at)
					n, err := v.Count(ctx, "main/pods/", "main/pods0", Revision(at))
					require.NoError(t, err)
					require.Equal(t, len(want), n)
				}
				row, ok, err := v.Get(ctx, podKey("a").RowKey(), a1)
				require.NoError(t, err)
				require.True(t, ok)
				require.Equal(t, a1, row.Revision)
				require.Equal(t, podKey("a"), row.ID)
				require.Equal(t, "application/cbor", row.ContentType)
				row, ok, err = v.Get(ctx, podKey("a").RowKey(), b4)
				require.NoError(t, err)
				require.True(t, ok)
				require.Equal(t, a3, row.Revision)
				require.Equal(t, a1, row.Base)
				_, ok, err = v.Get(ctx, podKey("b").RowKey(), b4)
				require.NoError(t, err)
				require.False(t, ok)
				row, ok, err = v.last(ctx, podKey("b"))
				require.NoError(t, err)
				require.True(t, ok && row.Deleted)
				require.Equal(t, b4, row.Revision)
				_, _, err = v.Get(ctx, podKey("b").RowKey(), b4+1)
				require.ErrorIs(t, err, ErrFuture)
				var ops []eventlog.Op
				for e, err := range c.events(ctx, Keys{}, 0, b4) {
					require.NoError(t, err)
					ops = append(ops, e.Op)
					if e.Op == eventlog.Deleted {
						require.Equal(t, "last state", string(e.Body))
					}
				}
				require.Equal(t, []eventlog.Op{eventlog.Added, eventlog.Added, eventlog.Modified, eventlog.Deleted}, ops)
				rows, err := c.History(ctx, podKey("b").RowKey())
				require.NoError(t, err)
				require.Len(t, rows, 2)
			}
			check()
			require.Equal(t, b4, c.commit())
			check()
			c.Projection = c.another()
			check()
			require.NoError(t, c.Retain(ctx, a3, b2))
			v = c.latest()
			require.Equal(t, a3, v.Floor())
			require.EqualValues(t, a3, v.first)
			_, _, err := v.Get(ctx, "x", b2)
			require.ErrorIs(t, err, ErrExpired)
			c.Projection = c.another()
			got, err := state(ctx, c.latest(), a3)
			require.NoError(t, err)
			require.Equal(t, map[string]string{"a": "3@3", "b": "2@2"}, got)
		})
	}
}
