package bucket_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/filesystem"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/bucket/s3"
	"github.com/logplane/logplane/projection/bucket/s3/miniotest"
)

// deadline of one test. The deadline is long, because it only ends tests that hang.
const deadline = 2 * time.Minute

func TestMemory(t *testing.T) {
	byTest := map[string]bucket.Bucket{}
	conforms(t, func(t *testing.T) bucket.Bucket {
		if byTest[t.Name()] == nil {
			byTest[t.Name()] = memory.New()
		}
		return byTest[t.Name()]
	})
}

// TestFilesystem: every call opens the folder anew, as another process would.
func TestFilesystem(t *testing.T) {
	folder := t.TempDir()
	conforms(t, func(t *testing.T) bucket.Bucket {
		b, err := filesystem.Open(folder)
		require.NoError(t, err)
		return b
	})
}

func TestMinIO(t *testing.T) {
	if testing.Short() {
		t.Skip("a container")
	}
	server := miniotest.Start(t)
	open := func(t *testing.T) bucket.Bucket {
		b, err := s3.Open(t.Context(), s3.Config{Endpoint: server.Endpoint, Region: miniotest.Region, Bucket: "conformance",
			AccessKey: miniotest.AccessKey, SecretKey: miniotest.SecretKey, PathStyle: true})
		require.NoError(t, err)
		return b
	}
	_, err := bucket.Ensure(t.Context(), open(t), true)
	require.NoError(t, err)
	conforms(t, open)
}

// TestSilentServer: if a server accepts a connection and never answers, each request ends at its deadline.
func TestSilentServer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	b, err := s3.Open(t.Context(), s3.Config{
		Endpoint: "http://" + listener.Addr().String(), Bucket: "b", AccessKey: "a", SecretKey: "s", PathStyle: true,
		RequestTimeout: 50 * time.Millisecond,
	})
	require.NoError(t, err)
	for request, err := range requests(t.Context(), b, "k", "other") {
		require.ErrorIs(t, err, context.DeadlineExceeded, request)
	}
}

// conforms tests that the bucket which open returns keeps the promises of bucket.Bucket. Every call of open in one test
// must return the same objects, if possible through a new instance, as in another process. The bucket may have objects
// of other tests: each test uses its own prefix.
func conforms(t *testing.T, open func(t *testing.T) bucket.Bucket) {
	for name, test := range map[string]func(t *testing.T, s *suite){
		"CreateOfATakenKey":        createOfATakenKey,
		"Replace":                  replace,
		"Copy":                     copies,
		"MissingKeys":              missingKeys,
		"Ranges":                   ranges,
		"ListInOrderUnderAPrefix":  listInOrderUnderAPrefix,
		"ListStopsWhenYieldFails":  listStopsWhenYieldFails,
		"ListMoreThanOnePage":      listMoreThanOnePage,
		"BigObject":                bigObject,
		"OddKeys":                  oddKeys,
		"InvalidKeys":              invalidKeys,
		"BytesAreNotShared":        bytesAreNotShared,
		"CancelledContext":         cancelledContext,
		"OneWinnerOfFiftyCreates":  oneWinnerOfFiftyCreates,
		"NoLostReplacement":        noLostReplacement,
		"ReadersSeeWholeObjects":   readersSeeWholeObjects,
		"ProbeAcceptsThisBucket":   probeAcceptsThisBucket,
		"AgreesWithTheModel":       agreesWithTheModel,
		"DeleteRacesWithEachOther": deleteRaces,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			prefix := fmt.Sprintf("suite/%s-%d/", name, rand.Uint64())
			test(t, &suite{Bucket: open(t), ctx: ctx, prefix: prefix, open: open})
		})
	}
}

type suite struct {
	bucket.Bucket
	ctx    context.Context
	prefix string
	open   func(t *testing.T) bucket.Bucket
}

func (s *suite) key(name string) string { return s.prefix + name }

func (s *suite) create(t *testing.T, name, body string) string {
	t.Helper()
	etag, err := s.Create(s.ctx, s.key(name), []byte(body))
	require.NoError(t, err)
	require.NotEmpty(t, etag)
	return etag
}

func (s *suite) requireObject(t *testing.T, name, body, etag string) {
	t.Helper()
	got, gotETag, err := s.Get(s.ctx, s.key(name))
	require.NoError(t, err)
	require.Equal(t, body, string(got))
	require.Equal(t, etag, gotETag)
}

func (s *suite) names(t *testing.T, prefix string) []string {
	t.Helper()
	var names []string
	err := s.List(s.ctx, s.key(prefix), func(a bucket.Attributes) error {
		names = append(names, strings.TrimPrefix(a.Key, s.prefix))
		return nil
	})
	require.NoError(t, err)
	return names
}

