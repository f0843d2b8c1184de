package memory

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/projection/bucket"
)

// TestHashedETags: an object that is changed and changed back passes a stale condition. Because of this danger every
// root is unique.
func TestHashedETags(t *testing.T) {
	b := New()
	first, err := b.Create(t.Context(), "root", []byte("A"))
	require.NoError(t, err)
	second, err := b.Replace(t.Context(), "root", []byte("B"), first)
	require.NoError(t, err)
	_, err = b.Replace(t.Context(), "root", []byte("C"), first)
	require.ErrorIs(t, err, bucket.ErrPrecondition)
	again, err := b.Replace(t.Context(), "root", []byte("A"), second)
	require.NoError(t, err)
	require.Equal(t, first, again)
	_, err = b.Replace(t.Context(), "root", []byte("C"), first)
	require.NoError(t, err)
}

type failures []string

func (f *failures) Helper()                           {}
func (f *failures) Errorf(format string, args ...any) { *f = append(*f, fmt.Sprintf(format, args...)) }

func TestStrict(t *testing.T) {
	ctx := t.Context()
	setUp := func(t *testing.T) (*Bucket, *failures, string) {
		var f failures
		b := Strict(&f)
		etag, err := b.Create(ctx, "cell/seg/a", []byte("1"))
		require.NoError(t, err)
		_, err = b.Create(ctx, "cell/root", []byte("1"))
		require.NoError(t, err)
		return b, &f, etag
	}
	for name, forbidden := range map[string]func(b *Bucket, etag string){
		"replaced immutable":  func(b *Bucket, etag string) { _, _ = b.Replace(ctx, "cell/seg/a", []byte("2"), etag) },
		"created differently": func(b *Bucket, _ string) { _, _ = b.Create(ctx, "cell/seg/a", []byte("2")) },
		"deleted root":        func(b *Bucket, _ string) { _ = b.Delete(ctx, "cell/root") },
		"read after delete": func(b *Bucket, _ string) {
			_ = b.Delete(ctx, "cell/seg/a")
			_, _, _ = b.Get(ctx, "cell/seg/a")
		},
		"range after delete": func(b *Bucket, _ string) {
			_ = b.Delete(ctx, "cell/seg/a")
			_, _ = b.GetRange(ctx, "cell/seg/a", 0, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, f, etag := setUp(t)
			require.Empty(t, *f)
			forbidden(b, etag)
			require.Len(t, *f, 1)
		})
	}
	t.Run("allowed", func(t *testing.T) {
		b, f, _ := setUp(t)
		_, _ = b.Create(ctx, "cell/seg/a", []byte("1")) // a retry with the same content
		_, _ = b.Create(ctx, "cell/root", []byte("2"))  // a lost race for the first commit
		_, etag, err := b.Get(ctx, "cell/root")
		require.NoError(t, err)
		_, err = b.Replace(ctx, "cell/root", []byte("2"), etag)
		require.NoError(t, err)
		require.NoError(t, b.Delete(ctx, "cell/seg/a"))
		_, _, err = b.Get(ctx, "cell/seg/never")
		require.ErrorIs(t, err, bucket.ErrNotFound)
		require.Empty(t, *f)
	})
}

func TestInjectedFaults(t *testing.T) {
	ctx := t.Context()
	b := New()
	fault := Fails
	b.Inject(func(op Op, key string) Fault {
		if op == OpCreate && key == "a" {
			return fault
		}
		return Works
	})
	_, err := b.Create(ctx, "a", []byte("1"))
	require.ErrorIs(t, err, ErrInjected)
	_, _, err = b.Get(ctx, "a")
	require.ErrorIs(t, err, bucket.ErrNotFound)

	fault = FailsButPersisted
	etag, err := b.Create(ctx, "a", []byte("1"))
	require.ErrorIs(t, err, ErrInjected)
	require.Empty(t, etag)
	body, _, err := b.Get(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, "1", string(body))

	_, err = b.Create(ctx, "a", []byte("2"))
	require.ErrorIs(t, err, ErrInjected, "a lost response of a refused write is an unknown outcome too")
	b.Inject(nil)
	_, err = b.Create(ctx, "a", []byte("2"))
	require.ErrorIs(t, err, bucket.ErrPrecondition)
}
