package watcher

import (
	"context"
	"time"

	"github.com/logplane/logplane/eventlog"
)

// Drain turns readiness off, refuses new watches and ends the open ones. A watch that asked for bookmarks gets a last
// bookmark. Drain returns when all watches have ended, or a little after the time over which their ends are spread.
func (w *Watcher) Drain(ctx context.Context) {
	ends, ended := w.StopWatches()
	drain(ctx, w.spread, w.grace, ends, ended)
}

// drain ends watches, and returns when ended is closed, or when grace has passed after the last end.
func drain(ctx context.Context, spread, grace time.Duration, ends []func(), ended <-chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, spread+grace)
	defer cancel()
	endAll(ctx, spread, ends)
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

// endAll ends watches one after the other, so that their clients do not all come to the other processes at once. When
// ctx ends, the remaining watches end at once.
func endAll(ctx context.Context, spread time.Duration, ends []func()) {
	start := time.Now()
	for i, end := range ends {
		_ = eventlog.Pause(ctx, time.Until(start.Add(spread*time.Duration(i)/time.Duration(len(ends)))))
		end()
	}
}
