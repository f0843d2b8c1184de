package projection

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/filesystem"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
)

// layered is a cell with the kind of snapshot that commits and compactions leave. The snapshot has layers of objects,
// given by their numbers. The first layer is the base, and each other layer is a run above the base.
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
			require.NoError(t, o.add(c.ctx, r.keyEntry()))
		}
		require.NoError(t, o.cut(c.ctx))
		next.Segments = slices.Concat(o.refs, next.Segments)
		next.footers = append(next.footers, o.footers...)
	}
	c.become(next)
	return c
}

// reads returns how many GETs a call of f takes on a projection that has read nothing yet. A second call of f must cost
// none.
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

// lists counts the namespace of 1,000 objects to which object i belongs.
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

// TestRequestsOfASmallCell: in a cell with few segments, the root has their footers.
func TestRequestsOfASmallCell(t *testing.T) {
	c := layered(t, upTo(2000, 1), []int{5, 1500}, []int{5})
	require.Empty(t, c.latest().snap.root.Index)
	require.Equal(t, 1, c.gets(5000, ""), "bloom filters answer")
	require.Equal(t, 2, c.gets(7, "0"))
	require.Equal(t, 2, c.gets(5, "2"))
	require.Equal(t, 1+2, c.lists(1500, 1000), "root, two runs")
}

// TestRequestsOfAHundredThousandObjects: with a hundred thousand objects, a get reads root, idx object and block.
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

// TestRequestsOfAMillionObjects: with a million objects, the base keeps its footers in its segments.
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

// TestBloomFiltersAreRight: for ten thousand absent keys, fewer than one lookup in a hundred reads a run that does not
// have the key.
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

// TestFootersOfSpills: the footers of spills go into the root. One idx object serves many spills; compactions cause new
// idx objects.
func TestFootersOfSpills(t *testing.T) {
	if testing.Short() {
		t.Skip("thousands of objects")
	}
	c, want := spilling(t, 3)
	require.Empty(t, c.latest().snap.root.Index)
	require.Len(t, c.latest().snap.root.Footers, 3, "of rows, and none of events")
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
		requireClean(t, c.Projection)
	}
	require.Greater(t, len(indexes), 1)
	require.Less(t, len(indexes), 10)
	c.require(want)
	for more := true; more; {
		var err error
		more, err = c.Compact(c.ctx)
		require.NoError(t, err)
		requireClean(t, c.Projection)
	}
	c.require(want)
	_, err := c.Collect(c.ctx, 0)
	require.NoError(t, err)
	c.require(want)
	for key := range keysOf(t, c) {
		if strings.Contains(key, "/idx/") {
			require.True(t, c.latest().snap.root.names()[key], "%s is garbage", key)
		}
	}
}

// TestAWarmReaderReadsNoFooters: a process that has read a snapshot reads only the blocks that a commit added, and no
// footers.
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

// TestACompactionOutlivesACollection: a collection of garbage does not defeat a compaction. The compaction's outputs
// are written again, under names that no earlier collection knew.
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

// TestAnIdxObjectThatFailsIsNotLeft: an idx object whose write failed, but took effect, is deleted again, whichever
// draft it belongs to.
func TestAnIdxObjectThatFailsIsNotLeft(t *testing.T) {
	c, want := spilling(t, runsPerLevel)
	m := c.latest().choose()
	want["more"] = fmt.Sprintf("1@%d", c.put("more", "1"))
	c.commit() // so that there are two segments after the merge
	c.rootFooters = -1
	before := keysOf(t, c)
	out, err := c.merge(c.ctx, m)
	require.NoError(t, err)
	failed := 0
	c.bucket.Inject(func(op memory.Op, key string) memory.Fault {
		if op == memory.OpCreate && strings.Contains(key, "/idx/") && failed < 2 {
			failed++
			return memory.FailsButPersisted
		}
		return memory.Works
	})
	require.NoError(t, out.commit(c.ctx))
	c.bucket.Inject(nil)
	require.Equal(t, 2, failed)
	for key := range keysOf(t, c) {
		require.False(t, strings.Contains(key, "/idx/") && !before[key] && key != c.latest().snap.root.Index, "%s is left", key)
	}
	c.require(want)
}

