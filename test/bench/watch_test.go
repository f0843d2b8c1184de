package bench

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"
)

// watchesOf returns how many watches a benchmark of this file may open. The benchmarks take minutes, so they run only
// if LOGPLANE_BENCH_WATCHES is set ('make bench-watch').
func watchesOf(b *testing.B, want int) int {
	most, err := strconv.Atoi(os.Getenv("LOGPLANE_BENCH_WATCHES"))
	if err != nil || most < want {
		b.Skip("LOGPLANE_BENCH_WATCHES is not set, or lower")
	}
	if files := openFiles(); files < want+spareFiles {
		b.Skipf("%d open files are allowed, too few: raise the limit ('ulimit -n')", files)
	}
	return want
}

func eachProtocol(b *testing.B, run func(b *testing.B, over protocol)) {
	for _, over := range []protocol{http1, http2} {
		b.Run(string(over), func(b *testing.B) { run(b, over) })
	}
}

// BenchmarkRollingRestart opens 10,000 watches on three watcher processes behind one address, and restarts the
// processes one after another under 200 writes/s. No client may notice: no event is lost or repeated, no client lists,
// and no client gets a 410.
func BenchmarkRollingRestart(b *testing.B) {
	eachProtocol(b, func(b *testing.B, over protocol) {
		n := watchesOf(b, 10_000)
		f := &fleet{tier: newTier(b, 3, over), namespaces: n / 10, objects: 1}
		f.balanced(n)
		f.create()
		f.watch(10)
		before, started := f.cpuByRole(), time.Now()
		f.load(200, 0, func() {
			for _, p := range f.watchers {
				f.restart(p)
			}
		})
		elapsed := time.Since(started)
		b.Logf("%d writes in %s, three restarts", len(f.writes), elapsed.Round(time.Second))
		f.logCPU(before, elapsed)
		f.verdict()
	})
}

// BenchmarkFanOut: every watch gets every change, from one watcher process.
func BenchmarkFanOut(b *testing.B) {
	eachProtocol(b, func(b *testing.B, over protocol) {
		for _, n := range []int{25, 1000, 10_000} {
			b.Run(fmt.Sprintf("watches=%d", n), func(b *testing.B) { fanOut(b, over, watchesOf(b, n)) })
		}
	})
}

func fanOut(b *testing.B, over protocol, n int) {
	f := &fleet{tier: newTier(b, 1, over), namespaces: 1, objects: 16}
	f.create()
	pid := f.watchers[0].cmd.Process.Pid
	// so that all structures that are built on first use exist
	await(b, f.client(), f.url(f.front)+f.collection(0)+"?watch=1")
	before := residentBytes(b, pid)
	f.watch(n)
	memory := float64(residentBytes(b, pid)-before) / float64(n)
	cpu, started := cpuTime(b, pid), time.Now()
	f.load(max(1, min(100, 50_000/n)), 10*time.Second, func() {})
	elapsed := time.Since(started)
	used := cpuTime(b, pid) - cpu
	f.verdict()
	b.ReportMetric(memory/1024, "KiB/watch")
	b.ReportMetric(float64(len(f.writes)*n)/elapsed.Seconds(), "events/s")
	b.ReportMetric(used.Seconds()/elapsed.Seconds()*100, "cpu-%")
}

// BenchmarkUpdateStorm: 25 watches follow 10,000 ConfigMaps, which 1,000 clients at once update in four rounds. Every
// watch gets every update, a million events. The benchmark reports two lags. One begins when an update is sent, so that
// lag includes the write. The other begins when the update's answer arrives.
func BenchmarkUpdateStorm(b *testing.B) {
	const watches, objects, rounds, writers = 25, 10_000, 4, 1000
	watchesOf(b, watches+writers)
	f := &fleet{tier: newTier(b, 1, http1), namespaces: 1, objects: objects}
	f.create()
	f.watch(watches)
	before, started := f.cpuByRole(), time.Now()
	for round := range rounds {
		f.each(writers, objects, func(i int) { f.update(0, i, uint64(round)) })
	}
	elapsed := time.Since(started)
	f.logCPU(before, elapsed)
	f.verdict()
	b.ReportMetric(rounds*objects/elapsed.Seconds(), "writes/s")
	b.ReportMetric(watches*rounds*objects/elapsed.Seconds(), "events/s")
}
