package projection

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/cache"
)

// measured counts the bytes that are read from a bucket.
type measured struct {
	bucket.Bucket
	bytes atomic.Int64
}

func (m *measured) Get(ctx context.Context, key string) ([]byte, string, error) {
	body, etag, err := m.Bucket.Get(ctx, key)
	m.bytes.Add(int64(len(body)))
	return body, etag, err
}

func (m *measured) GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	body, err := m.Bucket.GetRange(ctx, key, offset, length)
	m.bytes.Add(int64(len(body)))
	return body, err
}

// archived keeps all events, and makes no checkpoint after the first.
func archived(c *Config) { c.InlineBytes, c.History = 1, 290*365*24*time.Hour }

// expire commits, and raises the floor above all checkpointed and archived events.
func (c *cell) expire() {
	c.t.Helper()
	applied := c.commit()
	require.NoError(c.t, c.Retain(c.ctx, applied, applied))
	_, err := c.Collect(c.ctx, 0)
	require.NoError(c.t, err)
	require.Len(c.t, c.latest().snap.root.Checkpoints, 1)
}

// bulk is a value that does not compress.
func bulk(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b)
	return string(b)
}

// TestAGapIsReadExactly: in a gap between checkpoints only the newest archived event of each key is kept in memory.
// Every moment is still exact, even when it is read from the view of a later moment.
func TestAGapIsReadExactly(t *testing.T) {
	c := newCell(t, archived)
	states := []map[string]string{{}}
	now := map[string]string{}
	put := func(name string) { now[name] = fmt.Sprintf("x@%d", c.put(name, "x")) }
	remove := func(name string) { c.remove(name); delete(now, name) }
	step := func(act func(string), name string) {
		act(name)
		states = append(states, maps.Clone(now))
	}
	for _, name := range []string{"a", "b", "c"} {
		step(put, name)
	}
	base := c.commit()
	for range 3 {
		step(remove, "a")
		step(put, "a")
		step(put, "a")
		step(remove, "b")
		step(put, "d")
		c.commit()
		step(put, "b")
		step(put, "c")
		step(remove, "d")
	}
	head := c.commit()
	step(put, "last")
	c.expire()
	p := c.another(archived)
	moment, err := p.AsOf(c.ctx, head)
	require.NoError(t, err)
	require.NotNil(t, moment.past)
	for at := base; at <= head; at++ {
		own, err := p.AsOf(c.ctx, at)
		require.NoError(t, err)
		for _, v := range []*View{own, moment} {
			got, err := state(c.ctx, v, at)
			require.NoError(t, err)
			require.Equal(t, states[at], got, "at %d", at)
			n, err := v.Count(c.ctx, "", "", at)
			require.NoError(t, err)
			require.Equal(t, len(states[at]), n)
			for _, name := range []string{"a", "b", "c", "d"} {
				row, found, err := v.Get(c.ctx, podKey(name).RowKey(), at)
				require.NoError(t, err)
				want, live := states[at][name]
				require.Equal(t, live, found, "%s at %d", name, at)
				if found {
					require.Equal(t, want, fmt.Sprintf("x@%d", row.Revision))
				}
			}
		}
	}
	whole, err := moment.Of(c.ctx, Keys{})
	require.NoError(t, err)
	require.Len(t, whole.tail.records, 4)
	got, err := state(c.ctx, whole, head)
	require.NoError(t, err)
	require.Equal(t, states[head], got)
	_, _, err = whole.Get(c.ctx, podKey("a").RowKey(), head-1)
	require.ErrorIs(t, err, ErrExpired)
	_, _, err = moment.Get(c.ctx, podKey("a").RowKey(), head+1)
	require.ErrorIs(t, err, ErrFuture)
}

// TestAGapIsReadWithinTheBudget: only one of the many versions of a key in a gap is held. The budget bounds the memory
// that many keys take together.
func TestAGapIsReadWithinTheBudget(t *testing.T) {
	const size, versions = 100 << 10, 40
	config := func(c *Config) {
		archived(c)
		c.Budget = cache.NewBudget(1 << 20)
	}
	c := newCell(t, archived)
	c.put("a", "first")
	c.commit()
	for i := range versions {
		c.put("a", bulk(size))
		if i%10 == 9 {
			c.commit()
		}
	}
	for i := range 4 {
		c.put(fmt.Sprint("b", i), bulk(size))
	}
	at := c.commit()
	c.put("last", "x")
	c.expire()
	p := c.another(config)
	v, err := p.AsOf(c.ctx, at)
	require.NoError(t, err)
	key := podKey("a").RowKey()
	row, found, err := v.Get(c.ctx, key, at)
	require.NoError(t, err)
	require.True(t, found)
	require.Len(t, row.Value, size)
	folded, known := p.folded.Get(foldedKeys{Keys{key, key + "\x00"}, v.Applied(), at, v.past.root.Forgets})
	require.True(t, known)
	require.Len(t, folded.records, 1)
	require.Less(t, folded.bytes, size+1000)
	_, err = state(c.ctx, v, at)
	require.ErrorIs(t, err, ErrTooMuch)
	_, err = v.Count(c.ctx, "", "", at)
	require.ErrorIs(t, err, ErrTooMuch)
	got, err := state(c.ctx, v, v.Applied())
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "first@1"}, got)
}

