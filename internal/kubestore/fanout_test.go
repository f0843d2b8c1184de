package kubestore

import (
	"fmt"
	"io"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// BenchmarkFanOut compares a change's way to many watches, each of which encodes it, through this package
// alone and through upstream's cacher over it: time per change, and memory of an idle watch.
func BenchmarkFanOut(b *testing.B) {
	for _, through := range []string{"kubestore", "cacher"} {
		for _, n := range []int{25, 1000, 10_000} {
			b.Run(fmt.Sprintf("%s/watches=%d", through, n), func(b *testing.B) { benchmarkFanOut(b, through == "cacher", n) })
		}
	}
}

func benchmarkFanOut(b *testing.B, cached bool, n int) {
	bed := newBed(b, eventlogtest.Start(b), memory.New())
	raw := newStore(bed.Cell, pods(nil))
	p := create(b, raw, pod("ns", "a"))
	var s storage.Interface = raw
	if cached {
		s = underCacher(b, &stepped{store: raw}, storage.NamespaceKeyFunc)
	}
	encoder := codecs.LegacyCodec(examplev1.SchemeGroupVersion)
	var received sync.WaitGroup
	before := memoryInUse()
	var recorders []*recorder
	for range n {
		recorders = append(recorders, watchFrom(b, s, p.ResourceVersion))
	}
	waitForWatches(b, raw, cached, n)
	perWatch := float64(int64(memoryInUse()-before)) / float64(n)
	for _, w := range recorders {
		go func() {
			for e := range w.ResultChan() {
				_ = encoder.Encode(e.Object, io.Discard)
				received.Done()
			}
		}()
	}
	b.ResetTimer()
	for i := range b.N {
		received.Add(n)
		_, err := relabel(b.Context(), raw, keyOf(p), "n", fmt.Sprint(i))
		require.NoError(b, err)
		received.Wait()
	}
	b.StopTimer()
	b.ReportMetric(perWatch, "B/watch")
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "deliveries/s")
}

func memoryInUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

func waitForWatches(b *testing.B, s *store, cached bool, n int) {
	if cached {
		time.Sleep(time.Second) // the cacher does not tell
		return
	}
	eventlogtest.Eventually(b, "all watches have joined", func() bool {
		s.Feed.mu.Lock()
		defer s.Feed.mu.Unlock()
		return len(s.Feed.subs["main/pods/"]) == n
	})
}
