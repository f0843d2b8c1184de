package kubestore

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// many is how many objects of one kind a large cell has. Each is written once.
const many = 35000

// withMany returns a store with that many pods in one namespace, all in segments, and the revision before the first
// pod.
func withMany(b *testing.B) (*bed, *store, eventlog.Revision) {
	b.Helper()
	bed := newBed(b, eventlogtest.Start(b), memory.New())
	s := newStore(bed.Cell, pods(nil))
	view, err := s.Projection.Latest(b.Context())
	require.NoError(b, err)
	before := view.Revision()
	for n := 0; n < many; {
		var writes []projection.Write
		for ; len(writes) < 500; n++ {
			p := pod("ns", fmt.Sprintf("p%05d", n))
			p.Annotations = map[string]string{"filler": fmt.Sprintf("%0300d", n)}
			body, err := s.encode(p)
			require.NoError(b, err)
			at, err := view.State(b.Context(), s.key(keyOf(p)))
			require.NoError(b, err)
			writes = append(writes, at.Put(s.ContentType, body, 0))
		}
		_, err := view.Append(b.Context(), uuid.NewString(), writes...)
		require.NoError(b, err)
		bed.commit(b.Context())
		view, err = s.Projection.Latest(b.Context())
		require.NoError(b, err)
	}
	return bed, s, before
}

// BenchmarkFirstPage lists one object with the count of the other objects: at one revision, after each write, and after
// each commit.
func BenchmarkFirstPage(b *testing.B) {
	bed, s, _ := withMany(b)
	page := func(b *testing.B) {
		list := &example.PodList{}
		require.NoError(b, s.GetList(b.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.SelectionPredicate{Label: storage.Everything.Label, Field: storage.Everything.Field, Limit: 1}}, list))
		require.EqualValues(b, many-1, *list.RemainingItemCount)
	}
	for name, between := range map[string]func(b *testing.B, n int){
		"same-revision": func(*testing.B, int) {},
		"each-write": func(b *testing.B, n int) {
			require.NoError(b, increment(b.Context(), s, fmt.Sprintf("/pods/ns/p%05d", n%many)))
		},
		"each-commit": func(b *testing.B, n int) {
			require.NoError(b, increment(b.Context(), s, fmt.Sprintf("/pods/ns/p%05d", n%many)))
			bed.commit(b.Context())
		},
	} {
		b.Run(name, func(b *testing.B) {
			page(b)
			b.ResetTimer()
			spent := time.Duration(0)
			for n := range b.N {
				between(b, n)
				began := time.Now()
				page(b)
				spent += time.Since(began)
			}
			b.ReportMetric(float64(spent.Microseconds())/float64(b.N), "µs/page")
		})
	}
}

// BenchmarkWatchOfNothing measures a watch of an empty namespace from a revision before all writes, until it has caught
// up.
func BenchmarkWatchOfNothing(b *testing.B) {
	_, s, before := withMany(b)
	spent := time.Duration(0)
	for n := range b.N {
		create(b, s, pod("empty", fmt.Sprintf("last%d", n)))
		began := time.Now()
		w, err := s.Watch(b.Context(), "/pods/empty/", storage.ListOptions{ResourceVersion: fmt.Sprint(before), Recursive: true, Predicate: storage.Everything})
		require.NoError(b, err)
		for range n + 1 {
			require.Equal(b, watch.Added, (<-w.ResultChan()).Type)
		}
		spent += time.Since(began)
		w.Stop()
	}
	b.ReportMetric(float64(spent.Microseconds())/float64(b.N), "µs/watch")
}
