package s3

import (
	"bytes"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/s3/miniotest"
)

func TestMinIO(t *testing.T) {
	if testing.Short() {
		t.Skip("a container")
	}
	s := miniotest.Start(t)
	t.Run("Ensure", func(t *testing.T) { testEnsure(t, s) })
	t.Run("ReadBackByAnotherClient", func(t *testing.T) { testReadBack(t, s) })
	t.Run("WrittenByAnotherClient", func(t *testing.T) { testWrittenByAnother(t, s) })
	t.Run("MissingBucketIsNotAMissingKey", func(t *testing.T) { testMissingBucket(t, s) })
	t.Run("WrongKeysAreNotAMissingKey", func(t *testing.T) { testWrongSecret(t, s) })
	t.Run("LostResponses", func(t *testing.T) { testLostResponses(t, s) })
}

// open returns a new client of one of the server's buckets.
func open(t *testing.T, s miniotest.Server, name string) *Bucket {
	t.Helper()
	b, err := Open(t.Context(), Config{Endpoint: s.Endpoint, Region: miniotest.Region, Bucket: name,
		AccessKey: miniotest.AccessKey, SecretKey: miniotest.SecretKey, PathStyle: true})
	require.NoError(t, err)
	return b
}

// ensure makes the bucket unless it exists.
func ensure(t *testing.T, b bucket.Bucket) {
	t.Helper()
	_, err := bucket.Ensure(t.Context(), b, true)
	require.NoError(t, err)
}

// testEnsure: Ensure makes a bucket only on request, and says whether it made one. A mistyped name makes no bucket.
func testEnsure(t *testing.T, s miniotest.Server) {
	ctx := t.Context()
	b := bucket.Count(open(t, s, "ensured"))
	_, err := bucket.Ensure(ctx, b, false)
	require.ErrorContains(t, err, "there is no bucket 'ensured': correct its name, or give --create-bucket")
	exists, err := s.Client.BucketExists(ctx, "ensured")
	require.NoError(t, err)
	require.False(t, exists)
	for i, mayMake := range []bool{true, true, false} {
		made, err := bucket.Ensure(ctx, b, mayMake)
		require.NoError(t, err)
		require.Equal(t, i == 0, made)
	}
	exists, err = s.Client.BucketExists(ctx, "ensured")
	require.NoError(t, err)
	require.True(t, exists)
}

// testReadBack: an independent client reads the objects that our client writes: sizes, ETags, content, order.
func testReadBack(t *testing.T, s miniotest.Server) {
	ctx := t.Context()
	b := open(t, s, "readback")
	ensure(t, b)
	written := map[string][]byte{}
	for i, size := range []int{0, 1, 1000, 1 << 20, 8 << 20} {
		body := make([]byte, size)
		source := rand.NewChaCha8([32]byte{byte(i)})
		_, _ = source.Read(body)
		key := fmt.Sprintf("cell/seg/%d/odd+key %d", i, size)
		etag, err := b.Create(ctx, key, body)
		require.NoError(t, err)
		requireReadBack(t, s, key, body, etag)
		written[key] = body
	}
	key := "cell/seg/0/odd+key 0"
	_, etag, err := b.Get(ctx, key)
	require.NoError(t, err)
	etag, err = b.Replace(ctx, key, []byte("replaced"), etag)
	require.NoError(t, err)
	requireReadBack(t, s, key, []byte("replaced"), etag)
	written[key] = []byte("replaced")

	var theirs, ours []string
	for o := range s.Client.ListObjects(ctx, "readback", minio.ListObjectsOptions{Recursive: true}) {
		require.NoError(t, o.Err)
		require.EqualValues(t, len(written[o.Key]), o.Size)
		theirs = append(theirs, o.Key)
	}
	require.NoError(t, b.List(ctx, "", func(a bucket.Attributes) error {
		ours = append(ours, a.Key)
		return nil
	}))
	require.Len(t, ours, len(written))
	require.Equal(t, theirs, ours)

	require.NoError(t, b.Delete(ctx, key))
	_, err = s.Client.StatObject(ctx, "readback", key, minio.StatObjectOptions{})
	require.Equal(t, http.StatusNotFound, minio.ToErrorResponse(err).StatusCode)
}

