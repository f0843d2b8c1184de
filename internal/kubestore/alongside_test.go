package kubestore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// tallied is a resource whose writes also keep the number of all its objects.
func tallied(c Cell) Resource {
	r := pods(nil)
	key := eventlog.Key{Cluster: c.Cluster, Resource: "counts", Prefix: "/counts", Name: "pods"}
	r.Alongside = func(ctx context.Context, v *projection.View, change Change) ([]projection.Write, error) {
		n := 0
		switch {
		case change.Before == nil:
			n = 1
		case change.After == nil:
			n = -1
		default:
			return nil, nil
		}
		at, err := v.State(ctx, key)
		if err != nil {
			return nil, err
		}
		if row, live := at.Row(); live {
			var had int
			if _, err := fmt.Sscan(string(row.Value), &had); err != nil {
				return nil, err
			}
			n += had
		}
		return []projection.Write{at.Put("text/plain", fmt.Append(nil, n), 0)}, nil
	}
	return r
}

// TestAlongsideIsExact: writes alongside objects stay consistent with the objects, though writers of two processes
// race.
func TestAlongsideIsExact(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	other := process(t, b.Log, b.bucket)
	stores := []storage.Interface{New(b.Cell, tallied(b.Cell)), New(other, tallied(other))}
	var writing sync.WaitGroup
	for i := range 8 {
		writing.Go(func() {
			s := stores[i%2]
			for n := range 5 {
				p := pod("ns", fmt.Sprintf("p-%d-%d", i, n))
				if err := s.Create(t.Context(), keyOf(p), p, nil, 0); err != nil {
					t.Errorf("create: %v", err)
				}
				if n%2 == 1 {
					if _, err := remove(t.Context(), s, keyOf(p)); err != nil {
						t.Errorf("remove: %v", err)
					}
				}
			}
		})
	}
	writing.Wait()
	v, err := b.Projection.Latest(t.Context())
	require.NoError(t, err)
	n, err := v.Count(t.Context(), "main/pods/", "main/pods0", v.Revision())
	require.NoError(t, err)
	row, _, err := v.Get(t.Context(), "main/counts/pods", v.Revision())
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(n), string(row.Value))
	require.Equal(t, 8*3, n)
}

// TestNewcomersWait: writers that want to change the same row alongside their objects do not make each other lose for
// ever. Once some writes have lost, newcomers wait for these writes.
func TestNewcomersWait(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	r := tallied(b.Cell)
	count := r.Alongside
	var attempts atomic.Int64
	r.Alongside = func(ctx context.Context, v *projection.View, c Change) ([]projection.Write, error) {
		attempts.Add(1)
		return count(ctx, v, c)
	}
	s := New(b.Cell, r)
	const writers, each = 16, 20
	var writing sync.WaitGroup
	for i := range writers {
		writing.Go(func() {
			for n := range each {
				p := pod("ns", fmt.Sprintf("p-%d-%d", i, n))
				if err := s.Create(t.Context(), keyOf(p), p, nil, 0); err != nil {
					t.Errorf("create: %v", err)
				}
			}
		})
	}
	writing.Wait()
	t.Logf("%d writes, %d attempts", writers*each, attempts.Load())
	require.Less(t, attempts.Load(), int64(writers*each*5/4))
}

// TestAlongsideRefuses: an error of Alongside is the answer to the write, and nothing is written.
func TestAlongsideRefuses(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	r := pods(nil)
	no := errors.New("no place is left")
	r.Alongside = func(context.Context, *projection.View, Change) ([]projection.Write, error) {
		return nil, storage.NewInternalError(no)
	}
	before, err := b.Projection.Latest(t.Context())
	require.NoError(t, err)
	p := pod("ns", "a")
	require.ErrorContains(t, New(b.Cell, r).Create(t.Context(), keyOf(p), p, nil, 0), no.Error())
	after, err := b.Projection.Latest(t.Context())
	require.NoError(t, err)
	require.Equal(t, before.Revision(), after.Revision())
}

