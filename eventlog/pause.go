package eventlog

import (
	"context"
	"math/rand/v2"
	"time"
)

// Pause waits for the duration d, or returns ctx's error if ctx ends first. It is in this package because all packages
// may import this one.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// backOff pauses before the next try: up to 10 ms at first, doubled each time up to 320 ms. The jitter keeps several
// writers of one object from colliding again.
func backOff(ctx context.Context, try int) error {
	return Pause(ctx, time.Millisecond+rand.N(10*time.Millisecond<<min(try, 5)))
}

// Elapsed is how long ago 'since' was. While a process is frozen, the monotonic clock may stand still. So Elapsed uses
// the monotonic clock or the wall clock, whichever shows more.
func Elapsed(since time.Time) time.Duration {
	now := time.Now()
	return max(now.Sub(since), now.Round(0).Sub(since.Round(0)))
}
