package simulate

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"
)

// findings are the violations that a run has found, one of each kind.
type findings struct {
	order []*finding
}

type finding struct {
	property, problem string
	seed              uint64
	step, times       int
	after, cpu        time.Duration
	worlds            int64
	afflicted         []string
}

// add notes a violation, and says whether it is the first of its kind.
func (f *findings) add(property, problem string, w *world, after time.Duration) bool {
	for _, known := range f.order {
		if known.property == property {
			known.times++
			return false
		}
	}
	f.order = append(f.order, &finding{property, problem, w.config.seed, w.turn, 1, after, cpuTime(), w.counted.seeds.Load() + 1, w.config.afflicted})
	return true
}

func (f *findings) has(property string) bool {
	return slices.ContainsFunc(f.order, func(known *finding) bool { return known.property == property })
}

// harmless violations do not end their world.
var harmless = map[string]bool{
	"a write is decided by an old view": true, "a trim is done again and again": true,
	"the same bytes are written again and again": true, "an object is larger than two parts": true,
}

func (f *findings) String() string {
	var b strings.Builder
	for _, one := range f.order {
		fmt.Fprintf(&b, "\n%7.1f s, %7.1f s of CPU, world %4d, seed %d, step %d, %d times, %v: %s: %.600s",
			one.after.Seconds(), one.cpu.Seconds(), one.worlds, one.seed, one.step, one.times, one.afflicted, one.property, one.problem)
	}
	return b.String()
}

// cpuTime is the processor time that this process has used.
func cpuTime() time.Duration {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
