// Package coldstart makes a process's first answer come sooner by collecting less
// garbage until then. Start-up allocates much that stays, so most collections are
// in vain then. They took a third of the time from exec to the first answer.
package coldstart

import (
	"net/http"
	"os"
	"runtime/debug"
	"sync"
)

// percent is the collector's target until Over: about 10 MiB more at the peak.
const percent = 400

// init runs before nearly all others. Packages are initialized in the order of their import paths, as far as their
// imports allow, and this one imports little. A user's own GOGC is left alone.
func init() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// Over restores the usual target.
var Over = sync.OnceFunc(func() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(100)
	}
})

// UntilFirst returns a handler that calls Over after its first answer.
func UntilFirst(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer Over()
		h.ServeHTTP(w, r)
	})
}
