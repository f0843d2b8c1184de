// Package memory keeps a process within what its container may use, and gives back the memory that a busy time took.
package memory

import (
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"sync"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// What a process takes besides the runtime's heap: pages of the binary, which are several tens of MiB, and memory that
// the runtime does not count. A small process still has half of its memory for the heap.
const (
	binary = 80 << 20
	usable = 0.9
)

// heap is how much the runtime may take of so much memory.
func heap(told uint64) uint64 {
	return min(uint64(float64(told)*usable), max(told/2, told-min(told, binary)))
}

// Limited is a limit that is in force. From is where it comes from: '--memory-mib', 'function', 'container', or
// 'GOMEMLIMIT', which limits the heap alone. It is empty if there is none.
type Limited struct {
	From  string
	Bytes uint64
}

// Limit makes the runtime collect garbage before the process takes more than so many MiB, or if they are 0, more than
// its container (cgroup v1 or v2) or its function on AWS Lambda may take. It leaves a user's own GOMEMLIMIT alone.
func Limit(mebibytes int64) (Limited, error) {
	found := Limited{From: "GOMEMLIMIT"} // if nobody else is asked
	_, err := memlimit.Set(memlimit.WithRatio(1), memlimit.WithProvider(func() (uint64, error) {
		var err error
		found, err = told(mebibytes)
		return heap(found.Bytes), err
	}))
	if errors.Is(err, memlimit.ErrNoCgroup) || errors.Is(err, memlimit.ErrCgroupsNotSupported) {
		err = nil
	}
	switch limit := debug.SetMemoryLimit(-1); {
	case limit > none:
		return Limited{}, err
	case found.From == "GOMEMLIMIT":
		found.Bytes = uint64(limit)
	}
	return found, err
}

// told is the limit that somebody but the user's GOMEMLIMIT has set.
func told(mebibytes int64) (Limited, error) {
	if mebibytes > 0 {
		return Limited{"--memory-mib", uint64(mebibytes) << 20}, nil
	}
	if bytes, err := lambda(); err == nil {
		return Limited{"function", bytes}, nil
	}
	bytes, err := memlimit.FromCgroup()
	return Limited{"container", bytes}, err
}

// A process has own bytes of heap when it has started. Of the rest the caches have one of shares: as much again may be
// garbage, and as much is for requests. Even the smallest process has least.
const (
	own    = 48 << 20
	shares = 4
	least  = 4 << 20
)

// Caches is how many bytes the caches of the process may have, by the runtime's limit. Without a limit they have what
// they would have in a process of so many MiB.
func Caches(unlimited int64) int64 {
	limit := debug.SetMemoryLimit(-1)
	if limit > none {
		limit = int64(heap(uint64(unlimited) << 20))
	}
	return max((limit-own)/shares, least)
}

// none is more than any process has: such a limit of a container or of the runtime is none.
const none = 1 << 46

// lambda is the memory of a function. No cgroup reports it.
func lambda() (uint64, error) {
	mebibytes, err := strconv.ParseUint(os.Getenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE"), 10, 32)
	if err != nil {
		return 0, memlimit.ErrNoLimit
	}
	return mebibytes << 20, nil
}

// A process looks at what it holds tick after its last collection of garbage, and then each tick until a whole pause
// has brought nothing. Memory goes back if it is worth it: if the process holds over an eighth more than when it last
// gave back, and worth bytes on top of that.
const (
	tick  = 500 * time.Millisecond
	pause = 20 // ticks
	worth = 4 << 20
	// idle is how much a process with nothing to do may allocate in a pause. A process with little to do may allocate
	// one part in light of what it holds in a tick.
	idle  = 4 << 20
	light = 256
)

// GiveBack gives memory back to the system. A second after work has become little, compared with what is held, it gives
// back garbage, and what rest drops. Rest returns how many bytes it has dropped, or is nil. It is called again after
// each pause with little work. When there was nothing to do for a whole pause, it also gives back what shrink drops.
// Without it the runtime would collect only after two minutes, give back slowly, and never drop a cache.
//
// Only garbage collections set the timer. It goes off when they have become rare,
// and a process that does nothing has no timer. If the process is frozen meanwhile,
// as a function is between two requests, it only keeps the memory for longer.
func GiveBack(rest func() int64, shrink func()) (stop func()) {
	if rest == nil {
		rest = func() int64 { return 0 }
	}
	k := &keeper{rest: rest, shrink: shrink}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timer = time.AfterFunc(tick, k.look)
	k.afterCollection()
	return k.stop
}

type keeper struct {
	rest   func() int64
	shrink func()

	mu      sync.Mutex // guards what follows
	timer   *time.Timer
	stopped bool
	looks   int
	// allocated is how much the process had allocated at the last look, before at the end of the last pause.
	allocated, before uint64
	// given is what the process held after it last gave back. shrunk
	// is what it held after it last gave back and shrink was called.
	given, shrunk uint64
}

// afterCollection makes the next collection set the timer. That collection finds that the sentinel is garbage.
func (k *keeper) afterCollection() {
	type sentinel [64]byte // too large to share its place in memory with others
	runtime.AddCleanup(&sentinel{}, func(k *keeper) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if !k.stopped {
			k.timer.Reset(tick)
			k.afterCollection()
		}
	}, k)
}

func (k *keeper) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = true
	k.timer.Stop()
}

func (k *keeper) look() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopped {
		return
	}
	allocated, held := usage()
	recently := allocated - k.allocated
	k.allocated = allocated
	k.looks++
	if k.looks%pause == 0 {
		quiet := allocated-k.before <= idle
		k.before = allocated
		switch {
		case quiet && more(held, k.shrunk):
			k.shrink()
			k.free()
			k.shrunk = k.given
			k.timer.Reset(tick)
			return
		case quiet: // until the next collection
			return
		}
	}
	if grown := more(held, k.given); recently <= held/light && (grown || k.looks%pause == 0) {
		if k.rest() > worth || grown {
			k.free()
		}
	}
	k.timer.Reset(tick)
}

func more(held, before uint64) bool { return held > before+before/8+worth }

func (k *keeper) free() {
	for range 3 { // the log's server gives a buffer that is garbage to a pool, which keeps it for two collections more
		runtime.GC()
	}
	debug.FreeOSMemory()
	k.allocated, k.given = usage()
}

// usage returns how much was allocated so far, and how much memory the runtime holds.
func usage() (allocated, held uint64) {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64(), samples[1].Value.Uint64() - samples[2].Value.Uint64()
}
