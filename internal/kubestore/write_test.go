package kubestore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/memory"
)

func pod(namespace, name string) *example.Pod {
	return &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func keyOf(p *example.Pod) string { return "/pods/" + p.Namespace + "/" + p.Name }

func create(t testing.TB, s storage.Interface, p *example.Pod) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	require.NoError(t, s.Create(t.Context(), keyOf(p), p, out, 0))
	return out
}

func relabel(ctx context.Context, s storage.Interface, key, label, value string) (*example.Pod, error) {
	out := &example.Pod{}
	err := s.GuaranteedUpdate(ctx, key, out, false, nil, storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
		p := obj.(*example.Pod)
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		p.Labels[label] = value
		return p, nil
	}), nil)
	return out, err
}

func remove(ctx context.Context, s storage.Interface, key string) (*example.Pod, error) {
	out := &example.Pod{}
	err := s.Delete(ctx, key, out, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
	return out, err
}

// increment adds one to a number in a label. The store retries after a conflict.
func increment(ctx context.Context, s storage.Interface, key string) error {
	return s.GuaranteedUpdate(ctx, key, &example.Pod{}, false, nil, storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
		p := obj.(*example.Pod)
		n, _ := strconv.Atoi(p.Labels["n"])
		p.Labels = map[string]string{"n": strconv.Itoa(n + 1)}
		return p, nil
	}), nil)
}

// TestConcurrentIncrements: 64 writers in two processes increment one number, while commits and purges run. Every
// increment counts exactly once (invariant 13). On three servers a refusal leaves the outcome open, and only the log
// can show the outcome. On three servers the log keeps events for as long as a request may run, as in production.
func TestConcurrentIncrements(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a cluster")
	}
	t.Run("one server", func(t *testing.T) {
		b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
		concurrentIncrements(t, b, process(t, b.Log, b.bucket), false)
	})
	t.Run("three servers", func(t *testing.T) {
		servers, kept := eventlogtest.Cluster(t), memory.Strict(t)
		b := &bed{Cell: process(t, servers.Log(0), kept), t: t, bucket: kept}
		concurrentIncrements(t, b, process(t, servers.Log(1), kept), true)
	})
}

func concurrentIncrements(t *testing.T, b *bed, other Cell, retain bool) {
	t.Helper()
	stores := []storage.Interface{New(b.Cell, pods(nil)), New(other, pods(nil))}
	p := create(t, stores[0], pod("ns", "counter"))
	ctx, cancel := context.WithCancel(shortly(t))
	defer cancel()
	var writers, committer sync.WaitGroup
	var requests sync.RWMutex // held for reading by requests that a purge must wait for
	committer.Go(func() {
		for ctx.Err() == nil {
			if !retain {
				b.purge(ctx)
				continue
			}
			b.commit(ctx)
			requests.Lock()
			b.purge(ctx)
			requests.Unlock()
		}
	})
	incrementOnce := func(s storage.Interface) error {
		if retain {
			requests.RLock()
			defer requests.RUnlock()
		}
		return increment(ctx, s, keyOf(p))
	}
	for n := range 64 {
		writers.Go(func() {
			for range 2 {
				if err := incrementOnce(stores[n%2]); err != nil {
					t.Errorf("increment: %v", err)
				}
			}
		})
	}
	writers.Wait()
	cancel()
	committer.Wait()
	for _, s := range stores {
		out := &example.Pod{}
		require.NoError(t, s.Get(t.Context(), keyOf(p), storage.GetOptions{}, out))
		require.Equal(t, "128", out.Labels["n"])
	}
}

// TestCreateAfterDelete: a deleted name can be created again, whether its tombstone is in the log or purged.
func TestCreateAfterDelete(t *testing.T) {
	conn := eventlogtest.Start(t)
	for mode, step := range modes {
		t.Run(mode, func(t *testing.T) {
			b := newBed(t, conn, memory.Strict(t))
			s, step := New(b.Cell, pods(nil)), step(b)
			var last string
			for range 5 {
				out := create(t, s, pod("ns", "phoenix"))
				require.NotEqual(t, last, out.ResourceVersion)
				step(t.Context())
				require.True(t, storage.IsExist(s.Create(t.Context(), keyOf(out), pod("ns", "phoenix"), nil, 0)))
				gone, err := remove(t.Context(), s, keyOf(out))
				require.NoError(t, err)
				last = gone.ResourceVersion
				step(t.Context())
				_, err = remove(t.Context(), s, keyOf(out))
				require.True(t, storage.IsNotFound(err), "%v", err)
			}
		})
	}
}

