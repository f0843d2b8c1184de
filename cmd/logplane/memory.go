package main

import (
	"fmt"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/logplane/logplane/internal/memory"
)

// A process without a limit has caches as one of unlimitedMiB has them, and 'dev', which shares its machine with the
// work of its user, as one of unlimitedDevMiB. leastMiB is what a process needs for itself.
const (
	unlimitedMiB    = 512
	unlimitedDevMiB = 256
	leastMiB        = 128
)

const memoryFlag = "memory-mib"

func registerMemory(flags *pflag.FlagSet, unlimited int) {
	flags.Int64(memoryFlag, 0, fmt.Sprintf("what this process may take, in MiB; GOMEMLIMIT wins. 0 is the limit of its container or function; without one, caches as with %d", unlimited))
}

// limitMemory keeps the process below its limit, before anything sizes its caches.
func limitMemory(flags *pflag.FlagSet) error {
	mebibytes, err := flags.GetInt64(memoryFlag)
	if err == nil && mebibytes != 0 && mebibytes < leastMiB {
		return fmt.Errorf("--memory-mib is %d: it must be 0 or at least %d", mebibytes, leastMiB)
	}
	if err := memory.Limit(mebibytes); err != nil { // 0 where there is no such flag
		slog.Warn("the container's memory limit cannot be read: give --memory-mib, or set GOMEMLIMIT", "error", err)
	}
	return nil
}