// TestAPageOfVersionsReadsWhatItReturns: a page of versions reads about as many bytes as it returns, however many
// versions the key has: above the floor, in a checkpoint, and in the archived events above the checkpoint.
func TestAPageOfVersionsReadsWhatItReturns(t *testing.T) {
	const size, versions = 100 << 10, 80
	c := newCell(t, archived)
	key := podKey("a").RowKey()
	for range versions {
		c.put("a", bulk(size))
	}
	first := c.commit() // the first commit makes a checkpoint
	c.put("b", "x")
	c.commit()
	page := func(below Revision) (rows []Row, bytes int64) {
		m := &measured{Bucket: c.bucket}
		p := c.over(m, archived, func(c *Config) { c.Budget = cache.NewBudget(1) })
		_, err := p.Latest(c.ctx)
		require.NoError(t, err)
		m.bytes.Store(0)
		rows, _, err = p.Versions(c.ctx, key, below, 2, nil)
		require.NoError(t, err)
		return rows, m.bytes.Load()
	}
	check := func(newest Revision) {
		t.Helper()
		rows, bytes := page(newest + 1)
		require.Len(t, rows, 2)
		require.Equal(t, []Revision{newest, newest - 1}, []Revision{rows[0].Revision, rows[1].Revision})
		require.Less(t, bytes, int64(versions/4*size)) // read-ahead takes a little more
	}
	check(first)
	c.remove("a")
	for range versions {
		c.put("a", bulk(size))
	}
	last := c.commit()
	check(last)
	c.expire()
	check(first)
	var all []Revision
	for below := last + 100; below > 0; {
		rows, next, err := c.Versions(c.ctx, key, below, 3, nil)
		require.NoError(t, err)
		require.LessOrEqual(t, len(rows), 3)
		for _, r := range rows {
			all = append(all, r.Revision)
		}
		below = next
	}
	require.Len(t, all, 2*versions+1)
}

// TestAnEmptyRangeHasNoEvents: an empty range has no events, wherever it lies.
func TestAnEmptyRangeHasNoEvents(t *testing.T) {
	for _, inline := range []int{1, 1 << 20} {
		c := newCell(t, archived, func(c *Config) { c.InlineBytes = inline })
		for range 3 {
			c.put("a", "x")
		}
		c.commit()
		c.put("a", "in the tail")
		head := c.latest().Revision()
		none := func(after, upto Revision) {
			t.Helper()
			for _, of := range []Keys{{}, {podKey("a").RowKey(), podKey("a").RowKey() + "\x00"}} {
				for e, err := range c.events(c.ctx, of, after, upto) {
					require.Fail(t, "an event", "%v %v", e, err)
				}
				for e, err := range c.Archived(c.ctx, of, after, upto, nil) {
					require.Fail(t, "an event", "%v %v", e, err)
				}
			}
		}
		for _, after := range []Revision{2, 3, head, head + 1, math.MaxUint64 - 1, math.MaxUint64} {
			for upto := Revision(0); upto <= min(after, head); upto++ {
				none(after, upto)
			}
		}
		var seen []eventlog.Revision
		for e, err := range c.Archived(c.ctx, Keys{}, 1, head, nil) {
			require.NoError(t, err)
			seen = append(seen, e.Revision)
		}
		require.Equal(t, []eventlog.Revision{2, 3, 4}, seen)
	}
}

// TestTimesBeyondTheClock: times outside the range of int64 nanoseconds are before or after everything.
func TestTimesBeyondTheClock(t *testing.T) {
	c := newCell(t, archived)
	c.put("a", "x")
	head := c.put("a", "y")
	c.commit()
	for _, year := range []int{-5000, 1, 1600, 1677, 1969} {
		rev, err := c.RevisionAt(c.ctx, time.Date(year, 6, 1, 0, 0, 0, 0, time.UTC))
		require.NoError(t, err)
		require.Zero(t, rev, year)
	}
	for _, year := range []int{2261, 2263, 2600, 9999} {
		rev, err := c.RevisionAt(c.ctx, time.Date(year, 6, 1, 0, 0, 0, 0, time.UTC))
		require.NoError(t, err)
		require.Equal(t, head, rev, year)
	}
}
