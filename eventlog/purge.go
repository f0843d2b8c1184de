package eventlog

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
)

// purgeStep bounds one purge, since publishers wait for all of it: about 15 ms for 10,000 events.
const purgeStep = 10_000

// Purge removes every event up to the revision, in bounded steps. A committed root must cover them (invariant 5). Purge
// never removes the head.
//
// A crash between two steps leaves a log that begins before the revision. The next purge goes on.
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

const (
	// fillMessage is how many bytes of padding one message of Fill has, and fills how many messages there are. Together
	// they are more than two blocks of the server's files, which have 8 MiB at most.
	fillMessage = 1 << 20
	fills       = 18
)

// Fill appends so many bytes of barriers that the server's file with the log's last event is full, and returns the
// revision of the last barrier. A purge removes whole files only: what lies in the newest stays on the disk, perhaps
// for days where little is written. So once Purge has removed the events up to that revision, no file of the log has
// their bytes, nor has the servers' own log of a replicated one, which they cut when it has grown by so much.
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
		rand.Read(padding) // a stream that compresses would make nothing of zeroes
		last, err = l.publishBarrier(ctx, nil, padding)
		if err != nil {
			return 0, fmt.Errorf("fill the log's file: %w", err)
		}
	}
	return last, nil
}

// Outdate appends a barrier that makes whoever reads it read the root again.
func (l *Log) Outdate(ctx context.Context) error {
	if _, err := l.publishBarrier(ctx, nats.Header{headerOutdates: {"root"}}, nil); err != nil {
		return fmt.Errorf("outdate what processes know of the root: %w", err)
	}
	return nil
}

const (
	// FenceGap is how far a fence leaps. What was lost beyond the head is at most what a cell writes in days.
	FenceGap = 16 * leap
	// leap is more than a request sees between its view and its append. So a writer that began before the fence notices
	// it, even if its view is of what was lost.
	leap = 1 << 20
)

// Extent is what the log says of itself, whatever this process has seen before. It is for an operator who fences a log
// that went back, and for a probe: on a replicated log a quorum proves it, also with LeaderReads. All others ask Head.
func (l *Log) Extent(ctx context.Context) (b Bounds, err error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	if l.replicated() {
		b, err = l.barrier(ctx)
	} else {
		b, err = l.learn(ctx, 0)
	}
	if err != nil {
		return Bounds{}, fmt.Errorf("learn the log's extent: %w", err)
	}
	return b, nil
}

// errUsed ends a look for an event.
var errUsed = errors.New("the log has had an event")

// Unused says whether the log has never had an event. Barriers are none: whoever waits for a cell appends them to a
// replicated log, and so does this question.
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

// Fence wipes the log and makes 'to' its next revision (invariant 9). All that is in the log is lost. Only an operator
// does it, once all writers have stopped. A root with applied = floor = to - 1 must follow. Until it is there the log
// begins above the root, and nobody can read or write.
func (l *Log) Fence(ctx context.Context, to Revision) error {
	b, err := l.Extent(ctx)
	if err != nil {
		return fmt.Errorf("fence at %d: %w", to, err)
	}
	if least := b.Head + FenceGap - leap; to < least { // barriers may have come since it was chosen
		return fmt.Errorf("fence at %d: it must be at least %d, well above the head", to, least)
	}
	for range fenceTries {
		if err = l.purgeBelow(ctx, to); conclusive(err) || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("fence at %d: %w", to, err)
	}
	return nil
}

// fenceTries is for how many timeouts a fence waits for a leader: the operator would only do the same again.
const fenceTries = 3

// purgeBelow makes first the first retained revision.
func (l *Log) purgeBelow(ctx context.Context, first Revision) error {
	var answer struct{ refusal }
	request := fmt.Appendf(nil, `{"seq":%d}`, first)
	return l.call(ctx, "purge", "STREAM.PURGE."+l.config.Stream, request, decoded(&answer, &answer.refusal))
}
