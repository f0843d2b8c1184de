package kubestore

import (
	"fmt"
	"io"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// BenchmarkFanOut measures the time that a change takes to reach many watches, each of which encodes the change, and
// the memory of an idle watch.
func BenchmarkFanOut(b *testing.B) {
	for _, n := range []int{25, 1000, 10_000} {
		b.Run(fmt.Sprintf("watches=%d", n), func(b *testing.B) { benchmarkFanOut(b, n) })
	}
}

func benchmarkFanOut(b *testing.B, n int) {
	bed := newBed(b, eventlogtest.Start(b), memory.New())
	s := newStore(bed.Cell, pods(nil))
	p := create(b, s, pod("ns", "a"))
	encoder := codecs.LegacyCodec(examplev1.SchemeGroupVersion)
	var received sync.WaitGroup
	before := memoryInUse()
	var recorders []*recorder
	for range n {
		recorders = append(recorders, watchFrom(b, s, p.ResourceVersion))
	}
	waitForMembers(b, s, n)
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
		_, err := relabel(b.Context(), s, keyOf(p), "n", fmt.Sprint(i))
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

// BenchmarkFieldSelector changes pods of one of many nodes. Each node watches its own pods as a kubelet does. The
// benchmark measures processor time per change, with and without an index by the field.
func BenchmarkFieldSelector(b *testing.B) {
	for _, indexed := range []bool{false, true} {
		for _, n := range []int{1, 5000} {
			b.Run(fmt.Sprintf("indexed=%v/nodes=%d", indexed, n), func(b *testing.B) { benchmarkFieldSelector(b, indexed, n) })
		}
	}
}

func benchmarkFieldSelector(b *testing.B, indexed bool, n int) {
	bed := newBed(b, eventlogtest.Start(b), memory.New())
	r := pods(nil)
	if !indexed {
		r.Indexers = nil
	}
	s := newStore(bed.Cell, r)
	scheduled := pod("ns", "a")
	scheduled.Spec.NodeName = "node-0"
	p := create(b, s, scheduled)
	var own *recorder
	for i := range n {
		w := watchNode(b, s, p.ResourceVersion, fmt.Sprintf("node-%d", i))
		if i == 0 {
			own = w
		}
	}
	waitForMembers(b, s, n)
	before := processorTime(b)
	for i := 0; b.Loop(); i++ {
		_, err := relabel(b.Context(), s, keyOf(p), "n", fmt.Sprint(i))
		require.NoError(b, err)
		<-own.ResultChan()
	}
	b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
}

// watchNode watches the pods of one node.
func watchNode(t testing.TB, s storage.Interface, revision, node string) *recorder {
	t.Helper()
	selection := storage.SelectionPredicate{Label: labels.Everything(), Field: fields.OneTermEqualSelector("spec.nodeName", node), GetAttrs: attributes}
	w, err := s.Watch(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: revision, Predicate: selection, Recursive: true})
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	return &recorder{Interface: w, t: t}
}

func processorTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
