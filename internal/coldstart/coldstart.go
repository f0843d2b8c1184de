// Package coldstart makes a process's first answer come sooner by collecting less
// garbage until then. Start-up allocates much that stays, so most collections are
// in vain then. They took a third of the time from exec to the first answer.
package coldstart

import (
	"os"
	"runtime"
	"runtime/debug"
	"sync"
)

// percent makes the first collection come when the heap has 64 MiB, which is three times what a start allocates. Later
// there may be half again as much garbage as what lives: to collect more often, as the runtime's 100 does, takes a
// tenth of a write's processor. A memory limit makes collections come earlier.
const (
	percent = 1600
	later   = 150
)

// init runs before nearly all others. Packages are initialized in the order of their import paths, as far as their
// imports allow, and this one imports little. A user's own GOGC is left alone. The first collection ends it, too: a
// first request that is large must not make the heap seventeen times what it holds.
func init() {
	runtime.MemProfileRate = 0 // nobody can ask for a profile, and its samples of stacks touch two MiB of tables
	if os.Getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(percent)
	runtime.AddCleanup(new([16]byte), func(struct{}) { Over() }, struct{}{})
}

// Over sets the target that the process keeps.
var Over = sync.OnceFunc(func() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(later)
	}
})
