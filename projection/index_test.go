package projection

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/cache"
	"github.com/logplane/logplane/projection/segment"
	"github.com/logplane/logplane/projection/segment/segmenttest"
)

// layered is a cell whose snapshot is as commits and compactions leave it: layers of objects, by number, the first
// being the base, every other a run above it.
func layered(t testing.TB, layers ...[]int) *cell {
	c := newCell(t)
	for i := range layers {
		c.put(fmt.Sprint("inline", i), "x")
	}
	c.commit()
	v, rng := c.latest(), rand.New(rand.NewPCG(1, 1))
	next := v.snap.draft()
	next.Segments = nil
	for depth, layer := range layers {
		o := &output{p: c.Projection, merge: &merge{level: baseLevel}}
		if depth > 0 {
			o.merge.level = 0
		}
		for _, i := range layer {
			value := fmt.Appendf(nil, "%d %x", depth, rng.Uint64())
			r := newRecord(eventlog.Event{Revision: Revision(depth + 1), RequestID: "r",
				Write: eventlog.Write{Key: benchKey(i), Op: eventlog.Added, ContentType: "application/cbor", Body: value}})
			require.NoError(t, o.add(c.ctx, []segment.Entry{r.keyEntry()}))
		}
		require.NoError(t, o.cut(c.ctx))
		next.Segments = slices.Concat(o.refs, next.Segments)
		next.footers = append(next.footers, o.footers...)
	}
	c.become(next)
	return c
}

// reads is how many GETs f costs a projection that has read nothing yet. A second call of f costs none.
func (c *cell) reads(f func(v *View)) int {
	c.t.Helper()
	counted := bucket.Count(c.bucket)
	v, err := c.over(counted).Latest(c.ctx)
	require.NoError(c.t, err)
	f(v)
	cold := counted.Counts()
	f(v)
	require.Equal(c.t, cold, counted.Counts(), "warm reads cost nothing")
	require.Zero(c.t, cold.Create+cold.Replace+cold.List+cold.Delete)
	return int(cold.Get + cold.GetRange)
}

func (c *cell) gets(i int, want string) int {
	return c.reads(func(v *View) {
		row, ok, err := v.Get(c.ctx, benchKey(i).RowKey(), v.Revision())
		require.NoError(c.t, err)
		require.Equal(c.t, want != "", ok)
		require.True(c.t, strings.HasPrefix(string(row.Value), want), "%d is %s", i, row.Value)
	})
}

// lists reads the namespace of 1,000 objects that has object i.
func (c *cell) lists(i, want int) int {
	ns := fmt.Sprintf("main/pods/ns-%04d", i/1000)
	return c.reads(func(v *View) {
		n, err := v.Count(c.ctx, ns+"/", ns+"0", v.Revision())
		require.NoError(c.t, err)
		require.Equal(c.t, want, n)
	})
}

func upTo(n, step int) (all []int) {
	for i := 0; i < n; i += step {
		all = append(all, i)
	}
	return all
}

// A few segments: their footers are in the root.
func TestRequestsOfASmallCell(t *testing.T) {
	c := layered(t, upTo(2000, 1), []int{5, 1500}, []int{5})
	require.Empty(t, c.latest().snap.root.Index)
	require.Equal(t, 1, c.gets(5000, ""), "bloom filters answer")
	require.Equal(t, 2, c.gets(7, "0"))
	require.Equal(t, 2, c.gets(5, "2"))
	require.Equal(t, 1+2, c.lists(1500, 1000), "root, two runs")
}

// A hundred thousand objects: root, idx, block.
func TestRequestsOfAHundredThousandObjects(t *testing.T) {
	if testing.Short() {
		t.Skip("a hundred thousand objects")
	}
	c := layered(t, upTo(100_000, 1), upTo(100_000, 10), upTo(100_000, 1000), []int{5})
	require.NotEmpty(t, c.latest().snap.root.Index)
	require.Equal(t, 3, c.gets(7, "0"))
	require.Equal(t, 3, c.gets(10, "1"))
	require.Equal(t, 3, c.gets(2000, "2"))
	require.Equal(t, 3, c.gets(5, "3"))
	require.Equal(t, 2+3, c.lists(1500, 1000), "root, idx, and one of each run")
	c = layered(t, upTo(100_000, 1))
	require.LessOrEqual(t, c.lists(1500, 1000), 4, "after a compaction")
}

