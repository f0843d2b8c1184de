package projection

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/stretchr/testify/require"
)

// cell is a log, a strict bucket and a projection of them, and a writer that knows every key's last event.
type cell struct {
	t      testing.TB
	ctx    context.Context
	log    *eventlog.Log
	bucket *memory.Bucket
	*Projection
	last map[string]lastEvent
	n    int
}

type lastEvent struct {
	revision Revision
	live     bool
}

func newCell(t testing.TB, change ...func(*Config)) *cell {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	c := &cell{t: t, ctx: ctx, log: eventlogtest.Log(t), bucket: memory.Strict(t), last: map[string]lastEvent{}}
	c.Projection = c.another(change...)
	return c
}

// another is a second projection of the same cell.
func (c *cell) another(change ...func(*Config)) *Projection {
	return c.over(c.bucket, change...)
}

func (c *cell) over(b bucket.Bucket, change ...func(*Config)) *Projection {
	config := Config{Log: c.log, Bucket: b}
	for _, f := range change {
		f(&config)
	}
	p, err := Open(config)
	require.NoError(c.t, err)
	return p
}

func podKey(name string) eventlog.Key {
	return eventlog.Key{Cluster: "main", Resource: "pods", Prefix: "/pods", Namespace: "ns", Name: name}
}

// put creates or updates an object, remove deletes it: with the right base and precondition.
func (c *cell) put(name, value string) Revision {
	w := eventlog.Write{Key: podKey(name), Op: eventlog.Added, ContentType: "application/cbor", Body: []byte(value)}
	last := c.last[name]
	w.Precondition = last.revision
	if last.live {
		w.Op, w.Base = eventlog.Modified, last.revision
	}
	return c.write(w)
}

func (c *cell) remove(name string) Revision {
	last := c.last[name]
	return c.write(eventlog.Write{Key: podKey(name), Op: eventlog.Deleted, Base: last.revision, Precondition: last.revision,
		ContentType: "application/cbor", Body: []byte("last state")})
}

func (c *cell) write(w eventlog.Write) Revision {
	c.t.Helper()
	first, err := c.log.Head(c.ctx)
	require.NoError(c.t, err)
	if w.Precondition < first.First {
		w.Precondition = 0
	}
	c.n++
	rev, err := c.log.Append(c.ctx, fmt.Sprint("request-", c.n), w)
	require.NoError(c.t, err)
	c.last[w.Key.Name] = lastEvent{rev, w.Op != eventlog.Deleted}
	return rev
}

func (c *cell) latest() *View {
	c.t.Helper()
	v, err := c.Latest(c.ctx)
	require.NoError(c.t, err)
	return v
}

func (c *cell) commit() Revision {
	c.t.Helper()
	applied, err := c.Commit(c.ctx)
	require.NoError(c.t, err)
	return applied
}

// state is the view at a revision, by name.
func state(ctx context.Context, v *View, at Revision) (map[string]string, error) {
	out := map[string]string{}
	for row, err := range v.Scan(ctx, "", "", at) {
		if err != nil {
			return nil, err
		}
		out[row.ID.Name] = fmt.Sprintf("%s@%d", row.Value, row.Revision)
	}
	return out, nil
}

func TestReadsCrossSnapshotAndTail(t *testing.T) {
	for _, inline := range []int{1, 256 << 10} {
		t.Run(fmt.Sprint("inline ", inline), func(t *testing.T) {
			c := newCell(t, func(c *Config) { c.InlineBytes = inline })
			ctx := c.ctx
			v := c.latest()
			require.Zero(t, v.Revision())
			require.EqualValues(t, 1, v.First())
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
				row, ok, err := v.Get(ctx, podKey("a").Row(), a1)
				require.NoError(t, err)
				require.True(t, ok)
				require.Equal(t, a1, row.Revision)
				require.Equal(t, podKey("a"), row.ID)
				require.Equal(t, "application/cbor", row.ContentType)
				row, ok, err = v.Get(ctx, podKey("a").Row(), b4)
				require.NoError(t, err)
				require.True(t, ok)
				require.Equal(t, a3, row.Revision)
				require.Equal(t, a1, row.Base)
				_, ok, err = v.Get(ctx, podKey("b").Row(), b4)
				require.NoError(t, err)
				require.False(t, ok)
				row, ok, err = v.Last(ctx, podKey("b").Row())
				require.NoError(t, err)
				require.True(t, ok && row.Deleted)
				require.Equal(t, b4, row.Revision)
				_, _, err = v.Get(ctx, podKey("b").Row(), b4+1)
				require.ErrorIs(t, err, ErrFuture)
				var ops []eventlog.Op
				for e, err := range c.Events(ctx, 0, b4) {
					require.NoError(t, err)
					ops = append(ops, e.Op)
					if e.Op == eventlog.Deleted {
						require.Equal(t, "last state", string(e.Body))
					}
				}
				require.Equal(t, []eventlog.Op{eventlog.Added, eventlog.Added, eventlog.Modified, eventlog.Deleted}, ops)
				rows, err := c.History(ctx, podKey("b").Row())
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
			require.EqualValues(t, a3, v.First())
			_, _, err := v.Get(ctx, "x", b2)
			require.ErrorIs(t, err, ErrExpired)
			c.Projection = c.another()
			got, err := state(ctx, c.latest(), a3)
			require.NoError(t, err)
			require.Equal(t, map[string]string{"a": "3@3", "b": "2@2"}, got)
		})
	}
}
