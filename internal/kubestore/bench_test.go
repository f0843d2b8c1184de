package kubestore

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket/memory"
)

func benchmark(b *testing.B, objects int) *store {
	b.Helper()
	bed := newBed(b, eventlogtest.Start(b), memory.New())
	s := newStore(bed.Cell, pods(nil))
	for n := range objects {
		create(b, s, pod("ns", fmt.Sprintf("p%05d", n)))
		if n%500 == 499 {
			bed.commit(b.Context())
		}
	}
	b.ResetTimer()
	return s
}

func BenchmarkUpdate(b *testing.B) {
	s := benchmark(b, 1000)
	for n := 0; b.Loop(); n++ {
		require.NoError(b, increment(b.Context(), s, fmt.Sprintf("/pods/ns/p%05d", n%1000)))
	}
}

func BenchmarkGet(b *testing.B) {
	s := benchmark(b, 1000)
	for n := 0; b.Loop(); n++ {
		require.NoError(b, s.Get(b.Context(), fmt.Sprintf("/pods/ns/p%05d", n%1000), storage.GetOptions{}, &example.Pod{}))
	}
}

func BenchmarkList1000(b *testing.B) {
	s := benchmark(b, 1000)
	for b.Loop() {
		list := &example.PodList{}
		require.NoError(b, s.GetList(b.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list))
		require.Len(b, list.Items, 1000)
	}
}

// BenchmarkFanOut1000 measures the time from one update until each of 1,000 watches has it.
func BenchmarkFanOut1000(b *testing.B) {
	s := benchmark(b, 1)
	head, err := s.GetCurrentResourceVersion(b.Context())
	require.NoError(b, err)
	var watching []watch.Interface
	for range 1000 {
		watching = append(watching, watchFrom(b, s, fmt.Sprint(head)))
	}
	for b.Loop() {
		require.NoError(b, increment(b.Context(), s, "/pods/ns/p00000"))
		for _, w := range watching {
			<-w.ResultChan()
		}
	}
}
