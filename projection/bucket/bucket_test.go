package bucket_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// unfit is a bucket with one of the defects that real servers have.
type unfit struct {
	*memory.Bucket
	ignoresIfNoneMatch, ignoresIfMatch, createsAreNotAtomic, keepsETag, forgets           bool
	replacesNothing, ignoresRange, copiesNothing, listsLate, listsBackwards, keepsDeleted bool
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
	if _, _, err := u.Bucket.Get(ctx, key); err != nil && u.replacesNothing {
		return u.Bucket.Create(ctx, key, body)
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

func (u unfit) GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	if u.ignoresRange {
		offset, length = 0, math.MaxInt64
	}
	return u.Bucket.GetRange(ctx, key, offset, length)
}

func (u unfit) Copy(ctx context.Context, from, to string) error {
	if u.copiesNothing {
		_, err := u.Create(ctx, to, nil)
		return err
	}
	return u.Bucket.Copy(ctx, from, to)
}

func (u unfit) List(ctx context.Context, prefix string, yield func(bucket.Attributes) error) error {
	var all []bucket.Attributes
	err := u.Bucket.List(ctx, prefix, func(a bucket.Attributes) error {
		all = append(all, a)
		return nil
	})
	if u.listsLate {
		all = all[1:]
	}
	if u.listsBackwards {
		slices.Reverse(all)
	}
	for _, a := range all {
		err = errors.Join(err, yield(a))
	}
	return err
}

func (u unfit) Delete(ctx context.Context, key string) error {
	if u.keepsDeleted {
		return nil
	}
	return u.Bucket.Delete(ctx, key)
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
		"If-Match creates":        {unfit{replacesNothing: true}, "an object that was not there"},
		"Range ignored":           {unfit{ignoresRange: true}, "Range is ignored"},
		"copies are empty":        {unfit{copiesNothing: true}, "a copy has"},
		"lists are stale":         {unfit{listsLate: true}, "it lists"},
		"lists are out of order":  {unfit{listsBackwards: true}, "it lists"},
		"deleted objects stay":    {unfit{keepsDeleted: true}, "still there"},
	} {
		t.Run(name, func(t *testing.T) {
			c.defect.Bucket = memory.New()
			err := bucket.Probe(t.Context(), c.defect, "cell")
			require.ErrorContains(t, err, c.says)
			require.ErrorIs(t, err, bucket.ErrUnfit)
		})
	}
}

// TestProbeOfAnUnreachableBucket: a missing answer to a probe is not a defect of the bucket, but the bucket must not be
// used either.
func TestProbeOfAnUnreachableBucket(t *testing.T) {
	for _, op := range []memory.Op{memory.OpCreate, memory.OpReplace, memory.OpGet, memory.OpGetRange, memory.OpCopy, memory.OpList, memory.OpDelete} {
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
