package eventlog

import (
	"context"
	"fmt"
)

// purgeStep bounds one purge: publishers wait for all of it, about 15 ms for 10,000 events.
const purgeStep = 10_000

// Purge removes every event up to and including the revision, in bounded steps. The caller guarantees that a committed
// root covers them (invariant 5). It never reaches the head.
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

// FenceGap is how far a fence leaps at least. No request sees so many events between its view and its append, so a
// writer that began before the fence notices.
const FenceGap = 1 << 20

// Extent is what the log says of itself, whatever this process has seen before: for an operator who fences a log that
// went back. All others ask Head.
func (l *Log) Extent(ctx context.Context) (Bounds, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	b, err := l.learn(ctx, 0)
	if err != nil {
		return Bounds{}, fmt.Errorf("learn the log's extent: %w", err)
	}
	return b, nil
}

// Fence wipes the log and makes 'to' the next revision (invariant 9). Only an operator does it, after all writers have
// stopped: everything in the log is lost. A root with applied = floor = to - 1 must follow; until it is there, the log
// begins above the root and nobody reads or writes.
func (l *Log) Fence(ctx context.Context, to Revision) error {
	b, err := l.Extent(ctx)
	if err != nil {
		return fmt.Errorf("fence at %d: %w", to, err)
	}
	if to < b.Head+FenceGap {
		return fmt.Errorf("fence at %d: it must be at least %d, well above the head", to, b.Head+FenceGap)
	}
	if err := l.purgeBelow(ctx, to); err != nil {
		return fmt.Errorf("fence at %d: %w", to, err)
	}
	return nil
}

// checkUnfenced is ErrFenced if an append was acknowledged across a fence: only that takes events from the log that are
// younger than the view that the write was computed from. Preconditions do not tell: on a wiped log, 0 holds for every
// key. Nor does what the process has seen: another of its requests may have learned the head after the leap.
func (l *Log) checkUnfenced(ctx context.Context, before, rev Revision) error {
	if rev-before < FenceGap {
		return nil
	}
	ctx, cancel := l.within(context.WithoutCancel(ctx))
	defer cancel()
	b, err := l.info(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	if b.First > before+1 {
		return fmt.Errorf("acknowledged as %d, the log begins at %d, and %d was seen: %w", rev, b.First, before, ErrFenced)
	}
	return nil
}

// purgeBelow makes first the first retained revision.
func (l *Log) purgeBelow(ctx context.Context, first Revision) error {
	var answer struct{ refusal }
	return l.call(ctx, "purge", "STREAM.PURGE."+l.config.Stream, fmt.Appendf(nil, `{"seq":%d}`, first), &answer)
}
