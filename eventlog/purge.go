package eventlog

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
)

// purgeStep bounds one purge, since publishers wait until it ends: about 15 ms for 10,000 events.
const purgeStep = 10_000

// Purge removes every event up to the revision, in bounded steps. A committed root must cover those events (invariant
// 5). Purge never removes the head.
//
// After a crash between two steps, the log begins somewhere before the revision, and the next purge continues.
func (l *Log) Purge(ctx context.Context, upto Revision) error {
	b, err := l.info(ctx) // if a deposed leader gives too low a head, this only purges less
	if err != nil {
		return fmt.Errorf("purge up to %d: %w", upto, err)
	}
	// A purge up to a sequence beyond the last would empty the log and raise its next revision.
	keep := min(upto+1, b.Head)
	for first := b.First; first < keep; {
		first = min(first+purgeStep, keep)
		if err := l.purgeBelow(ctx, first); err != nil {
			return fmt.Errorf("purge up to %d: %w", upto, err)
		}
	}
	return nil
}

const (
	// fillMessage is how many bytes of padding each message of Fill has, and fills is how many messages there are.
	// Together the messages exceed two blocks of the server's files; a block has at most 8 MiB.
	fillMessage = 1 << 20
	fills       = 18
)

// Fill appends barriers until the server's file with the log's last event is full, and returns the revision of the last
// barrier. A purge removes only whole files, so purged events in the newest file would stay on the disk, perhaps for
// days. After Fill, once Purge has removed the events up to that revision, no file of the log contains their bytes. The
// Raft log of a replicated log does not contain these bytes either: the servers cut the Raft log when it has grown by
// so much.
func (l *Log) Fill(ctx context.Context) (last Revision, err error) {
	s, err := l.askLeader(ctx)
	if err != nil {
		return 0, fmt.Errorf("ask for the log's size: %w", err)
	}
	if needed := int64(fills * (fillMessage + 1024)); s.limit > 0 && s.bytes+needed > s.limit {
		return 0, fmt.Errorf("the log has %d bytes of the %d that its 'max_bytes' allows, and %d more are needed for a while: raise it", s.bytes, s.limit, needed)
	}
	padding := make([]byte, fillMessage)
	for range fills {
		rand.Read(padding) // a stream with compression would reduce zeroes to nothing
		last, err = l.publishBarrier(ctx, nil, padding)
		if err != nil {
			return 0, fmt.Errorf("fill the log's file: %w", err)
		}
	}
	return last, nil
}

// Outdate appends a barrier. Every process that reads the barrier reads the root again.
func (l *Log) Outdate(ctx context.Context) error {
	if _, err := l.publishBarrier(ctx, nats.Header{headerOutdates: {"root"}}, nil); err != nil {
		return fmt.Errorf("outdate what processes know of the root: %w", err)
	}
	return nil
}

const (
	// FenceGap is the number by which a fence raises the next revision. It exceeds the number of events that a cell
	// writes in days, and so the number of events that can have been lost beyond the head.
	FenceGap = 16 * leap
	// leap is more than the number of revisions that a request ever sees between its view and its append. So a writer
	// that began before the fence notices the fence, even if its view contains events that were lost.
	leap = 1 << 20
)

// Extent returns the bounds that the log reports, even if these bounds contradict the revisions that this process has
// seen. Extent is for an operator who fences a log that went back, and for a probe. On a replicated log a quorum proves
// the bounds, even with LeaderReads. All other callers use Head.
func (l *Log) Extent(ctx context.Context) (b Bounds, err error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	if l.replicated() {
		l.start.Store(&start{}) // the operator sees the bounds as they are
		b, err = l.barrier(ctx)
	} else {
		b, err = l.learn(ctx, 0)
	}
	if err != nil {
		return Bounds{}, fmt.Errorf("learn the log's extent: %w", err)
	}
	return b, nil
}

// errUsed stops the search in Unused.
var errUsed = errors.New("the log has had an event")

// Unused says whether the log has never had an event other than barriers, which Unused itself appends too.
func (l *Log) Unused(ctx context.Context) (bool, error) {
	b, err := l.Extent(ctx)
	if err != nil || b.First > 1 {
		return false, err
	}
	err = l.Tail(ctx, 0, b.Head, func(e Event) error {
		if e.Op != Barrier {
			return errUsed
		}
		return nil
	})
	if errors.Is(err, errUsed) {
		return false, nil
	}
	return err == nil, err
}

// Fence empties the log and makes 'to' its next revision (invariant 9). Everything in the log is lost. Only an operator
// calls Fence, after all writers have stopped. A root with applied = floor = to - 1 must follow. Until that root is
// there, the log begins above the root, and nobody can read or write.
func (l *Log) Fence(ctx context.Context, to Revision) error {
	b, err := l.Extent(ctx)
	if err != nil {
		return fmt.Errorf("fence at %d: %w", to, err)
	}
	if least := b.Head + FenceGap - leap; to < least { // barriers may have come since 'to' was chosen
		return fmt.Errorf("fence at %d: it must be at least %d, well above the head", to, least)
	}
	if err := l.wipe(ctx, to); err != nil {
		return fmt.Errorf("fence at %d: %w", to, err)
	}
	return nil
}

// Begin makes 'first' the next revision of an unused log, because a cell whose revisions are all below 'first' moves to
// this log. A log that begins at 'first' or later is left alone: an earlier call has made it begin there.
func (l *Log) Begin(ctx context.Context, first Revision) error {
	b, err := l.Extent(ctx)
	if err == nil && b.First < first {
		var unused bool
		if unused, err = l.Unused(ctx); err == nil && !unused {
			err = fmt.Errorf("the log '%s' is in use, it holds revisions %d to %d", l.config.Stream, b.First, b.Head)
		}
		if err == nil {
			err = l.wipe(ctx, first)
		}
	}
	if err != nil {
		return fmt.Errorf("begin the log at revision %d: %w", first, err)
	}
	return nil
}

// wipe removes all events below a revision, which becomes the log's first.
func (l *Log) wipe(ctx context.Context, first Revision) (err error) {
	for range wipeTries {
		if err = l.purgeBelow(ctx, first); conclusive(err) || ctx.Err() != nil {
			break
		}
	}
	return err
}

// wipeTries is the number of timeouts for which a fence waits for a leader. If Fence gave up sooner, the operator would
// only repeat the fence.
const wipeTries = 3

// purgeBelow removes all events below a revision, which becomes the log's first.
func (l *Log) purgeBelow(ctx context.Context, first Revision) error {
	var answer struct{ refusal }
	request := fmt.Appendf(nil, `{"seq":%d}`, first)
	defer l.start.Store(&start{})
	return l.call(ctx, "purge", "STREAM.PURGE."+l.config.Stream, request, decoded(&answer, &answer.refusal))
}
