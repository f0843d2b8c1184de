// Package memory keeps a process within what its container may use, and gives back what a busy time has left.
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

// usable is the part of a container's memory that Go's heap may take; the rest is for what the runtime does not count.
const usable = 0.9

// Limit has garbage collected before the container's limit is reached (cgroup v1 or v2), or the function's on AWS
// Lambda. A user's own GOMEMLIMIT is left alone.
func Limit() error {
	_, err := memlimit.Set(memlimit.WithRatio(usable), memlimit.WithProvider(memlimit.ApplyFallback(lambda, memlimit.FromCgroup)))
	if errors.Is(err, memlimit.ErrNoCgroup) || errors.Is(err, memlimit.ErrCgroupsNotSupported) {
		return nil
	}
	return err
}

// lambda is the memory of a function, which no cgroup tells it.
func lambda() (uint64, error) {
	mebibytes, err := strconv.ParseUint(os.Getenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE"), 10, 32)
	if err != nil {
		return 0, memlimit.ErrNoLimit
	}
	return mebibytes << 20, nil
}

// After pause without much work, memory that is worth it goes back: more than a quarter above what the process held
// when it had given back last, and worth more.
const (
	pause = 10 * time.Second
	worth = 16 << 20
	// idle is how much a process with nothing to do may allocate in a pause; light is the part of what it holds that
	// one with little to do may.
	idle  = 4 << 20
	light = 16
)

// GiveBack gives memory back to the system when there is little to do: garbage when what is allocated has become little
// beside what is held, and once there is nothing to do, what shrink lets go of, too. The runtime alone would collect
// after two minutes, to give back slowly, and never let go of a cache.
//
// Collections of garbage set a timer, and nothing else does: it goes off when they have become rare, and a process that
// does nothing has none. If the process stands still meanwhile, as a function does between two requests, nothing is
// lost but the memory.
func GiveBack(shrink func()) (stop func()) {
	k := &keeper{shrink: shrink}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timer = time.AfterFunc(pause, k.look)
	k.afterCollection()
	return k.stop
}

type keeper struct {
	shrink func()

	mu      sync.Mutex // guards what follows
	timer   *time.Timer
	stopped bool
	// allocated is how much had been allocated at the last look.
	allocated uint64
	// given is what the process held when it had last given back, shrunk when shrink had been called as well.
	given, shrunk uint64
}

// afterCollection has the timer set by the next collection, which finds the sentinel to be garbage.
func (k *keeper) afterCollection() {
	type sentinel [64]byte // too large to share its place in memory with others
	runtime.AddCleanup(&sentinel{}, func(k *keeper) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if !k.stopped {
			k.timer.Reset(pause)
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
	switch {
	case recently <= idle && more(held, k.shrunk):
		k.shrink()
		k.free()
		k.shrunk = k.given
	case recently <= idle: // until the next collection
		return
	case recently <= held/light && more(held, k.given):
		k.free()
	}
	k.timer.Reset(pause)
}

func more(held, before uint64) bool { return held > before+before/4+worth }

func (k *keeper) free() {
	runtime.GC() // what pools held before this is garbage for the next
	debug.FreeOSMemory()
	k.allocated, k.given = usage()
}

// usage is how much was allocated so far, and how much memory the runtime holds.
func usage() (allocated, held uint64) {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64(), samples[1].Value.Uint64() - samples[2].Value.Uint64()
}
