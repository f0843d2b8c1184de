package bucket_test

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// unfit is a bucket with one of the defects that real servers have.
type unfit struct {
	*memory.Bucket
	ignoresIfNoneMatch, ignoresIfMatch, createsAreNotAtomic, keepsETag, forgets bool
}

func (u unfit) Create(ctx context.Context, key string, body []byte) (string, error) {
	etag, err := u.Bucket.Create(ctx, key, body)
	if err != nil && (u.ignoresIfNoneMatch || u.createsAreNotAtomic && strings.HasSuffix(key, "-race")) {
		return "stale", nil
	}
	return etag, err
}

func (u unfit) Replace(ctx context.Context, key string, body []byte, etag string) (string, error) {
	if u.ignoresIfMatch {
		_, etag, _ = u.Bucket.Get(ctx, key)
	}
	renewed, err := u.Bucket.Replace(ctx, key, body, etag)
	if err == nil && u.keepsETag {
		return etag, nil
	}
	return renewed, err
}

func (u unfit) Get(ctx context.Context, key string) ([]byte, string, error) {
	if u.forgets {
		return nil, "", bucket.ErrNotFound
	}
	return u.Bucket.Get(ctx, key)
}

func TestProbeRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		defect unfit
		says   string
	}{
		"If-None-Match ignored":   {unfit{ignoresIfNoneMatch: true}, "If-None-Match"},
		"If-Match ignored":        {unfit{ignoresIfMatch: true}, "If-Match"},
		"creates are not atomic":  {unfit{createsAreNotAtomic: true}, "8 of 8 concurrent creates"},
		"ETag of another content": {unfit{keepsETag: true}, "same ETag"},
		"reads are stale":         {unfit{forgets: true}, "not there"},
	} {
		t.Run(name, func(t *testing.T) {
			c.defect.Bucket = memory.New()
			err := bucket.Probe(t.Context(), c.defect, "cell")
			require.ErrorContains(t, err, c.says)
			require.ErrorIs(t, err, bucket.ErrUnfit)
		})
	}
}

// What keeps a probe from an answer is not a defect, but no reason to run either.
func TestProbeOfAnUnreachableBucket(t *testing.T) {
	for _, op := range []memory.Op{memory.OpCreate, memory.OpReplace, memory.OpGet, memory.OpDelete} {
		b := memory.New()
		b.Inject(func(o memory.Op, _ string) memory.Fault {
			if o == op {
				return memory.Fails
			}
			return memory.Works
		})
		err := bucket.Probe(t.Context(), b, "")
		require.ErrorIs(t, err, memory.ErrInjected)
		require.NotErrorIs(t, err, bucket.ErrUnfit)
	}
}

func TestCountedByKind(t *testing.T) {
	c := bucket.Count(memory.New())
	_, err := c.Create(t.Context(), "a", []byte("x"))
	require.NoError(t, err)
	_, err = c.Create(t.Context(), "a", []byte("x"))
	require.ErrorIs(t, err, bucket.ErrPrecondition)
	_, _, err = c.Get(t.Context(), "a")
	require.NoError(t, err)
	require.NoError(t, c.Copy(t.Context(), "a", "b"))
	require.NoError(t, c.Delete(t.Context(), "a"))
	require.Equal(t, bucket.Counts{Get: 1, Create: 2, Copy: 1, Delete: 1}, c.Counts())
}

func TestSpan(t *testing.T) {
	for _, c := range []struct{ size, offset, length, from, to int64 }{
		{10, 2, 3, 2, 5},
		{10, -3, 2, 7, 9},
		{10, -30, 2, 0, 2},
		{10, 30, 2, 10, 10},
		{10, 5, math.MaxInt64, 5, 10},
		{10, math.MinInt64, math.MaxInt64, 0, 10},
		{10, 5, -1, 5, 5},
		{0, -1, 1, 0, 0},
	} {
		from, to := bucket.Span(c.size, c.offset, c.length)
		require.Equal(t, []int64{c.from, c.to}, []int64{from, to}, "%+v", c)
	}
}

func FuzzSpan(f *testing.F) {
	f.Add(int64(10), int64(-3), int64(2))
	f.Fuzz(func(t *testing.T, size, offset, length int64) {
		if size < 0 {
			return
		}
		from, to := bucket.Span(size, offset, length)
		require.True(t, 0 <= from && from <= to && to <= size)
		require.True(t, length < 0 || to-from <= length)
	})
}

func FuzzCheckKey(f *testing.F) {
	for _, key := range []string{"cell/root", "", "/", "a//b", "../a", "a/.b", `a\b`, "\x00"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if bucket.CheckKey(key) != nil {
			return
		}
		require.NoError(t, bucket.CheckPrefix(key))
		require.NoError(t, bucket.CheckPrefix(key+"/"))
		require.NotContains(t, "/"+key+"/", "//")
		require.NotContains(t, "/"+key, "/.")
	})
}