func createOfATakenKey(t *testing.T, s *suite) {
	etag := s.create(t, "a", "first")
	for _, body := range []string{"second", "first"} {
		_, err := s.Create(s.ctx, s.key("a"), []byte(body))
		require.ErrorIs(t, err, bucket.ErrPrecondition)
	}
	s.requireObject(t, "a", "first", etag)
}

func replace(t *testing.T, s *suite) {
	first := s.create(t, "root", "1")
	second, err := s.Replace(s.ctx, s.key("root"), []byte("2"), first)
	require.NoError(t, err)
	require.NotEqual(t, first, second)
	s.requireObject(t, "root", "2", second)

	for _, stale := range []string{first, "", "never-an-etag", "*"} {
		_, err = s.Replace(s.ctx, s.key("root"), []byte("3"), stale)
		require.ErrorIs(t, err, bucket.ErrPrecondition, "etag %q", stale)
	}
	s.requireObject(t, "root", "2", second)

	third, err := s.Replace(s.ctx, s.key("root"), []byte("a longer third"), second)
	require.NoError(t, err)
	s.requireObject(t, "root", "a longer third", third)
}

// copies: a copy has the content of the original. Replacing or deleting one of the two does not affect the other.
func copies(t *testing.T, s *suite) {
	original := s.create(t, "root", "content")
	require.NoError(t, s.Copy(s.ctx, s.key("root"), s.key("seg/deep/copy")))
	require.NoError(t, s.Copy(s.ctx, s.key("seg/deep/copy"), s.key("seg/another")))
	content := func(name string) string {
		body, etag, err := s.Get(s.ctx, s.key(name))
		require.NoError(t, err)
		require.NotEmpty(t, etag)
		return string(body)
	}
	_, err := s.Replace(s.ctx, s.key("root"), []byte("changed"), original)
	require.NoError(t, err)
	require.Equal(t, "content", content("seg/deep/copy"))
	require.NoError(t, s.Delete(s.ctx, s.key("root")))
	require.NoError(t, s.Delete(s.ctx, s.key("seg/another")))
	require.Equal(t, "content", content("seg/deep/copy"))
	part, err := s.GetRange(s.ctx, s.key("seg/deep/copy"), 3, 2)
	require.NoError(t, err)
	require.Equal(t, "te", string(part))
	require.Equal(t, []string{"seg/deep/copy"}, s.names(t, ""))

	for _, missing := range []string{"root", "seg/deep", "seg/deep/copy/below"} {
		require.ErrorIs(t, s.Copy(s.ctx, s.key(missing), s.key("never")), bucket.ErrNotFound)
	}
	require.Equal(t, []string{"seg/deep/copy"}, s.names(t, ""))
	s.create(t, "empty", "")
	require.NoError(t, s.Copy(s.ctx, s.key("empty"), s.key("void")))
	require.Empty(t, content("void"))
}

func missingKeys(t *testing.T, s *suite) {
	s.create(t, "folder/object", "x")
	for _, name := range []string{"missing", "folder", "folder/missing", "missing/missing"} {
		_, _, err := s.Get(s.ctx, s.key(name))
		require.ErrorIs(t, err, bucket.ErrNotFound, name)
		_, err = s.GetRange(s.ctx, s.key(name), 0, 10)
		require.ErrorIs(t, err, bucket.ErrNotFound, name)
		_, err = s.GetRange(s.ctx, s.key(name), -10, 10)
		require.ErrorIs(t, err, bucket.ErrNotFound, name)
		require.NoError(t, s.Delete(s.ctx, s.key(name)), name)
	}
	require.Equal(t, []string{"folder/object"}, s.names(t, ""))
}

func ranges(t *testing.T, s *suite) {
	for _, body := range []string{"0123456789", ""} {
		name := fmt.Sprint(len(body))
		s.create(t, name, body)
		for _, offset := range []int64{0, 3, 9, 10, 1000, math.MaxInt64, -1, -4, -100, math.MinInt64} {
			for _, length := range []int64{-1, 0, 1, 4, 10, 100, math.MaxInt64} {
				got, err := s.GetRange(s.ctx, s.key(name), offset, length)
				require.NoError(t, err, "%q, %d, %d", body, offset, length)
				from, to := bucket.Span(int64(len(body)), offset, length)
				require.Equal(t, body[from:to], string(got), "%q, %d, %d", body, offset, length)
			}
		}
	}
}