// A million: the base keeps its footers itself.
func TestRequestsOfAMillionObjects(t *testing.T) {
	if testing.Short() || eventlogtest.Slowdown > 1 {
		t.Skip("a million objects")
	}
	c := layered(t, upTo(1_000_000, 1), upTo(1_000_000, 10), upTo(1_000_000, 1000))
	r := c.latest().snap.root
	require.Less(t, len(r.indexed()), len(r.Segments))
	require.Equal(t, 4, c.gets(7, "0"))
	require.LessOrEqual(t, c.gets(10, "1"), 4)
	require.LessOrEqual(t, c.gets(999_001, "0"), 4)
	require.LessOrEqual(t, c.lists(1500, 1000), 3+3)
	require.LessOrEqual(t, layered(t, upTo(1_000_000, 1)).lists(1500, 1000), 4, "after a compaction")
}

// For ten thousand absent keys, fewer than one lookup in a hundred reads a run that does not have the key.
func TestBloomFiltersAreRight(t *testing.T) {
	c := layered(t, upTo(10_000, 2), upTo(10_000, 20))
	counted := bucket.Count(c.bucket)
	v, err := c.over(counted, func(c *Config) { c.Budget = cache.NewBudget(1) }).Latest(c.ctx)
	require.NoError(t, err)
	n := 0
	for i := 1; i < 10_000; i += 2 {
		n++
		_, ok, err := v.Get(c.ctx, benchKey(i).RowKey(), v.Revision())
		require.NoError(t, err)
		require.False(t, ok)
	}
	require.Less(t, counted.Counts().GetRange, int64(2*n/100))
}

// The footers of spills go into the root; an idx object is written once for many, and again by what a compaction
// leaves.
func TestFootersOfSpills(t *testing.T) {
	if testing.Short() {
		t.Skip("thousands of objects")
	}
	c, want := spilling(t, 3)
	require.Empty(t, c.latest().snap.root.Index)
	require.Len(t, c.latest().snap.root.Footers, 3)
	indexes := map[string]bool{}
	for i := range 40 {
		for j := range 30 {
			name := fmt.Sprintf("%d-%d-%s", i, j, strings.Repeat("long", 150))
			want[name] = fmt.Sprintf("x@%d", c.put(name, "x"))
		}
		c.commit()
		indexes[c.latest().snap.root.Index] = true
		size := 0
		for _, f := range c.latest().snap.root.Footers {
			size += len(f.Sealed)
		}
		require.LessOrEqual(t, size, rootFooters)
		require.NoError(t, c.latest().snap.verifyIndex(c.ctx, c.Projection, func(err error) { t.Error(err) }))
	}
	require.Greater(t, len(indexes), 1)
	require.Less(t, len(indexes), 10)
	c.require(want)
	for more := true; more; {
		var err error
		more, err = c.Compact(c.ctx)
		require.NoError(t, err)
		require.NoError(t, c.latest().snap.verifyIndex(c.ctx, c.Projection, func(err error) { t.Error(err) }))
	}
	c.require(want)
	_, err := c.Collect(c.ctx, 0)
	require.NoError(t, err)
	c.require(want)
	for key := range keysOf(t, c) {
		if strings.Contains(key, "/idx/") {
			require.Equal(t, c.latest().snap.root.Index, key, "others are garbage")
		}
	}
}

// A process that has read a snapshot reads only what a commit added: nothing for its footers.
func TestAWarmReaderReadsNoFooters(t *testing.T) {
	if testing.Short() {
		t.Skip("thousands of objects")
	}
	c := layered(t, upTo(50_000, 1), upTo(50_000, 10))
	c.config.InlineBytes = 1
	counted := bucket.Count(c.bucket)
	p := c.over(counted)
	read := func() {
		v, err := p.Latest(c.ctx)
		require.NoError(t, err)
		_, ok, err := v.Get(c.ctx, benchKey(7).RowKey(), v.Revision())
		require.NoError(t, err)
		require.True(t, ok)
	}
	read()
	require.EqualValues(t, 3, counted.Counts().Get+counted.Counts().GetRange)
	for i := range 5 {
		c.put(fmt.Sprint("more", i), "x")
		c.commit()
		_, err := p.reload(c.ctx)
		require.NoError(t, err)
		read()
		require.EqualValues(t, 3+i+1, counted.Counts().Get+counted.Counts().GetRange, "the root alone")
	}
}