func requireReadBack(t *testing.T, s miniotest.Server, key string, body []byte, etag string) {
	t.Helper()
	o, err := s.Client.GetObject(t.Context(), "readback", key, minio.GetObjectOptions{})
	require.NoError(t, err)
	defer o.Close()
	got, err := io.ReadAll(o)
	require.NoError(t, err)
	require.True(t, bytes.Equal(body, got), "content of %s", key)
	stat, err := s.Client.StatObject(t.Context(), "readback", key, minio.StatObjectOptions{})
	require.NoError(t, err)
	require.EqualValues(t, len(body), stat.Size)
	require.Equal(t, etag, `"`+stat.ETag+`"`)
	require.Equal(t, stat.ETag, fmt.Sprintf("%x", md5.Sum(body)), "one part, so the ETag is the content's MD5")
}

// testWrittenByAnother: after a replacement by another client, a replacement by our client fails its precondition.
func testWrittenByAnother(t *testing.T, s miniotest.Server) {
	ctx := t.Context()
	b := open(t, s, "another")
	ensure(t, b)
	etag, err := b.Create(ctx, "root", []byte("ours"))
	require.NoError(t, err)

	theirs := minio.PutObjectOptions{DisableMultipart: true}
	theirs.SetMatchETag(strings.Trim(etag, `"`))
	_, err = s.Client.PutObject(ctx, "another", "root", strings.NewReader("theirs"), 6, theirs)
	require.NoError(t, err)

	_, err = b.Replace(ctx, "root", []byte("ours again"), etag)
	require.ErrorIs(t, err, bucket.ErrPrecondition)
	_, err = b.Create(ctx, "root", []byte("ours again"))
	require.ErrorIs(t, err, bucket.ErrPrecondition)
	body, etag, err := b.Get(ctx, "root")
	require.NoError(t, err)
	require.Equal(t, "theirs", string(body))
	_, err = b.Replace(ctx, "root", []byte("ours again"), etag)
	require.NoError(t, err)
}

func testMissingBucket(t *testing.T, s miniotest.Server) {
	requireNoMeaning(t, open(t, s, "no-such-bucket"))
}

func testWrongSecret(t *testing.T, s miniotest.Server) {
	ensure(t, open(t, s, "secret"))
	b, err := Open(t.Context(), Config{
		Endpoint: s.Endpoint, Region: miniotest.Region, Bucket: "secret", AccessKey: miniotest.AccessKey, SecretKey: "wrong", PathStyle: true,
	})
	require.NoError(t, err)
	requireNoMeaning(t, b)
}

// requireNoMeaning requires errors that say nothing about an object.
func requireNoMeaning(t *testing.T, b *Bucket) {
	t.Helper()
	ctx := t.Context()
	_, _, get := b.Get(ctx, "root")
	_, getRange := b.GetRange(ctx, "root", 0, 1)
	_, create := b.Create(ctx, "root", nil)
	_, replace := b.Replace(ctx, "root", nil, `"etag"`)
	list := b.List(ctx, "", func(bucket.Attributes) error { return nil })
	for _, err := range []error{get, getRange, create, replace, list, b.Delete(ctx, "root")} {
		require.Error(t, err)
		require.NotErrorIs(t, err, bucket.ErrNotFound)
		require.NotErrorIs(t, err, bucket.ErrPrecondition)
	}
}

// testLostResponses: a write whose response is lost has an unknown outcome; no retry of our own turns it into a failed
// precondition.
func testLostResponses(t *testing.T, s miniotest.Server) {
	ctx := t.Context()
	ensure(t, open(t, s, "lost"))
	target, err := url.Parse(s.Endpoint)
	require.NoError(t, err)
	var puts atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		puts.Add(1)
		out := r.Clone(r.Context())
		out.URL.Scheme, out.URL.Host, out.RequestURI = target.Scheme, target.Host, ""
		res, err := http.DefaultTransport.RoundTrip(out)
		if err == nil {
			res.Body.Close()
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer proxy.Close()
	b, err := Open(ctx, Config{
		Endpoint: proxy.URL, Region: miniotest.Region, Bucket: "lost", AccessKey: miniotest.AccessKey, SecretKey: miniotest.SecretKey, PathStyle: true,
	})
	require.NoError(t, err)
	_, err = b.Create(ctx, "root", []byte("1"))
	require.Error(t, err)
	require.NotErrorIs(t, err, bucket.ErrPrecondition)
	require.EqualValues(t, 1, puts.Load())
	body, etag, err := open(t, s, "lost").Get(ctx, "root")
	require.NoError(t, err, "the write happened")
	require.Equal(t, "1", string(body))
	_, err = b.Replace(ctx, "root", []byte("2"), etag)
	require.Error(t, err)
	require.NotErrorIs(t, err, bucket.ErrPrecondition)
	require.EqualValues(t, 2, puts.Load())
}

// answering is a server that gives every request the same answer, and counts the requests.
func answering(t *testing.T, status int, code string) (*Bucket, *atomic.Int64) {
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		fmt.Fprintf(w, "<Error><Code>%s</Code><Message>m</Message></Error>", code)
	}))
	t.Cleanup(server.Close)
	b, err := Open(t.Context(), Config{Endpoint: server.URL, Bucket: "b", AccessKey: "a", SecretKey: "s", PathStyle: true})
	require.NoError(t, err)
	return b, &requests
}

