package eventlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

// resolve finds out what became of an append whose outcome is open.
//
// The difficulty: a message that was not answered may still be on its way, and may enter the log at any time. As long
// as it can, nothing that is read from the log is final.
//
// The way out: resolve publishes the same events again, with the same ids and the same preconditions. At most one copy
// of an append ever enters the log. Once it is there, its events break the preconditions of every other copy, and they
// stay in the log for longer than any append takes (MinRetention). So each try ends in one of three ways:
//
//   - The log acknowledges the copy. It is the only one: had another entered before, this one's preconditions would not
//     have held, and now none can enter after it.
//   - The log refuses the copy, and a copy is in the log, or the refusal proves that a precondition is broken for good.
//     From then on no copy can enter, so what the log holds is final: if no copy is there, the append has lost
//     (search).
//   - Anything else proves nothing. resolve tries again.
//
// The same steps decide a write that was refused because another write of its key is under way (errOpen).
//
// If the deadline passes first, the outcome is ErrUnknown. If a try was not answered, resolve then also replaces the
// connection: a message may still wait in it for a server that has stalled, and must not be sent much later.
func (l *Log) resolve(ctx context.Context, msgs []*nats.Msg, writes []Write, before Revision, err error) (Revision, error) {
	patience := l.config.Timeout
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, max(0, time.Until(deadline)))
	}
	// The caller may have gone away, but its write may still be on its way.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience+grace)
	defer cancel()
	unanswered := false
	for try := 0; ; try++ {
		unanswered = unanswered || errors.Is(err, errUnanswered)
		var rev Revision
		var broken *conflict
		if errors.As(err, &broken) {
			rev, err = l.search(ctx, msgs, writes, before, broken)
			if err == nil || errors.Is(err, ErrConflict) || errors.Is(err, errRangeGone) {
				return rev, err
			}
		}
		if errors.Is(err, nats.ErrConnectionClosed) || backOff(ctx, try) != nil {
			if unanswered {
				_ = l.config.Conn.ForceReconnect() // it fails only on a connection that is closed already
			}
			return 0, fmt.Errorf("%w: %s", ErrUnknown, err.Error()) // not %w: the last try may be ErrNotPublished
		}
		rev, err = l.publish(ctx, msgs)
		if err == nil {
			return rev, nil
		}
	}
}

// errRangeGone is an ErrUnknown that no further try resolves: the events that would tell have left the log.
var errRangeGone = fmt.Errorf("%w: what came after it began has left the log", ErrUnknown)

// stillOpen says that resolve has given up, and a copy of the append may enter the log later. After any other outcome
// of resolve none can: the one that is in the log is there as a whole.
func stillOpen(err error) bool { return errors.Is(err, ErrUnknown) && !errors.Is(err, errRangeGone) }

// checkRetained says what an acknowledgement is worth if events have left the log that came after the view of which the
// write was computed. No precondition tells: JetStream takes a key whose events have left for one without events, for
// which 0 holds.
//
//   - It is ErrFenced if the append was acknowledged across a fence. Nothing else leaps so far beyond a view's head.
//     What this process has seen does not tell, as another of its requests may have learned the head after the leap.
//   - It is errRangeGone if the append was slow, as it is when it was published late, or again. Another write of the
//     key may have come first. That takes a process that was frozen for as long as events stay in the log.
func (l *Log) checkRetained(ctx context.Context, before, rev Revision, slow bool) error {
	leapt := rev-before >= leap
	if !leapt && !slow {
		return nil
	}
	ctx, cancel := l.within(context.WithoutCancel(ctx))
	defer cancel()
	b, err := l.info(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	case b.First <= before+1:
		return nil
	case leapt:
		return fmt.Errorf("acknowledged as %d, the log begins at %d, and %d was seen: %w", rev, b.First, before, ErrFenced)
	}
	return errRangeGone
}

// errStaleRefusal: a server that is behind may have refused the precondition.
var errStaleRefusal = errors.New("the refusal may be of a server that is behind")

// search looks for the append among all events since the view of which it was computed. It returns the append's
// revision, or ErrConflict if the append is not there and no further copy of it can enter the log. If the refusal does
// not prove that, the error is errStaleRefusal.
//
// The refusal names the last event of one of the keys, as the refusing server knows it. A server may be behind, for
// example a deposed leader, or lack a purge. It then names too old an event, or none, but never one that is not the
// key's: every event that a server holds, a quorum holds too. There are two proofs:
//
//   - The event came after the view, and therefore after what any precondition names. It stays in the log for longer
//     than any append takes. If a copy of the append is in the log, the event is of that copy or came after it.
//   - The event that a precondition names has left the log. JetStream then takes the key for one without events, and
//     expects 0. A precondition of that revision can never hold again.
func (l *Log) search(ctx context.Context, msgs []*nats.Msg, writes []Write, before Revision, broken *conflict) (Revision, error) {
	upto, final := broken.last, broken.last > before
	if !final {
		b, err := l.info(ctx) // asked before the head: a copy that came before the purge is below it
		if err == nil {
			final = slices.ContainsFunc(writes, func(w Write) bool { return 0 < w.Precondition && w.Precondition < b.First })
			upto, err = l.provenHead(ctx)
		}
		if err != nil {
			return 0, err
		}
	}
	remaining := make(map[string]Revision, len(msgs))
	for i, msg := range msgs {
		remaining[msg.Header.Get(headerID)] = Revision(len(msgs) - 1 - i)
	}
	var found Revision
	err := l.Tail(ctx, before, upto, func(e Event) error {
		n, ours := remaining[e.RequestID]
		if ours {
			found = e.Revision + n
		}
		return nil
	})
	switch {
	case found > 0:
		return l.foundWhole(ctx, found)
	case err != nil && !errors.Is(err, ErrPurged):
		return 0, err
	case !final:
		return 0, errStaleRefusal
	case err != nil:
		return 0, errRangeGone
	}
	return 0, broken
}

// foundWhole returns the revision of an append, of which some event was found, once all of it is in the log. A single
// server whose disk is full may have written a part of a batch, of which the rest comes when it is started again.
func (l *Log) foundWhole(ctx context.Context, rev Revision) (Revision, error) {
	if l.replicated() {
		return rev, nil
	}
	b, err := l.info(ctx)
	if err == nil && b.Head < rev {
		err = errHalf
	}
	return rev, err
}

// errHalf: a part of a batch is in the log.
var errHalf = errors.New("the log's server has written only a part of it: is its disk full?")

// provenHead is Head without the staleness that LeaderReads allows. Here a head that is too low would turn a write that
// is in the log into a conflict.
func (l *Log) provenHead(ctx context.Context) (Revision, error) {
	if l.replicated() && l.config.LeaderReads {
		b, err := l.barrier(ctx)
		return b.Head, err
	}
	b, err := l.Head(ctx)
	return b.Head, err
}
