package memory

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var kept [][]byte

// fill makes kept hold this many MiB.
func fill(mebibytes int) {
	for range mebibytes {
		block := make([]byte, 1<<20)
		for i := 0; i < len(block); i += 4096 {
			block[i] = 1
		}
		kept = append(kept, block)
	}
}

// waste allocates this many bytes and keeps nothing.
func waste(bytes int) {
	for ; bytes > 0; bytes -= 1 << 20 {
		runtime.KeepAlive(make([]byte, 1<<20))
	}
}

// TestGivesBackWhenIdle: nothing happens during work. Soon after it, garbage goes back to the system. Once there was
// nothing to do for a whole pause, caches shrink once and the memory that they held goes back, too.
func TestGivesBackWhenIdle(t *testing.T) {
	defer func() { kept = nil }()
	shrunk := 0
	k := &keeper{shrink: func() { shrunk++; kept = nil }, timer: stoppedTimer()}
	rest := func() {
		for range pause {
			k.look()
		}
	}
	fill(30) // as a start does
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

	// A little work, beside much garbage.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	waste(300 << 20)
	k.look()
	_, held = usage()
	require.Greater(t, held, uint64(250<<20), "it works")
	waste(1 << 20)
	k.look()
	require.Equal(t, 2, shrunk)
	_, held = usage()
	require.Less(t, held, start+start/4+30<<20)

	k.stop()
	fill(100)
	rest()
	rest()
	require.Equal(t, 2, shrunk, "stopped")
}

// TestCollectionsSetTheTimer: the process looks after every collection, and no longer after stop.
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

func TestLambda(t *testing.T) {
	t.Setenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "512")
	was := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(was)
	require.NoError(t, Limit())
	require.InDelta(t, 512<<20/10*9, debug.SetMemoryLimit(-1), 100)
	t.Setenv("GOMEMLIMIT", "100MiB")
	debug.SetMemoryLimit(100 << 20)
	require.NoError(t, Limit())
	require.EqualValues(t, 100<<20, debug.SetMemoryLimit(-1))
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
