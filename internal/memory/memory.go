// Package memory keeps a process within its container's memory, and gives back memory that a busy time took.
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

// A process also needs memory besides the runtime's heap: pages of the binary, which are several tens of MiB, and
// memory that the runtime does not count. Even in a small process, half of the memory is for the heap.
const (
	binary = 80 << 20
	usable = 0.9
)

// heap returns how much of a process's memory the runtime may take.
func heap(told uint64) uint64 {
	return min(uint64(float64(told)*usable), max(told/2, told-min(told, binary)))
}

// Limited is a limit that is in force. From names its source: '--memory-mib', 'function', 'container', or 'GOMEMLIMIT',
// which limits the heap alone. From is empty if there is no limit.
type Limited struct {
	From  string
	Bytes uint64
}

// Limit makes the runtime collect garbage before the process takes more than the given MiB. 0 means the limit of the
// process's container (cgroup v1 or v2) or of its function on AWS Lambda. Limit leaves a user's own GOMEMLIMIT alone.
func Limit(mebibytes int64) (Limited, error) {
	found := Limited{From: "GOMEMLIMIT"} // unless the provider is called
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

// told returns the limit from any source but the user's GOMEMLIMIT.
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

// A process has 'own' bytes of heap when it has started. The rest is divided into 'shares' equal parts. The caches get
// one part; another part may be garbage, and another is for requests. Even in the smallest process the caches get
// 'least' bytes.
const (
	own    = 48 << 20
	shares = 4
	least  = 4 << 20
)

// Caches returns how many bytes the caches of the process may have under the runtime's limit. Without a limit the
// caches get as much as in a process with the given MiB.
func Caches(unlimited int64) int64 {
	limit := debug.SetMemoryLimit(-1)
	if limit > none {
		limit = int64(heap(uint64(unlimited) << 20))
	}
	return max((limit-own)/shares, least)
}

// none is more memory than any process has: a larger limit of a container or of the runtime means that there is no
// limit.
const none = 1 << 46

// lambda returns the memory of a function on AWS Lambda. No cgroup reports it.
func lambda() (uint64, error) {
	mebibytes, err := strconv.ParseUint(os.Getenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE"), 10, 32)
	if err != nil {
		return 0, memlimit.ErrNoLimit
	}
	return mebibytes << 20, nil
}

// A process checks its memory one tick after its last garbage collection. It then checks each tick, until it was idle
// for a whole pause and nothing is left to shrink. It gives memory back if it holds over an eighth more memory than
// after it last gave memory back, plus 'worth' bytes.
const (
	tick  = 500 * time.Millisecond
	pause = 20 // ticks
	worth = 4 << 20
	// idle is how much an idle process may allocate in a pause. A process with little to do may allocate, in a tick,
	// the memory that it holds divided by 'light'.
	idle  = 4 << 20
	light = 256
)

// GiveBack gives memory back to the system. When there has been little work for a second, compared with the memory
// held, GiveBack frees garbage and the memory that rest drops. The function 'rest' returns the number of bytes that it
// has dropped, and may be nil. It is called again after each pause with little work. After a whole pause without work,
// GiveBack also frees the memory that shrink drops. Without GiveBack the runtime would collect only after two minutes,
// give back slowly, and never drop a cache.
//
// Only garbage collections set the timer. The timer fires once collections have become rare, and an idle process has no
// timer. A process that is frozen meanwhile, as a function is between two requests, merely keeps the memory for longer.
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

	mu      sync.Mutex // guards the following fields
	timer   *time.Timer
	stopped bool
	looks   int
	// allocated is how much the process had allocated at the last look, and before is the same at the end of the last
	// pause.
	allocated, before uint64
	// given is how much memory the process held after it last gave memory back. shrunk is the same for the last call of
	// shrink.
	given, shrunk uint64
}

// afterCollection makes the next collection set the timer: that collection finds the sentinel to be garbage.
func (k *keeper) afterCollection() {
	type sentinel [64]byte // too large to share an allocation with other objects
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
	for range 3 { // a pool of the log's server keeps a garbage buffer for two more collections
		runtime.GC()
	}
	debug.FreeOSMemory()
	k.allocated, k.given = usage()
}

// usage returns how much was allocated so far, and how much memory the runtime holds now.
func usage() (allocated, held uint64) {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64(), samples[1].Value.Uint64() - samples[2].Value.Uint64()
}