// A compaction is not thrown away because garbage was collected meanwhile. Its outputs are written again, under names
// that no earlier collection knew.
func TestACompactionOutlivesACollection(t *testing.T) {
	c, want := spilling(t, runsPerLevel)
	_, err := c.bucket.Create(c.ctx, "logplane/seg/0/00000000000000000001-00000000000000000001-OLD", []byte("garbage"))
	require.NoError(t, err)
	m := c.latest().choose()
	out, err := c.merge(c.ctx, m)
	require.NoError(t, err)
	first := slices.Clone(out.refs)
	require.NoError(t, c.another().beginGeneration(c.ctx))
	require.NoError(t, out.commit(c.ctx))
	require.NotEqual(t, first[0].Key, c.latest().snap.root.Segments[0].Key)
	require.Equal(t, first[0].Size, c.latest().snap.root.Segments[0].Size)
	_, err = c.Collect(c.ctx, 0)
	require.NoError(t, err)
	require.False(t, keysOf(t, c)[first[0].Key])
	c.require(want)
}

// A flipped bit anywhere in an idx object is detected and named.
func TestADamagedIndexIsNotServed(t *testing.T) {
	c := layered(t, upTo(50_000, 1), upTo(50_000, 10))
	key := c.latest().snap.root.Index
	body, _, err := c.bucket.Get(c.ctx, key)
	require.NoError(t, err)
	for _, at := range []int{0, 5, 9, 20, len(body) / 2, len(body) - 1} {
		damaged := slices.Clone(body)
		damaged[at] ^= 4
		_, err := decodeIndex(damaged)
		require.Error(t, err, "byte %d", at)
	}
	x := c.newIndex(key)
	x.p = c.over(damaging{c.bucket})
	_, err = x.footer(c.ctx, "any")
	require.ErrorContains(t, err, key)
}

// damaging flips a bit of every idx object.
type damaging struct{ bucket.Bucket }

func (d damaging) Get(ctx context.Context, key string) ([]byte, string, error) {
	b, etag, err := d.Bucket.Get(ctx, key)
	if strings.Contains(key, "/idx/") {
		b = slices.Clone(b)
		b[len(b)/2] ^= 1
	}
	return b, etag, err
}

// An idx object that vanished makes a reader read the root again.
func TestAVanishedIndex(t *testing.T) {
	c := layered(t, upTo(50_000, 1), upTo(50_000, 10))
	p := c.over(lax{c.bucket})
	v, err := p.Latest(c.ctx)
	require.NoError(t, err)
	key := v.snap.root.Index
	require.NoError(t, c.bucket.Delete(c.ctx, key))
	_, _, err = v.Get(c.ctx, benchKey(7).RowKey(), v.Revision())
	require.True(t, errors.Is(err, bucket.ErrNotFound), "nothing else names it: %v", err)
	next := c.latest().snap.draft()
	next.Index = ""
	c.become(next)
	_, ok, err := v.Get(c.ctx, benchKey(7).RowKey(), v.Revision())
	require.NoError(t, err)
	require.True(t, ok)
}

func FuzzIndex(f *testing.F) {
	b, err := encodeIndex([]footer{{Key: "a", Sealed: []byte("x")}, {Key: "b", Sealed: []byte("y")}})
	require.NoError(f, err)
	f.Add(b[frameHeader:])
	b, err = encodeIndex([]footer{})
	require.NoError(f, err)
	f.Add(b[frameHeader:])
	f.Fuzz(func(t *testing.T, body []byte) {
		footers, err := decodeIndex(resealFrame(indexMagic, body))
		if err != nil {
			return
		}
		again, err := encodeIndex(footers)
		require.NoError(t, err)
		back, err := decodeIndex(again)
		require.NoError(t, err)
		twice, err := encodeIndex(back)
		require.NoError(t, err)
		require.Equal(t, again, twice)
		for _, kept := range footers {
			_, _ = segment.OpenFooter("f", nil, nil, 1000, segmenttest.ResealFooter(kept.Sealed))
		}
	})
}
