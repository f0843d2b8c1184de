package eventlog

import (
	"context"
	"math/rand/v2"
	"time"
)

// Pause waits for the time. If ctx ends first, Pause returns ctx's error. It is here because all packages may import
// this one.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// backOff pauses before the next try: up to 10 ms at first, doubled each time up to 320 ms. The jitter keeps writers of
// one object from meeting again.
func backOff(ctx context.Context, try int) error {
	return Pause(ctx, time.Millisecond+rand.N(10*time.Millisecond<<min(try, 5)))
}

// Elapsed is how long ago something was, by the clock that says more: while a process is frozen, the one that only
// moves forward may stand still.
func Elapsed(since time.Time) time.Duration {
	now := time.Now()
	return max(now.Sub(since), now.Round(0).Sub(since.Round(0)))
}
