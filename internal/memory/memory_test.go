package memory

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var kept [][]byte

// fill makes kept hold the given MiB.
func fill(mebibytes int) {
	for range mebibytes {
		block := make([]byte, 1<<20)
		for i := 0; i < len(block); i += 4096 {
			block[i] = 1
		}
		kept = append(kept, block)
	}
}

// waste allocates the given bytes and keeps nothing.
func waste(bytes int) {
	for ; bytes > 0; bytes -= 1 << 20 {
		runtime.KeepAlive(make([]byte, 1<<20))
	}
}

// TestGivesBackWhenIdle: during work nothing is given back. Soon after work, garbage goes back to the system. After a
// whole pause without work, caches shrink once, and their memory goes back too.
func TestGivesBackWhenIdle(t *testing.T) {
	defer func() { kept = nil }()
	rested, shrunk, dropped := 0, 0, int64(0)
	k := &keeper{rest: func() int64 { rested++; return dropped }, shrink: func() { shrunk++; kept = nil }, timer: stoppedTimer()}
	rest := func() {
		for range pause {
			k.look()
		}
	}
	fill(30) // as at a start
	rest()
	rest()
	require.Equal(t, 1, shrunk)
	start := k.shrunk
	rest()
	require.Equal(t, 1, shrunk, "nothing has come since")

	fill(300)
	rest()
	require.Equal(t, 1, shrunk, "it works")
	_, held := usage()
	require.Greater(t, held, start+290<<20)
	rest()
	require.Equal(t, 2, shrunk)
	_, held = usage()
	require.Less(t, held, start+start/4+30<<20)
	require.Empty(t, kept)

	// A little work, with much garbage.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	waste(300 << 20)
	before := rested
	k.look()
	_, held = usage()
	require.Greater(t, held, uint64(250<<20), "it works")
	require.Equal(t, before, rested)
	waste(1 << 20)
	k.look()
	require.Equal(t, before+1, rested)
	require.Equal(t, 2, shrunk)
	_, held = usage()
	require.Less(t, held, start+start/4+30<<20)

	// During continuous light work, the process checks its memory again after each pause, and gives back memory if
	// enough can be given back.
	fill(200)
	littleWork := func() {
		for range pause {
			_, held := usage()
			runtime.KeepAlive(make([]byte, held/600))
			k.look()
		}
	}
	littleWork()
	before, given := rested, k.given
	littleWork()
	require.Equal(t, before+1, rested)
	_, held = usage()
	require.Greater(t, held, given+given/60, "not worth it")
	dropped = worth + 1
	littleWork()
	require.Equal(t, before+2, rested)
	_, held = usage()
	require.Less(t, held, given+given/60)
	require.Equal(t, 2, shrunk)

	k.stop()
	fill(100)
	rest()
	rest()
	require.Equal(t, 2, shrunk, "stopped")
}

// TestCollectionsSetTheTimer: the process checks its memory after every collection, but not after stop.
func TestCollectionsSetTheTimer(t *testing.T) {
	k := &keeper{shrink: func() {}, timer: stoppedTimer()}
	k.mu.Lock()
	k.afterCollection()
	k.mu.Unlock()
	for range 3 {
		require.Eventually(t, func() bool { runtime.GC(); return k.timer.Stop() }, eventually, often)
	}
	k.stop()
	runtime.GC()
	runtime.GC()
	require.False(t, k.timer.Stop())
}

// TestLimit: the process knows the source of its limit, and how much its caches may have.
func TestLimit(t *testing.T) {
	t.Setenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "512")
	was := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(was)
	limit := func(mebibytes int64) Limited {
		limited, err := Limit(mebibytes)
		require.NoError(t, err)
		return limited
	}
	require.Equal(t, Limited{"function", 512 << 20}, limit(0))
	require.EqualValues(t, 432<<20, debug.SetMemoryLimit(-1))
	require.EqualValues(t, 96<<20, Caches(0))
	require.Equal(t, Limited{"--memory-mib", 256 << 20}, limit(256))
	require.EqualValues(t, 176<<20, debug.SetMemoryLimit(-1), "told otherwise")
	require.EqualValues(t, 32<<20, Caches(0))
	t.Setenv("GOMEMLIMIT", "100MiB")
	debug.SetMemoryLimit(100 << 20)
	require.Equal(t, Limited{"GOMEMLIMIT", 100 << 20}, limit(256))
	require.EqualValues(t, 100<<20, debug.SetMemoryLimit(-1))
	require.EqualValues(t, 13<<20, Caches(0))
	t.Setenv("GOMEMLIMIT", "off")
	debug.SetMemoryLimit(math.MaxInt64)
	require.Equal(t, Limited{}, limit(256))
	require.EqualValues(t, 32<<20, Caches(256))
}

// TestHeap: the heap leaves room for the binary, and a process of any size has some heap.
func TestHeap(t *testing.T) {
	for told, want := range map[uint64]uint64{0: 0, 1: 0, 64: 32, 128: 64, 160: 80, 256: 176, 1000: 900} {
		require.InDelta(t, want<<20, heap(told<<20), 1<<20, told)
		require.LessOrEqual(t, heap(told<<20), told<<20)
	}
	require.EqualValues(t, least, func() int64 { defer debug.SetMemoryLimit(debug.SetMemoryLimit(1)); return Caches(0) }())
}

const (
	eventually = 30 * time.Second
	often      = time.Millisecond
)

func stoppedTimer() *time.Timer {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return timer
}
