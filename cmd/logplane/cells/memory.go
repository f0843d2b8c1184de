package cells

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/logplane/logplane/internal/memory"
)

// A process without a memory limit has the caches of a process whose limit is UnlimitedMiB. A 'dev' without a limit has
// the caches of a process whose limit is UnlimitedDevMiB, because a 'dev' shares the machine with its user's work.
// leastMiB is the memory that a process needs besides its caches.
const (
	UnlimitedMiB    = 512
	UnlimitedDevMiB = 256
	leastMiB        = 128
)

const memoryFlag = "memory-mib"

// MemoryLimit is the flag --memory-mib: its value, and the limit that was found.
type MemoryLimit struct {
	mebibytes int64
	found     memory.Limited
}

// Register adds the flag.
func (m *MemoryLimit) Register(flags *pflag.FlagSet) {
	flags.Var(m, memoryFlag, fmt.Sprintf("memory that this process may take, in MiB: at least %d, or 0 for what its container or function has, "+
		"without which its caches are as large as with %d, or %d in 'dev'; GOMEMLIMIT, where it is set, counts instead", leastMiB, UnlimitedMiB, UnlimitedDevMiB))
}

// String implements pflag.Value.
func (m *MemoryLimit) String() string { return strconv.FormatInt(m.mebibytes, 10) }

// Type implements pflag.Value.
func (m *MemoryLimit) Type() string { return "MiB" }

// Set implements pflag.Value.
func (m *MemoryLimit) Set(text string) error {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n != 0 && n < leastMiB {
		return fmt.Errorf("it must be a whole number of MiB, 0 or at least %d", leastMiB)
	}
	m.mebibytes = n
	return nil
}

// LimitMemory keeps the process below its limit. It must run before any cache gets its size.
func LimitMemory(flags *pflag.FlagSet) {
	m := &MemoryLimit{}
	if f := flags.Lookup(memoryFlag); f != nil {
		m = f.Value.(*MemoryLimit)
	}
	var err error
	if m.found, err = memory.Limit(m.mebibytes); err != nil {
		slog.Warn("the container's memory limit cannot be read: give --memory-mib, or set GOMEMLIMIT", "error", err)
	}
}

// Say logs which limit is in force and how much of it the caches have. For commands that people run in a terminal, Say
// logs only at the level debug.
func (m *MemoryLimit) Say(ctx context.Context, command string, caches int64) {
	level := slog.LevelInfo
	if command == "dev" || command == "init" {
		level = slog.LevelDebug
	}
	if m.found.From == "" {
		slog.Log(ctx, level, "no memory limit is set", "cachesMiB", caches>>20)
		return
	}
	slog.Log(ctx, level, "keeping below a memory limit", "from", m.found.From, "limitMiB", m.found.Bytes>>20, "heapMiB", debug.SetMemoryLimit(-1)>>20, "cachesMiB", caches>>20)
}