func listInOrderUnderAPrefix(t *testing.T, s *suite) {
	// The bytes around '/' distinguish an order of whole keys from an order of folders.
	sorted := []string{"a!", "a+b/c", "a-b", "a.b", "a/A", "a/a", "a/b/c", "a0", "aa", "b", "root", "seg/0/1", "seg/1/0", "seg2"}
	require.True(t, slices.IsSorted(sorted))
	for _, i := range rand.Perm(len(sorted)) {
		s.create(t, sorted[i], strings.Repeat("x", i))
	}
	require.Equal(t, sorted, s.names(t, ""))
	for _, prefix := range []string{"a", "a/", "a/b", "a/b/c", "seg", "seg/", "seg/1", "z", "z/z/z", "a/b/c/d"} {
		var want []string
		for _, name := range sorted {
			if strings.HasPrefix(name, prefix) {
				want = append(want, name)
			}
		}
		require.Equal(t, want, s.names(t, prefix), "prefix %q", prefix)
	}
	i := 0
	require.NoError(t, s.List(s.ctx, s.prefix, func(a bucket.Attributes) error {
		require.EqualValues(t, i, a.Size, a.Key)
		require.False(t, a.Modified.IsZero(), a.Key)
		i++
		return nil
	}))
}

func listStopsWhenYieldFails(t *testing.T, s *suite) {
	for i := range 5 {
		s.create(t, fmt.Sprint(i), "x")
	}
	stop := []error{nil, nil, errors.New("enough")}
	yielded := 0
	err := s.List(s.ctx, s.prefix, func(bucket.Attributes) error {
		yielded++
		return stop[yielded-1]
	})
	require.ErrorIs(t, err, stop[2])
	require.Equal(t, 3, yielded)
}

// listMoreThanOnePage: an S3 page has 1000 keys.
func listMoreThanOnePage(t *testing.T, s *suite) {
	var want []string
	for i := range 1100 {
		want = append(want, fmt.Sprintf("seg/%04d", i))
	}
	s.atOnce(t, 8, func(worker int) error {
		for i := worker; i < len(want); i += 8 {
			if _, err := s.Create(s.ctx, s.key(want[i]), nil); err != nil {
				return err
			}
		}
		return nil
	})
	require.Equal(t, want, s.names(t, "seg/"))
}

func bigObject(t *testing.T, s *suite) {
	body := make([]byte, 8<<20)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(body)
	etag, err := s.Create(s.ctx, s.key("big"), body)
	require.NoError(t, err)
	got, gotETag, err := s.Get(s.ctx, s.key("big"))
	require.NoError(t, err)
	require.Equal(t, etag, gotETag)
	require.True(t, bytes.Equal(body, got))
	part, err := s.GetRange(s.ctx, s.key("big"), 5<<20, 1<<20)
	require.NoError(t, err)
	require.True(t, bytes.Equal(body[5<<20:6<<20], part))
}

func oddKeys(t *testing.T, s *suite) {
	keys := []string{
		"space in the middle", " around ", "plus+plus", "percent%20", "100%", "%2e%2e", "question?x=y&z", "hash#hash",
		"colon:", "semi;colon", "equals=", "tilde~", "quote'", `double"`, "brackets[]{}()<>", "star*", "pipe|", "back`tick",
		"dollar$", "at@", "comma,", "end.", "a..b", "caret^", "long" + strings.Repeat("g", 190), strings.Repeat("deep/", 40) + "x",
	}
	for _, key := range keys {
		etag := s.create(t, key, key)
		s.requireObject(t, key, key, etag)
		etag, err := s.Replace(s.ctx, s.key(key), []byte("new"+key), etag)
		require.NoError(t, err, key)
		s.requireObject(t, key, "new"+key, etag)
	}
	slices.Sort(keys)
	require.Equal(t, keys, s.names(t, ""))
	for _, key := range keys {
		require.NoError(t, s.Copy(s.ctx, s.key(key), s.key("copied/"+key)), key)
		got, _, err := s.Get(s.ctx, s.key("copied/"+key))
		require.NoError(t, err, key)
		require.Equal(t, "new"+key, string(got))
		require.NoError(t, s.Delete(s.ctx, s.key("copied/"+key)), key)
		require.NoError(t, s.Delete(s.ctx, s.key(key)), key)
	}
	require.Empty(t, s.names(t, ""))
}

