package eventlog_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
)

var kilobyte = strings.Repeat("x", 1024)

func BenchmarkAppend(b *testing.B) {
	l := eventlogtest.Log(b)
	for i := 0; b.Loop(); i++ {
		if _, err := l.Append(b.Context(), l.Basis(), fmt.Sprint(i), added(fmt.Sprint(i), kilobyte)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAppendByMany measures how many appends one log takes from many writers, each of which waits for its
// acknowledgement. The servers and the writers share this process and this machine's disk.
func BenchmarkAppendByMany(b *testing.B) {
	for _, servers := range []int{1, 3} {
		b.Run(fmt.Sprintf("servers=%d", servers), func(b *testing.B) {
			l := eventlogtest.Log(b)
			if servers > 1 {
				l = eventlogtest.Cluster(b).Log(0)
			}
			b.SetParallelism(128)
			var n atomic.Int64
			before := cpuTime()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					id := fmt.Sprint(n.Add(1))
					if _, err := l.Append(b.Context(), l.Basis(), id, added(id, kilobyte)); err != nil {
						b.Error(err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
			b.ReportMetric(float64((cpuTime()-before).Microseconds())/float64(b.N), "cpu-µs/append")
		})
	}
}

// cpuTime is the CPU time that the process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkAppendBatch(b *testing.B) {
	for _, size := range []int{2, 100} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			l := eventlogtest.Log(b)
			writes := make([]eventlog.Write, size)
			for i := 0; b.Loop(); i++ {
				for k := range writes {
					writes[k] = added(fmt.Sprintf("%d-%d", i, k), kilobyte)
				}
				if _, err := l.Append(b.Context(), l.Basis(), fmt.Sprint(i), writes...); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkHead(b *testing.B) {
	l := eventlogtest.Log(b)
	fill(b, l, 10)
	for b.Loop() {
		if _, err := l.Head(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkHeadOfAnother measures the cost of learning a head that another process has written.
func BenchmarkHeadOfAnother(b *testing.B) {
	for _, kib := range []int{1, 900} {
		b.Run(fmt.Sprintf("%dKiB", kib), func(b *testing.B) {
			s := eventlogtest.Run(b, b.TempDir())
			writer := eventlogtest.Open(b, eventlog.Config{Conn: eventlogtest.Connect(b, s)})
			l := eventlogtest.Open(b, eventlog.Config{Conn: eventlogtest.Connect(b, s)})
			body := strings.Repeat("x", kib<<10)
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				written := mustAppend(b, writer, fmt.Sprint(i), added(fmt.Sprint(i), body))
				b.StartTimer()
				bounds, err := l.Head(b.Context())
				if err != nil || bounds.Head != written {
					b.Fatal(bounds, err)
				}
			}
		})
	}
}

func BenchmarkTail(b *testing.B) {
	l := eventlogtest.Log(b)
	writes := make([]eventlog.Write, 1000)
	for i := range writes {
		writes[i] = added(fmt.Sprint(i), kilobyte)
	}
	head := mustAppend(b, l, "batch", writes...)
	for _, events := range []eventlog.Revision{0, 1, 10, 1000} {
		b.Run(fmt.Sprint(events), func(b *testing.B) {
			for b.Loop() {
				if err := l.Tail(b.Context(), head-events, head, func(eventlog.Event) error { return nil }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkFollow measures the cost per event for a long-running reader that catches up.
func BenchmarkFollow(b *testing.B) {
	l := eventlogtest.Log(b)
	writes := make([]eventlog.Write, 1000)
	for i := range writes {
		writes[i] = added(fmt.Sprint(i), kilobyte)
	}
	head := mustAppend(b, l, "batch", writes...)
	end := fmt.Errorf("the end")
	for b.Loop() {
		err := l.Follow(b.Context(), eventlog.Position{}, each(func(e eventlog.Event) error {
			if e.Revision == head {
				return end
			}
			return nil
		}))
		if err != end {
			b.Fatal(err)
		}
	}
}

func BenchmarkReplicated(b *testing.B) {
	c := eventlogtest.Cluster(b)
	l := c.Log(0)
	b.Run("append", func(b *testing.B) {
		for b.Loop() {
			fill(b, l, 1)
		}
	})
	b.Run("head", func(b *testing.B) {
		for b.Loop() {
			if _, err := l.Head(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