// TestEveryFlippedBitOfAnIndexIsFound: a flipped bit anywhere in an idx object is detected.
func TestEveryFlippedBitOfAnIndexIsFound(t *testing.T) {
	c := layered(t, upTo(50_000, 1), upTo(50_000, 10))
	body, _, err := c.bucket.Get(c.ctx, c.latest().snap.root.Index)
	require.NoError(t, err)
	for _, at := range []int{0, 5, 9, 20, len(body) / 2, len(body) - 1} {
		damaged := slices.Clone(body)
		damaged[at] ^= 4
		_, err := decodeIndex(damaged)
		require.Error(t, err, "byte %d", at)
	}
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

// losing has no idx objects.
type losing struct{ bucket.Bucket }

func (l losing) Get(ctx context.Context, key string) ([]byte, string, error) {
	if strings.Contains(key, "/idx/") {
		return nil, "", fmt.Errorf("get %s: %w", key, bucket.ErrNotFound)
	}
	return l.Bucket.Get(ctx, key)
}

// TestALostIndex: a lost or damaged idx object is reported, and costs the requests that the object would have saved.
// Nothing else depends on the object.
func TestALostIndex(t *testing.T) {
	c := layered(t, upTo(50_000, 1), upTo(50_000, 10))
	require.NotEmpty(t, c.latest().snap.root.Index)
	for name, broken := range map[string]bucket.Bucket{"damaged": damaging{c.bucket}, "lost": losing{c.bucket}} {
		counted := bucket.Count(broken)
		p := c.over(counted)
		for i := range 3 {
			v, err := p.Latest(c.ctx)
			require.NoError(t, err)
			row, ok, err := v.Get(c.ctx, benchKey(7).RowKey(), v.Revision())
			require.NoError(t, err, name)
			require.True(t, ok)
			require.True(t, strings.HasPrefix(string(row.Value), "0"))
			require.LessOrEqual(t, counted.Counts().GetRange, int64(3), "a footer, a block, and no more the %d. time", i)
			require.LessOrEqual(t, counted.Counts().Get, int64(4), "the root and the idx object, twice at most")
		}
		found := false // the check also reports other problems, because no commits made this cell
		_, err := p.Verify(c.ctx, func(problem error) {
			found = found || strings.Contains(problem.Error(), c.latest().snap.root.Index)
		})
		require.NoError(t, err)
		require.True(t, found, name)
	}
}

// versioned is a cell whose object 'a' was changed by each of this many commits. Each commit has spilled to segments,
// and all are below the floor.
func versioned(t *testing.T, commits int, change ...func(*Projection)) *cell {
	c := newCell(t, archived)
	c.rootFooters = 0
	for _, f := range change {
		f(c.Projection)
	}
	for i := range commits {
		c.put("a", fmt.Sprint(i))
		c.put(fmt.Sprint("other", i), bulk(1000))
		c.commit()
	}
	c.expire()
	c.compactAll()
	return c
}

func (c *cell) compactAll() {
	c.t.Helper()
	for more := true; more; {
		var err error
		more, err = c.compactOrJoin(c.ctx)
		require.NoError(c.t, err)
	}
}

// besides is how many requests the versions of 'a' cost in addition to one for each event segment. These are for the
// root, the idx object, the checkpoint where the archive begins, and a block of each run.
func (c *cell) besides() int { return 3 + len(c.latest().snap.runs) }

// versionsOf reads all versions of 'a' as a new process, and returns how many requests that cost.
func (c *cell) versionsOf(b bucket.Bucket) (values []string, requests int) {
	c.t.Helper()
	counted := bucket.Count(b)
	p := c.over(counted, archived)
	rows, next, err := p.Versions(c.ctx, podKey("a").RowKey(), math.MaxUint64, 1000, nil)
	require.NoError(c.t, err)
	require.Zero(c.t, next)
	for _, r := range slices.Backward(rows) {
		values = append(values, string(r.Value))
	}
	return values, int(counted.Counts().Get + counted.Counts().GetRange)
}

// TestAnOldVersionCostsOneRequest: an old version costs one request: an event segment of usual size is read whole, also
// a joined segment. If a segment is larger, its footer is read, and then a block.
func TestAnOldVersionCostsOneRequest(t *testing.T) {
	const commits = 60
	want := make([]string, commits)
	for i := range want {
		want[i] = fmt.Sprint(i)
	}
	c := versioned(t, commits)
	got, requests := c.versionsOf(c.bucket)
	require.Equal(t, want, got)
	require.LessOrEqual(t, requests, commits+c.besides())

	c.manyEvents = joinAtLeast // no segment goes to a page, which would cost a request
	c.compactAll()
	got, requests = c.versionsOf(c.bucket)
	require.Equal(t, want, got)
	r := c.latest().snap.root
	paged, err := c.paged(c.ctx, r)
	require.NoError(t, err)
	require.LessOrEqual(t, requests, len(r.Events)+len(paged)+len(r.Pages)+c.besides())
	requireClean(t, c.another(archived))
}

// TestALargeEventSegmentIsNotReadWhole: a large event segment is not read whole for one of its events.
func TestALargeEventSegmentIsNotReadWhole(t *testing.T) {
	c := newCell(t, archived)
	c.put("a", "old")
	for i := range 50 {
		c.put(fmt.Sprint("other", i), incompressible(50<<10+i))
	}
	c.put("a", "new")
	c.commit()
	c.expire()
	require.Greater(t, c.latest().snap.root.Events[0].Size, int64(2*wholeEvents))
	counted := bucket.Count(c.bucket)
	p := c.over(counted, archived)
	_, err := p.Latest(c.ctx)
	require.NoError(t, err)
	before := counted.Counts()
	row, found, err := p.EventAt(c.ctx, podKey("a").RowKey(), c.last["a"].revision-51)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, "old", string(row.Value))
	require.EqualValues(t, 2, counted.Counts().GetRange-before.GetRange, "a footer and a block")
}

