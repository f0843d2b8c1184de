package eventlog

import (
	"context"
	"fmt"
)

// purgeStep bounds one purge: publishers wait for all of it, about 15 ms for 10,000 events.
const purgeStep = 10_000

// Purge removes every event up to and including the revision, in bounded steps. The caller guarantees
// that a committed root covers them (invariant 5). It never reaches the head.
//
// A crash between two steps leaves a log that starts earlier than asked; the next purge goes on.
func (l *Log) Purge(ctx context.Context, upto Revision) error {
	b, err := l.info(ctx) // too low a head, from a deposed leader, only clamps more
	if err != nil {
		return fmt.Errorf("purge up to %d: %w", upto, err)
	}
	// A purge with a sequence beyond the last would wipe the log and jump it.
	keep := min(upto+1, b.Head)
	for first := b.First; first < keep; {
		first = min(first+purgeStep, keep)
		if err := l.purgeBelow(ctx, first); err != nil {
			return fmt.Errorf("purge up to %d: %w", upto, err)
		}
	}
	return nil
}

// Fence wipes the log and makes 'to' the next revision (invariant 9). Only an operator does it, after
// all writers have stopped and a root with applied = floor = to - 1 is ready: everything in the log is lost.
func (l *Log) Fence(ctx context.Context, to Revision) error {
	b, err := l.Head(ctx)
	if err != nil {
		return fmt.Errorf("fence at %d: %w", to, err)
	}
	if to <= b.Head+1 {
		return fmt.Errorf("fence at %d: it must be above the head's next revision, %d", to, b.Head+1)
	}
	if err := l.purgeBelow(ctx, to); err != nil {
		return fmt.Errorf("fence at %d: %w", to, err)
	}
	return nil
}

// purgeBelow makes first the first retained revision.
func (l *Log) purgeBelow(ctx context.Context, first Revision) error {
	var answer struct{ refusal }
	return l.call(ctx, "purge", "STREAM.PURGE."+l.config.Stream, fmt.Appendf(nil, `{"seq":%d}`, first), &answer)
}