// TestNoChangeAppendsNothing: an update whose encoding equals the stored one changes neither resourceVersion nor head.
func TestNoChangeAppendsNothing(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	s := New(b.Cell, pods(nil))
	p := create(t, s, pod("ns", "a"))
	before, err := s.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	out := &example.Pod{}
	require.NoError(t, s.GuaranteedUpdate(t.Context(), keyOf(p), out, false, nil,
		storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) { return obj, nil }), nil))
	require.Equal(t, p, out)
	after, err := s.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// TestRequestView: one view serves a request until the request itself writes, or is refused because of the view.
func TestRequestView(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	s := New(b.Cell, pods(nil))
	p := create(t, s, pod("ns", "a"))
	v, err := b.Projection.Latest(t.Context())
	require.NoError(t, err)
	ctx := WithView(t.Context(), v)
	require.Same(t, v, ViewFrom(ctx))

	// Another client writes, and the request still reads its own view.
	changed, err := relabel(t.Context(), s, keyOf(p), "by", "other")
	require.NoError(t, err)
	out := &example.Pod{}
	require.NoError(t, s.Get(ctx, keyOf(p), storage.GetOptions{}, out))
	require.Equal(t, p.ResourceVersion, out.ResourceVersion)

	// If the old view causes a refusal, the refusal is checked on a newer view before it is the answer.
	calls := 0
	err = s.GuaranteedUpdate(ctx, keyOf(p), out, false, &storage.Preconditions{ResourceVersion: &changed.ResourceVersion},
		storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			calls++
			obj.(*example.Pod).Labels["by"] = "me"
			return obj, nil
		}), nil)
	require.NoError(t, err)
	require.Equal(t, 1, calls)

	// The request reads its own write, and does not find the object that it has deleted.
	read := &example.Pod{}
	require.NoError(t, s.Get(ctx, keyOf(p), storage.GetOptions{}, read))
	require.Equal(t, out, read)
	_, err = remove(ctx, s, keyOf(p))
	require.NoError(t, err)
	require.True(t, storage.IsNotFound(s.Get(ctx, keyOf(p), storage.GetOptions{}, read)))
	require.NoError(t, s.Create(ctx, keyOf(p), pod("ns", "a"), nil, 0))
}

// TestVoidEvents: an event that lost (invariant 13) is neither read nor watched, and the key can still be written.
func TestVoidEvents(t *testing.T) {
	conn := eventlogtest.Start(t)
	for mode, step := range modes {
		t.Run(mode, func(t *testing.T) {
			b := newBed(t, conn, memory.Strict(t))
			s, step := newStore(b.Cell, pods(nil)), step(b)
			start, err := s.GetCurrentResourceVersion(t.Context())
			require.NoError(t, err)
			live := watchFrom(t, s, fmt.Sprint(start))
			p := create(t, s, pod("ns", "a"))
			step(t.Context())

			// This is a create of a live key. An append that outlived its deadline could leave such an event, if the
			// log was purged meanwhile.
			log, err := b.Log.Head(t.Context())
			require.NoError(t, err)
			expected := eventlog.Revision(0)
			rev, err := s.versioner.ParseResourceVersion(p.ResourceVersion)
			require.NoError(t, err)
			if eventlog.Revision(rev) >= log.First {
				expected = eventlog.Revision(rev)
			}
			_, err = b.Log.Append(t.Context(), eventlog.Basis{}, "void", eventlog.Write{
				Key: s.key(keyOf(p)), Op: eventlog.Added, Precondition: expected, ContentType: s.ContentType, Body: []byte("never decoded"),
			})
			require.NoError(t, err)
			// This is a change of an object that never existed.
			_, err = b.Log.Append(t.Context(), eventlog.Basis{}, "baseless", eventlog.Write{
				Key: s.key("/pods/ns/absent"), Op: eventlog.Modified, ContentType: s.ContentType, Body: []byte("never decoded"),
			})
			require.NoError(t, err)
			step(t.Context())

			out := &example.Pod{}
			require.NoError(t, s.Get(t.Context(), keyOf(p), storage.GetOptions{}, out))
			require.Equal(t, p, out)
			changed, err := relabel(t.Context(), s, keyOf(p), "a", "b")
			require.NoError(t, err)
			for _, w := range []*recorder{live, watchFrom(t, s, fmt.Sprint(start))} {
				w.expect("ADDED ns/a "+p.ResourceVersion, "MODIFIED ns/a "+changed.ResourceVersion)
			}
		})
	}
}