func invalidKeys(t *testing.T, s *suite) {
	for _, key := range []string{
		"", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/..", ".hidden", "a/.hidden", `back\slash`,
		"nul\x00", "line\n", "ünicode", "\xff", strings.Repeat("s", 201), strings.Repeat("long/", 200) + "x",
	} {
		for request, err := range requests(s.ctx, s, key, s.key("other")) {
			if request != "list" || key == "../a" { // some of the other keys are valid prefixes
				require.ErrorIs(t, err, bucket.ErrInvalidKey, "%s %q", request, key)
			}
		}
		require.ErrorIs(t, s.Copy(s.ctx, s.key("from"), key), bucket.ErrInvalidKey, "%q", key)
	}
}

// requests makes one request of each kind, and returns their errors.
func requests(ctx context.Context, b bucket.Bucket, key, other string) map[string]error {
	_, _, get := b.Get(ctx, key)
	_, getRange := b.GetRange(ctx, key, 0, 1)
	_, create := b.Create(ctx, key, []byte("x"))
	_, replace := b.Replace(ctx, key, []byte("x"), `"etag"`)
	list := b.List(ctx, key, func(bucket.Attributes) error { return nil })
	return map[string]error{"get": get, "get range": getRange, "create": create, "replace": replace, "list": list,
		"copy": b.Copy(ctx, key, other), "delete": b.Delete(ctx, key)}
}

func bytesAreNotShared(t *testing.T, s *suite) {
	body := []byte("before")
	_, err := s.Create(s.ctx, s.key("a"), body)
	require.NoError(t, err)
	copy(body, "AFTER!")
	got, etag, err := s.Get(s.ctx, s.key("a"))
	require.NoError(t, err)
	copy(got, "AFTER!")
	part, err := s.GetRange(s.ctx, s.key("a"), 0, 6)
	require.NoError(t, err)
	copy(part, "AFTER!")
	s.requireObject(t, "a", "before", etag)
}

func cancelledContext(t *testing.T, s *suite) {
	etag := s.create(t, "a", "1")
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	for _, key := range []string{"a", "b"} {
		for request, err := range requests(ctx, s, s.key(key), s.key("c")) {
			require.ErrorIs(t, err, context.Canceled, "%s %s", request, key)
		}
	}
	s.requireObject(t, "a", "1", etag)
	require.Equal(t, []string{"a"}, s.names(t, ""))
}

// atOnce runs n workers, which start together.
func (s *suite) atOnce(t *testing.T, n int, work func(worker int) error) {
	t.Helper()
	start := make(chan struct{})
	errs := make([]error, n)
	var workers sync.WaitGroup
	for worker := range n {
		workers.Go(func() {
			<-start
			errs[worker] = work(worker)
		})
	}
	close(start)
	workers.Wait()
	require.NoError(t, errors.Join(errs...))
}

func (s *suite) instances(t *testing.T, n int) []bucket.Bucket {
	instances := make([]bucket.Bucket, n)
	for i := range instances {
		instances[i] = s.open(t)
	}
	return instances
}

func oneWinnerOfFiftyCreates(t *testing.T, s *suite) {
	const writers = 50
	instances := s.instances(t, 5)
	for round := range 4 {
		name := fmt.Sprintf("root-%d", round)
		etags := make([]string, writers)
		s.atOnce(t, writers, func(w int) error {
			etag, err := instances[w%5].Create(s.ctx, s.key(name), fmt.Appendf(nil, "by %d", w))
			if err == nil {
				etags[w] = etag
			} else if !errors.Is(err, bucket.ErrPrecondition) {
				return err
			}
			return nil
		})
		winner := slices.IndexFunc(etags, func(e string) bool { return e != "" })
		require.GreaterOrEqual(t, winner, 0, "no winner")
		for w, etag := range etags {
			require.False(t, w != winner && etag != "", "both %d and %d created %s", winner, w, name)
		}
		s.requireObject(t, name, fmt.Sprintf("by %d", winner), etags[winner])
	}
}

// noLostReplacement: the final sum contains every acknowledged increment, and no refused one.
func noLostReplacement(t *testing.T, s *suite) {
	const writers, each = 8, 12
	instances := s.instances(t, writers)
	s.create(t, "root", string(counter(0, 0)))
	s.atOnce(t, writers, func(w int) error {
		for done := 0; done < each; {
			body, etag, err := instances[w].Get(s.ctx, s.key("root"))
			if err != nil {
				return err
			}
			next := counter(binary.BigEndian.Uint64(body)+1, uint64(w))
			_, err = instances[w].Replace(s.ctx, s.key("root"), next, etag)
			if err == nil {
				done++
			} else if !errors.Is(err, bucket.ErrPrecondition) {
				return err
			}
		}
		return nil
	})
	body, _, err := s.Get(s.ctx, s.key("root"))
	require.NoError(t, err)
	require.EqualValues(t, writers*each, binary.BigEndian.Uint64(body))
}

