package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// resolve finds out what became of an append whose outcome err leaves open. It may land later, so that the
// key's last event proves nothing yet. The same ids and preconditions are published again until
//
//   - they are acknowledged: no other copy has landed or ever will, its precondition is broken; or
//   - a precondition is broken for good: a copy has landed, or none can any more. Then, and only then, what
//     came after the append began is searched for it.
//
// A write that meets another one in flight learns so, too, whether that one has won. Past the deadline the outcome is
// ErrUnknown. If a try was not answered, the connection is then replaced, so that what may still wait in it for a
// stalled server is not sent much later.
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
		if errors.Is(err, nats.ErrConnectionClosed) || pause(ctx, try) != nil {
			if unanswered {
				_ = l.config.Conn.ForceReconnect() // it fails only on a connection that is closed already
			}
			return 0, fmt.Errorf("%w: %s", ErrUnknown, err.Error()) // not %w: the last try may be ErrNotPublished
		}
		if rev, err = l.publish(ctx, msgs); err == nil {
			return rev, nil
		}
	}
}

// errRangeGone is ErrUnknown for good: what would tell the outcome has left the log.
var errRangeGone = fmt.Errorf("%w: what came after it began has left the log", ErrUnknown)

// errStaleRefusal: a server that is behind refused the precondition.
var errStaleRefusal = errors.New("the refusal came from a server that is behind")

// search looks for an append that no copy of can land any more among all events since it began. That it is not there is
// ErrConflict. It is errStaleRefusal if the refusal proves nothing.
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
		if n, ours := remaining[e.RequestID]; ours {
			found = e.Revision + n
		}
		return nil
	})
	switch {
	case found > 0: // some of a batch is all of it
		return found, nil
	case errors.Is(err, ErrPurged):
		return 0, errRangeGone
	case err != nil:
		return 0, err
	}
	return 0, broken
}

// settledAt proves from a refusal that a precondition can never hold again. It returns a revision that an event of the
// append is not after, if there is one. last is the last revision of one of the keys, as the refusing server knows it;
// what a server holds a quorum holds, so that a server which is behind, as a deposed leader is, names one that
// is too low, or 0, but no wrong one.
func (l *Log) settledAt(ctx context.Context, msgs []*nats.Msg, writes []Write, last, highest Revision) (Revision, error) {
	if last > highest {
		return last, nil
	}
	if last > 0 && len(writes) > 1 { // whose is it?
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