// TestWriteErrors checks the answer to a client about a failed append (rows 55 and 61).
func TestWriteErrors(t *testing.T) {
	for _, c := range []struct {
		err   error
		code  int32
		retry bool
	}{
		{eventlog.ErrUnknown, http.StatusInternalServerError, false},
		{eventlog.ErrNotPublished, http.StatusServiceUnavailable, true},
		{eventlog.ErrConflict, http.StatusServiceUnavailable, true},
		{projection.ErrBehind, http.StatusTooManyRequests, true},
		{eventlog.ErrTooLarge, http.StatusRequestEntityTooLarge, false},
		{eventlog.ErrKeyTooLong, http.StatusUnprocessableEntity, false},
	} {
		err := appendAnswer(t.Context(), fmt.Errorf("append: %w", c.err), schema.GroupResource{Resource: "pods"}, eventlog.Key{Name: "a"})
		var status apierrors.APIStatus
		require.ErrorAs(t, err, &status)
		require.Equal(t, c.code, status.Status().Code, "%v", c.err)
		details := status.Status().Details
		require.Equal(t, c.retry, details != nil && details.RetryAfterSeconds > 0, "%v", c.err)
	}
}

// TestRefusedKeysAndBodies: a key or a body that the log cannot hold is refused with the right status, and nothing is
// written.
func TestRefusedKeysAndBodies(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	s := New(b.Cell, pods(nil))
	before, err := s.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)

	long := pod("ns", strings.Repeat("n", 4000))
	err = s.Create(t.Context(), keyOf(long), long, nil, 0)
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	large := pod("ns", "large")
	large.Annotations = map[string]string{"a": strings.Repeat("x", 9<<20)}
	err = s.Create(t.Context(), keyOf(large), large, nil, 0)
	require.True(t, apierrors.IsRequestEntityTooLargeError(err), "%v", err)

	after, err := s.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// TestDeadline: a request whose deadline has passed, or that its process cuts off, writes nothing and does not hang. A
// client that was cut off is told to try again.
func TestDeadline(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	s := New(b.Cell, pods(nil))
	p := create(t, s, pod("ns", "a"))
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	cutOff, cut := context.WithCancel(t.Context())
	cut()
	for ctx, expected := range map[context.Context]metav1.StatusReason{late: metav1.StatusReasonTimeout, cutOff: metav1.StatusReasonServiceUnavailable} {
		require.Error(t, s.Create(ctx, "/pods/ns/b", pod("ns", "b"), nil, 0))
		_, err := relabel(ctx, s, keyOf(p), "a", "b")
		require.Equal(t, expected, reason(t, err), "%v", err)
		_, err = remove(ctx, s, keyOf(p))
		require.Equal(t, expected, reason(t, err), "%v", err)
	}
	list := &example.PodList{}
	require.NoError(t, s.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list))
	require.Equal(t, []example.Pod{*p}, list.Items)
}

// TestRequestID: the first append of a request has the request's id, and each later append has an id of its own.
func TestRequestID(t *testing.T) {
	r := RequestOf(t.Context())
	r.SetID("r")
	ctx := r.In(t.Context())
	require.Equal(t, []string{"r", "r/2", "r/3"}, []string{requestID(ctx), requestID(ctx), requestID(ctx)})
	require.NotEqual(t, requestID(t.Context()), requestID(t.Context()))
}

// TestAuthors: the events of a context, including the events of claims, name the context's author. Without an author
// the events name nobody.
func TestAuthors(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	s := claimed(b)
	p := pod("ns", "a")
	p.Annotations = map[string]string{"claims": "one,two"}
	create(t, s, p)
	ann := eventlog.Author{User: "ann", As: "bob", Agent: "test/1"}
	_, err := remove(WithAuthor(t.Context(), ann), s, keyOf(p))
	require.NoError(t, err)
	bounds, err := b.Log.Head(t.Context())
	require.NoError(t, err)
	authors := map[eventlog.Op][]eventlog.Author{}
	require.NoError(t, b.Log.Tail(t.Context(), bounds.Head-6, bounds.Head, func(e eventlog.Event) error {
		authors[e.Op] = append(authors[e.Op], e.Author)
		return nil
	}))
	require.Equal(t, map[eventlog.Op][]eventlog.Author{eventlog.Added: {{}, {}, {}}, eventlog.Deleted: {ann, ann, ann}}, authors)
}

// claimed is a store of pods. The pods claim the names in their annotation, which are separated by commas.
func claimed(b *bed) *store {
	r := pods(nil)
	r.Claims = func(_ context.Context, obj runtime.Object) ([]Claim, error) {
		p := obj.(*example.Pod)
		var claims []Claim
		for name := range strings.SplitSeq(p.Annotations["claims"], ",") {
			if name == "broken" {
				return nil, errors.New("a broken claim")
			}
			if name != "" {
				claims = append(claims, Claim{Key: claimKey(name), ContentType: "text/plain", Body: []byte(p.Name)})
			}
		}
		return claims, nil
	}
	return newStore(b.Cell, r)
}

func claimKey(name string) eventlog.Key {
	return eventlog.Key{Cluster: "main", Resource: "claims", Prefix: "/claims", Name: name}
}

