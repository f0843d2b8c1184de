package serving

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	checkedFor   = time.Second
	checkTimeout = 10 * time.Second
)

// IsProbe says whether a path is the path of a probe: '/healthz', '/livez', '/readyz', or a path below them.
func IsProbe(path string) bool {
	switch first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/"); first {
	case "healthz", "livez", "readyz":
		return true
	}
	return false
}

// Shared returns a check that runs once a second at most, and takes 10 seconds at most. Probers have no credentials. So
// all of them share one check, and the reason of a failure goes only to the log, once for each reason.
func Shared(check func(context.Context) error) func(*http.Request) error {
	var mu sync.Mutex // guards the variables below
	var checked time.Time
	var last error
	return func(r *http.Request) error {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(checked) < checkedFor {
			return last
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), checkTimeout) // other probers use the result too
		defer cancel()
		before := last
		last = check(ctx)
		checked = time.Now()
		if last != nil && (before == nil || before.Error() != last.Error()) {
			slog.Warn("not ready", "error", last)
		}
		return last
	}
}