// TestWritesStartFromRecentViews: if the view of a request has grown old, its write is computed from a new view, and
// Complete sets its fields from the new view too.
func TestWritesStartFromRecentViews(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	r := pods(nil)
	var from, completed eventlog.Revision
	r.Alongside = func(_ context.Context, v *projection.View, _ Change) ([]projection.Write, error) {
		from = v.Revision()
		return nil, nil
	}
	r.Complete = func(_ context.Context, v *projection.View, _, after runtime.Object) error {
		completed = v.Revision()
		after.(*example.Pod).Labels = map[string]string{"completed": "yes"}
		return nil
	}
	s := New(b.Cell, r)
	for _, old := range []bool{false, true} {
		v, err := b.Projection.Latest(t.Context())
		require.NoError(t, err)
		ctx := WithView(t.Context(), v)
		head := eventlog.Revision(b.barrier())
		if old {
			time.Sleep(Staleness)
		}
		p := pod("ns", fmt.Sprint("a", old))
		out := &example.Pod{}
		require.NoError(t, s.Create(ctx, keyOf(p), p, out, 0))
		require.Equal(t, "yes", out.Labels["completed"])
		require.Equal(t, from, completed)
		if !old {
			require.Equal(t, v.Revision(), from)
		} else {
			require.GreaterOrEqual(t, from, head)
		}
	}
}

// TestSlowWritesAreDecidedAnew: upstream asks webhooks while an object is computed. If the webhooks take long, the
// writes alongside the object are decided on a newer view. The object is computed again only if it has changed
// meanwhile.
func TestSlowWritesAreDecidedAnew(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	r := pods(nil)
	var from, since eventlog.Revision
	reads := 0 // how many more times reading for Alongside is slow
	r.Alongside = func(_ context.Context, v *projection.View, _ Change) ([]projection.Write, error) {
		from = v.Revision()
		if reads > 0 {
			reads--
			since = eventlog.Revision(b.barrier())
			time.Sleep(Staleness)
		}
		return nil, nil
	}
	s, other := New(b.Cell, r), New(b.Cell, pods(nil))
	p := pod("ns", "a")
	calls := 0
	slow := func(meanwhile func()) {
		calls++
		if calls == 1 {
			meanwhile()
			since = eventlog.Revision(b.barrier()) // the barrier stands for the end of a namespace, for example
			time.Sleep(Staleness)
		}
	}
	update := func(label string, meanwhile func()) {
		t.Helper()
		calls = 0
		require.NoError(t, s.GuaranteedUpdate(t.Context(), keyOf(p), &example.Pod{}, true, nil, func(obj runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
			slow(meanwhile)
			next := obj.(*example.Pod)
			if next.Name == "" {
				next = pod("ns", "a")
			}
			if next.Labels == nil {
				next.Labels = map[string]string{}
			}
			next.Labels[label] = "yes"
			return next, nil, nil
		}, nil))
		require.GreaterOrEqual(t, from, since)
	}
	nothing := func() {}
	update("created", nothing)
	require.Equal(t, 1, calls)
	update("updated", nothing)
	require.Equal(t, 1, calls)
	reads = 2
	update("read slowly", nothing)
	require.Equal(t, 1, calls)
	reads = decisions + 2
	update("read very slowly", nothing)
	require.Equal(t, 2, calls)
	update("again", func() {
		_, err := relabel(t.Context(), other, keyOf(p), "other", "yes")
		require.NoError(t, err)
	})
	require.Equal(t, 2, calls)
	got := &example.Pod{}
	require.NoError(t, s.Get(t.Context(), keyOf(p), storage.GetOptions{}, got))
	require.Equal(t, map[string]string{"created": "yes", "updated": "yes", "read slowly": "yes", "read very slowly": "yes", "other": "yes", "again": "yes"}, got.Labels)
	calls = 0
	require.NoError(t, s.Delete(t.Context(), keyOf(p), &example.Pod{}, nil, func(context.Context, runtime.Object) error {
		slow(nothing)
		return nil
	}, nil, storage.DeleteOptions{}))
	require.Equal(t, 1, calls)
	require.GreaterOrEqual(t, from, since)
}