// counter is a count with its writer and a nonce, so that no two contents are equal.
func counter(count, writer uint64) []byte {
	body := binary.BigEndian.AppendUint64(nil, count)
	body = binary.BigEndian.AppendUint64(body, writer)
	return binary.BigEndian.AppendUint64(body, rand.Uint64())
}

// readersSeeWholeObjects: a reader during replacements sees one of the contents, complete, with its own ETag. A reader
// never sees an older content than it has seen before.
func readersSeeWholeObjects(t *testing.T, s *suite) {
	const replacements = 40
	content := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 1000+i) }
	etag, err := s.Create(s.ctx, s.key("root"), content(0))
	require.NoError(t, err)
	instances := s.instances(t, 3)
	seen := make([]map[int]string, len(instances)) // ETags by content
	etags := map[int]string{0: etag}
	replaceAll := func() (err error) {
		for i := 1; i <= replacements && err == nil; i++ {
			etags[i], err = s.Replace(s.ctx, s.key("root"), content(i), etags[i-1])
		}
		return err
	}
	s.atOnce(t, len(instances)+1, func(w int) error {
		if w == len(instances) {
			return replaceAll()
		}
		seen[w] = map[int]string{}
		for newest := 0; newest < replacements; {
			body, etag, err := instances[w].Get(s.ctx, s.key("root"))
			if err != nil {
				return err
			}
			i := len(body) - 1000
			if i < newest || !bytes.Equal(body, content(i)) {
				return fmt.Errorf("read content %d after %d, or a part of it", i, newest)
			}
			newest, seen[w][i] = i, etag
		}
		return nil
	})
	for _, byContent := range seen {
		require.Subset(t, etags, byContent)
	}
}

func deleteRaces(t *testing.T, s *suite) {
	s.create(t, "a", "x")
	s.atOnce(t, 10, func(int) error { return s.Delete(s.ctx, s.key("a")) })
	require.Empty(t, s.names(t, ""))
}

func probeAcceptsThisBucket(t *testing.T, s *suite) {
	require.NoError(t, bucket.Probe(s.ctx, s.Bucket, s.key("cell")))
	require.Empty(t, s.names(t, ""), "the probe left objects")
}

// model is the expected content of a bucket, for one client at a time.
type model map[string]modelObject

type modelObject struct{ body, etag string }

// agreesWithTheModel makes a random sequence of requests to the bucket and the model. A failure names its seed.
func agreesWithTheModel(t *testing.T, s *suite) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	m, stale := model{}, []string{`"never"`}
	for i := range 300 {
		key := s.key(fmt.Sprintf("%d/%d", random.IntN(2), random.IntN(3)))
		step := fmt.Sprintf("seed %d, step %d, key %s", seed, i, key)
		body := fmt.Sprintf("content %d", i)
		o, exists := m[key]
		var want error
		if !exists {
			want = bucket.ErrNotFound
		}
		switch random.IntN(7) {
		case 0, 1:
			want = nil
			if exists {
				want = bucket.ErrPrecondition
			}
			etag, err := s.Create(s.ctx, key, []byte(body))
			require.ErrorIs(t, err, want, step)
			if err == nil {
				m[key] = modelObject{body, etag}
			}
		case 2, 3:
			etag := o.etag
			if !exists || random.IntN(3) == 0 {
				etag = stale[random.IntN(len(stale))]
			}
			if exists && o.etag != etag {
				want = bucket.ErrPrecondition
			}
			renewed, err := s.Replace(s.ctx, key, []byte(body), etag)
			require.ErrorIs(t, err, want, step)
			if err == nil {
				stale = append(stale, etag)
				m[key] = modelObject{body, renewed}
			}
		case 4:
			if exists {
				stale = append(stale, o.etag)
			}
			require.NoError(t, s.Delete(s.ctx, key), step)
			delete(m, key)
		case 5:
			got, etag, err := s.Get(s.ctx, key)
			require.ErrorIs(t, err, want, step)
			require.Equal(t, o, modelObject{string(got), etag}, step)
		case 6:
			s.requireListed(t, m, step)
		}
	}
	s.requireListed(t, m, fmt.Sprintf("seed %d, end", seed))
}

func (s *suite) requireListed(t *testing.T, m model, step string) {
	t.Helper()
	var listed []string
	require.NoError(t, s.List(s.ctx, s.prefix, func(a bucket.Attributes) error {
		require.EqualValues(t, len(m[a.Key].body), a.Size, step)
		listed = append(listed, a.Key)
		return nil
	}), step)
	require.Equal(t, slices.Sorted(maps.Keys(m)), listed, step)
}
