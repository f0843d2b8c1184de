// Package coldstart makes a process's first answer come sooner: until then less garbage is collected. Most objects that
// are allocated at the start stay alive, so most collections at the start free little. The collections took a third of
// the time from exec to the first answer.
package coldstart

import (
	"os"
	"runtime"
	"runtime/debug"
	"sync"
)

// percent delays the first collection until the heap has 64 MiB, three times the memory that a start allocates. Later,
// garbage may be one and a half times as much as live memory: collecting more often, as with the runtime's 100, takes a
// tenth of a write's processor time. A memory limit makes collections come earlier.
const (
	percent = 1600
	later   = 150
)

// init runs before nearly all other init functions: packages are initialized in the order of their import paths, as far
// as their imports allow, and this package imports little. A user's own GOGC is left alone. The first collection also
// ends the start, because a large first request must not make the heap seventeen times its live size.
func init() {
	runtime.MemProfileRate = 0 // nobody can ask for a profile, and its stack samples touch two MiB of tables
	if os.Getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(percent)
	runtime.AddCleanup(new([16]byte), func(struct{}) { Over() }, struct{}{})
}

// Over ends the start: it sets the target for the rest of the process's life.
var Over = sync.OnceFunc(func() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(later)
	}
})
