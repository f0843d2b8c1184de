package eventlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

// resolve finds out whether an append whose outcome is open has succeeded.
//
// A message that was not answered may still be on its way. Until it can no longer enter the log, nothing that is read
// from the log is final. So resolve publishes the same events again, with the same ids and the same preconditions. At
// most one copy of an append ever enters the log: the events of that copy break the preconditions of every other copy.
// These events stay in the log for longer than any append takes (MinRetention). Each try ends in one of three ways:
//
//   - The log acknowledges the copy. The acknowledged copy is the only copy in the log: an earlier copy would have
//     broken the preconditions of the acknowledged copy, and the acknowledged copy breaks the preconditions of any
//     later copy.
//   - The log refuses the copy, and either some copy is in the log, or the refusal proves that a precondition is broken
//     for good. From then on no copy can enter, so the log's content is final for this append. If the log holds no
//     copy, the append has lost (search).
//   - Anything else proves nothing, and resolve tries again.
//
// The same steps decide a write that was refused because another write of its key is under way (errOpen).
//
// If the deadline passes first, the outcome is ErrUnknown. If any try got no answer, resolve then also replaces the
// connection. Otherwise a message that waits in the old connection for a stalled server might be sent much later.
func (l *Log) resolve(ctx context.Context, msgs []*nats.Msg, writes []Write, before Revision, err error) (Revision, error) {
	patience := l.config.Timeout
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, max(0, time.Until(deadline)))
	}
	// The write may still be on its way, even if the caller has given up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience+grace)
	defer cancel()
	unanswered := false
	for try := 0; ; try++ {
		unanswered = unanswered || errors.Is(err, errUnanswered)
		var rev Revision
		if broken, ok := errors.AsType[*conflict](err); ok {
			rev, err = l.search(ctx, msgs, writes, before, broken)
			if err == nil || errors.Is(err, ErrConflict) || errors.Is(err, errRangeGone) {
				return rev, err
			}
		}
		if errors.Is(err, nats.ErrConnectionClosed) || backOff(ctx, try) != nil {
			if unanswered {
				_ = l.config.Conn.ForceReconnect() // fails only if the connection is closed already
			}
			return 0, fmt.Errorf("%w: %s", ErrUnknown, err.Error()) // not %w: the last try may be ErrNotPublished
		}
		rev, err = l.publish(ctx, msgs)
		if err == nil {
			return rev, nil
		}
	}
}

// errRangeGone is an ErrUnknown that no further try can resolve: the events that would decide the outcome have left the
// log.
var errRangeGone = fmt.Errorf("%w: what came after it began has left the log", ErrUnknown)

// stillOpen says that a copy of the append may still enter the log, because resolve has given up.
func stillOpen(err error) bool { return errors.Is(err, ErrUnknown) && !errors.Is(err, errRangeGone) }

// checkRetained returns an error if an acknowledgement cannot be trusted because events that came after the write's
// view have left the log. Preconditions do not reveal this: once a key's events have left, JetStream treats the key as
// one without events, for which the precondition 0 holds.
//
//   - It returns ErrFenced if the append was acknowledged across a fence, as nothing else raises revisions so far above
//     a view's head. 'seen' would not show the fence: another request may have learned the head after the fence.
//   - It returns errRangeGone if the append was slow, because another write of the key may then have come first. This
//     happens only to a process that was frozen for as long as events stay in the log.
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

// errStaleRefusal: the refusal may come from a server that is behind, so it proves nothing.
var errStaleRefusal = errors.New("the refusal may be of a server that is behind")

// search looks for the append among all events after the view from which it was computed. It returns the append's
// revision, or ErrConflict if the append is not there and no copy of it can enter the log any more. If the refusal does
// not prove that no copy can enter, it returns errStaleRefusal.
//
// The refusal names the last event of one of the keys, as the refusing server knows it. A server may be behind, for
// example a deposed leader, or may not have applied a purge yet. Such a server names an older event or none, but never
// an event of another key: every event that a server holds, a quorum holds too. There are two proofs:
//
//   - The named event came after the view, and so after every event that a precondition names. It stays in the log for
//     longer than any append takes. If a copy of the append is in the log, the named event belongs to that copy or came
//     after it.
//   - The event that a precondition names has left the log. JetStream then treats the key as one without events and
//     expects 0. So that precondition can never hold again.
func (l *Log) search(ctx context.Context, msgs []*nats.Msg, writes []Write, before Revision, broken *conflict) (Revision, error) {
	upto, final := broken.last, broken.last > before
	if !final {
		b, err := l.info(ctx) // before the head is read: a copy that came before the purge is then below that head
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

// foundWhole returns rev, the revision of an append of which an event was found, or errHalf if the log does not hold
// all of that append yet. A single server whose disk is full may have written a part of a batch; it writes the rest
// when it is started again.
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

// errHalf: only a part of a batch is in the log.
var errHalf = errors.New("the log's server has written only a part of it: is its disk full?")

// provenHead is Head without the staleness that LeaderReads allows. In search, a head that is too low would make a
// write that is in the log look like a conflict.
func (l *Log) provenHead(ctx context.Context) (Revision, error) {
	if l.replicated() && l.config.LeaderReads {
		b, err := l.barrier(ctx)
		return b.Head, err
	}
	b, err := l.Head(ctx)
	return b.Head, err
}
