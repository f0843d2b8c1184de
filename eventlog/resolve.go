package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// resolve finds out what became of an append whose outcome err leaves open.
//
// A message that was not answered is a copy of the append that may still be on its way. The key's last event therefore
// proves nothing yet. resolve publishes the same ids with the same preconditions again, until one of two things happens:
//
//   - The log acknowledges a copy. Its event breaks the precondition of every other copy. So no other copy is in the log,
//     and none can enter it.
//   - A precondition is broken for good. Then either a copy is in the log already, or none can enter it any more. Now, and
//     not before, the log can be searched for the append.
//
// The same steps tell a write that lost to another one in flight whether that one is in the log.
//
// When the deadline passes first, the outcome is ErrUnknown. If a try was not answered, resolve also replaces the
// connection, because a message may still wait in it for a server that has stalled, and must not be sent much later.
func (l *Log) resolve(ctx context.Context, msgs []*nats.Msg, writes []Write, before Revision, err error) (Revision, error) {
	patience := l.config.Timeout
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, max(0, time.Until(deadline)))
	}
	// The caller may have gone away; its write has not.
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

// errRangeGone is ErrUnknown for good: what would tell the outcome has left the log.
var errRangeGone = fmt.Errorf("%w: what came after it began has left the log", ErrUnknown)

// errStaleRefusal: a server that is behind refused the precondition.
var errStaleRefusal = errors.New("the refusal came from a server that is behind")

// search looks for the append among all events since it began, once no further copy of it can enter the log. If the
// append is not there, the error is ErrConflict. If the refusal proves nothing, the error is errStaleRefusal.
func (l *Log) search(ctx context.Context, msgs []*nats.Msg, writes []Write, before Revision, broken *conflict) (Revision, error) {
	highest := Revision(0)
	for _, w := range writes {
		highest = max(highest, w.Precondition)
	}
	upto, err := l.settledAt(ctx, msgs, writes, broken.last, highest)
	if err != nil {
		return 0, err
	}
	remaining := make(map[string]Revision, len(msgs))
	for i, msg := range msgs {
		remaining[msg.Header.Get(headerID)] = Revision(len(msgs) - 1 - i)
	}
	var found Revision
	err = l.Tail(ctx, max(before, highest), upto, func(e Event) error {
		n, ours := remaining[e.RequestID]
		if ours {
			found = e.Revision + n
		}
		return nil
	})
	switch {
	case found > 0: // a batch is in the log as a whole or not at all
		return found, nil
	case errors.Is(err, ErrPurged):
		return 0, errRangeGone
	case err != nil:
		return 0, err
	}
	return 0, broken
}

// settledAt proves from a refusal that a precondition can never hold again. It returns a revision up to which the log
// must be searched: if the append is in the log, it is not after that revision.
//
// last is the last revision of one of the keys, as the server that refused knows it. A quorum holds what a server
// holds. So a server that is behind, a deposed leader for example, may name a revision that is too low, or 0. It never
// names one that is not the key's.
//
// There are two proofs. Either last is above the precondition: the key has a newer event, and always will. Or the event
// that a precondition names has left the log: JetStream then expects 0 of that key, and never that revision again.
func (l *Log) settledAt(ctx context.Context, msgs []*nats.Msg, writes []Write, last, highest Revision) (Revision, error) {
	if last > highest {
		return last, nil
	}
	if last > 0 && len(writes) > 1 { // the refusal does not say which of the keys it is about
		m, err := l.get(ctx, fmt.Sprintf(`{"seq":%d}`, last))
		if err != nil && !errors.Is(err, errNoMessage) {
			return 0, err
		}
		for i, w := range writes {
			if msgs[i].Subject == m.subject && last > w.Precondition {
				return last, nil
			}
		}
	}
	bounds, err := l.provenHead(ctx)
	if err != nil {
		return 0, err
	}
	for _, w := range writes {
		if 0 < w.Precondition && w.Precondition < bounds.First { // its event has left the log
			return bounds.Head, nil
		}
	}
	return 0, errStaleRefusal
}

// provenHead is Head without the staleness that LeaderReads allows: an append that is not found is a conflict.
func (l *Log) provenHead(ctx context.Context) (Bounds, error) {
	if l.replicated && l.config.LeaderReads {
		return l.barrier(ctx)
	}
	return l.Head(ctx)
}