func claiming(name, claims string) *example.Pod {
	p := pod("ns", name)
	p.Annotations = map[string]string{"claims": claims}
	return p
}

// owners returns the holders of the claims.
func owners(t testing.TB, b *bed, names ...string) (held []string) {
	t.Helper()
	v, err := b.Projection.Latest(t.Context())
	require.NoError(t, err)
	for _, name := range names {
		row, found, err := v.Get(t.Context(), claimKey(name).RowKey(), v.Revision())
		require.NoError(t, err)
		if found {
			held = append(held, name+"="+string(row.Value))
		}
	}
	return held
}

func TestClaims(t *testing.T) {
	conn := eventlogtest.Start(t)
	for mode, step := range modes {
		t.Run(mode, func(t *testing.T) {
			b := newBed(t, conn, memory.Strict(t))
			s, step := claimed(b), step(b)
			all := []string{"x", "y", "z"}
			next := func(err error) {
				t.Helper()
				require.NoError(t, err)
				step(t.Context())
			}
			reclaim := func(name, claims string) error {
				return s.GuaranteedUpdate(t.Context(), "/pods/ns/"+name, &example.Pod{}, false, nil,
					storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
						obj.(*example.Pod).Annotations = map[string]string{"claims": claims}
						return obj, nil
					}), nil)
			}
			taken := func(err error, name string) {
				t.Helper()
				var c *ClaimedError
				require.ErrorAs(t, err, &c)
				require.Equal(t, claimKey(name), c.Key)
				step(t.Context())
			}

			out := &example.Pod{}
			next(s.Create(t.Context(), "/pods/ns/a", claiming("a", "x,y"), out, 0))
			require.Equal(t, []string{"x=a", "y=a"}, owners(t, b, all...))
			taken(s.Create(t.Context(), "/pods/ns/b", claiming("b", "y,z"), nil, 0), "y")
			require.True(t, storage.IsNotFound(s.Get(t.Context(), "/pods/ns/b", storage.GetOptions{}, &example.Pod{})))

			next(reclaim("a", "y,z"))
			require.Equal(t, []string{"y=a", "z=a"}, owners(t, b, all...))
			next(s.Create(t.Context(), "/pods/ns/b", claiming("b", "x"), nil, 0))
			taken(reclaim("a", "x,y"), "x")
			require.Equal(t, []string{"x=b", "y=a", "z=a"}, owners(t, b, all...))
			_, err := relabel(t.Context(), s, "/pods/ns/a", "claims", "kept")
			next(err)
			require.Equal(t, []string{"x=b", "y=a", "z=a"}, owners(t, b, all...))
			require.ErrorContains(t, reclaim("a", "broken"), "a broken claim")

			_, err = remove(t.Context(), s, "/pods/ns/a")
			next(err)
			require.Equal(t, []string{"x=b"}, owners(t, b, all...))
			// A released claim can be taken again, over its tombstone.
			next(reclaim("b", "x,y"))
			require.Equal(t, []string{"x=b", "y=b"}, owners(t, b, all...))
			// A claim that another object holds by now is not deleted with its former owner.
			v, err := b.Projection.Latest(t.Context())
			require.NoError(t, err)
			x, err := v.State(t.Context(), claimKey("x"))
			require.NoError(t, err)
			_, err = v.Append(t.Context(), "taken-over", x.Put("text/plain", []byte("c"), 0))
			next(err)
			_, err = remove(t.Context(), s, "/pods/ns/b")
			next(err)
			require.Equal(t, []string{"x=c"}, owners(t, b, all...))
		})
	}
}

// TestClaimRace: if many owners want one claim at once, on two processes, exactly one of the owners exists in the end.
func TestClaimRace(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	other := *b
	other.Cell = process(t, b.Log, b.bucket)
	stores := []*store{claimed(b), claimed(&other)}
	for round := range 10 {
		var won sync.Map
		var writers sync.WaitGroup
		for n := range 8 {
			writers.Go(func() {
				name := fmt.Sprintf("p%d-%d", round, n)
				err := stores[n%2].Create(shortly(t), "/pods/ns/"+name, claiming(name, fmt.Sprintf("c%d", round)), nil, 0)
				var c *ClaimedError
				switch {
				case err == nil:
					won.Store(name, true)
				case !errors.As(err, &c):
					t.Errorf("create: %v", err)
				}
			})
		}
		writers.Wait()
		var winners []string
		won.Range(func(name, _ any) bool { winners = append(winners, name.(string)); return true })
		require.Len(t, winners, 1)
		require.Equal(t, []string{fmt.Sprintf("c%d=%s", round, winners[0])}, owners(t, b, fmt.Sprintf("c%d", round)))
	}
	list := &example.PodList{}
	require.NoError(t, stores[0].GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list))
	require.Len(t, list.Items, 10)
}