// TestAnOldVersionOnOtherBuckets: on the other buckets, too, an old version costs one request.
func TestAnOldVersionOnOtherBuckets(t *testing.T) {
	folder, err := filesystem.Open(t.TempDir())
	require.NoError(t, err)
	buckets := map[string]bucket.Bucket{"filesystem": folder}
	if !testing.Short() {
		buckets["minio"] = minioBucket(t)
	}
	for name, b := range buckets {
		t.Run(name, func(t *testing.T) {
			c := versioned(t, 20)
			require.NoError(t, c.bucket.List(c.ctx, "", func(a bucket.Attributes) error {
				body, _, err := c.bucket.Get(c.ctx, a.Key)
				require.NoError(t, err)
				_, err = b.Create(c.ctx, a.Key, body)
				return err
			}))
			got, requests := c.versionsOf(b)
			require.Len(t, got, 20)
			require.LessOrEqual(t, requests, 20+c.besides())
		})
	}
}

// TestCheckpointsPinIdxObjects: a checkpoint pins the idx objects that its copy of the root names, for as long as the
// checkpoint is kept.
func TestCheckpointsPinIdxObjects(t *testing.T) {
	rules := []CheckpointRule{{Every: time.Nanosecond, Keep: time.Hour}}
	config := func(c *Config) { c.InlineBytes, c.Checkpoints = 1, rules }
	c := newCell(t, config)
	c.rootFooters = 0
	for i := range 5 {
		c.put(fmt.Sprint("n", i), "x")
		c.commit()
	}
	_, err := c.Collect(c.ctx, 0)
	require.NoError(t, err)
	indexes := 0
	for _, past := range c.latest().snap.root.Checkpoints {
		copied, err := c.checkpointed(c.ctx, past)
		require.NoError(t, err)
		for key := range copied.names() {
			require.True(t, key == "" || keysOf(t, c)[key], "%s is named and not there", key)
		}
		if copied.Index != "" {
			indexes++
		}
	}
	require.Greater(t, indexes, 2)
	requireClean(t, c.another(config))
	rules = []CheckpointRule{{Every: time.Hour, Keep: time.Nanosecond}}
	c.Projection = c.another(config)
	c.rootFooters = 0
	c.put("last", "x")
	c.commit()
	_, err = c.Collect(c.ctx, 0)
	require.NoError(t, err)
	left := 0
	for key := range keysOf(t, c) {
		if strings.Contains(key, "/idx/") {
			left++
		}
	}
	require.LessOrEqual(t, left, 4, "those of the root and of one checkpoint")
}

func FuzzIndex(f *testing.F) {
	b := encodeFrame(indexMagic, []footer{{Key: "a", Sealed: []byte("x")}, {Key: "b", Sealed: []byte("y")}})
	f.Add(b[frameHeader:])
	b = encodeFrame(indexMagic, []footer{})
	f.Add(b[frameHeader:])
	f.Fuzz(func(t *testing.T, body []byte) {
		footers, err := decodeIndex(resealFrame(indexMagic, body))
		if err != nil {
			return
		}
		again := encodeFrame(indexMagic, footers)
		back, err := decodeIndex(again)
		require.NoError(t, err)
		twice := encodeFrame(indexMagic, back)
		require.Equal(t, again, twice)
	})
}