func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		status          int
		code            string
		create, replace error // nil: an error without meaning
	}{
		{412, "PreconditionFailed", bucket.ErrPrecondition, bucket.ErrPrecondition},
		{409, "ConditionalRequestConflict", bucket.ErrPrecondition, bucket.ErrPrecondition},
		{409, "OperationAborted", nil, nil},
		{404, "NoSuchKey", bucket.ErrNotFound, bucket.ErrNotFound},
		{404, "NoSuchBucket", nil, nil},
		{404, "", nil, nil},
		{403, "AccessDenied", nil, nil},
		{500, "InternalError", nil, nil},
		{503, "SlowDown", nil, nil},
	} {
		b, requests := answering(t, c.status, c.code)
		_, err := b.Create(t.Context(), "k", []byte("x"))
		requireMeaning(t, c.create, err)
		_, err = b.Replace(t.Context(), "k", []byte("x"), `"e"`)
		requireMeaning(t, c.replace, err)
		require.EqualValues(t, 2, requests.Load(), "a write is sent once")
	}
}

func requireMeaning(t *testing.T, want, err error) {
	t.Helper()
	require.Error(t, err)
	for _, meaning := range []error{bucket.ErrNotFound, bucket.ErrPrecondition} {
		require.Equal(t, meaning == want, errors.Is(err, meaning), "%v", err)
	}
}

// TestReplaceNeverUnconditional: no ETag may turn a replacement into an unconditional write.
func TestReplaceNeverUnconditional(t *testing.T) {
	b, requests := answering(t, 200, "")
	for _, etag := range []string{"", "*"} {
		_, err := b.Replace(t.Context(), "root", nil, etag)
		require.ErrorIs(t, err, bucket.ErrPrecondition)
	}
	require.Zero(t, requests.Load())
}

// TestBrokenBody: an object whose body breaks off is requested again, a few times.
func TestBrokenBody(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for timeouts")
	}
	for _, c := range []struct {
		broken, requests int64
		fails            bool
	}{{1, 2, false}, {2, 3, false}, {3, 3, true}} {
		var requests atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("ETag", `"e"`)
			w.Header().Set("Content-Length", "5")
			if requests.Add(1) <= c.broken {
				_, _ = w.Write([]byte("who"))
				panic(http.ErrAbortHandler)
			}
			_, _ = w.Write([]byte("whole"))
		}))
		defer server.Close()
		b, err := Open(t.Context(), Config{Endpoint: server.URL, Bucket: "b", AccessKey: "a", SecretKey: "s", PathStyle: true})
		require.NoError(t, err)
		body, _, err := b.Get(t.Context(), "k")
		require.Equal(t, c.fails, err != nil)
		if !c.fails {
			require.Equal(t, "whole", string(body))
		}
		require.Equal(t, c.requests, requests.Load())
	}
}

func TestRangeHeader(t *testing.T) {
	for _, c := range []struct {
		offset, length int64
		want           string
	}{
		{0, 1, "bytes=0-0"},
		{10, 5, "bytes=10-14"},
		{10, 0, "bytes=10-10"},
		{10, -5, "bytes=10-10"},
		{10, math.MaxInt64, "bytes=10-"},
		{math.MaxInt64, 1, "bytes=9223372036854775807-9223372036854775807"},
		{math.MaxInt64, 2, "bytes=9223372036854775807-"},
		{-5, 1, "bytes=-5"},
		{math.MinInt64, 1, "bytes=-9223372036854775807"},
	} {
		require.Equal(t, c.want, rangeHeader(c.offset, c.length))
	}
}

func TestConfig(t *testing.T) {
	_, err := Open(t.Context(), Config{})
	require.ErrorContains(t, err, "no name")
	_, err = Open(t.Context(), Config{Bucket: "b", AccessKey: "a"})
	require.ErrorContains(t, err, "together")
}
