package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// resolve finds out what became of an append that was not answered. It may land later, so that the key's
// last event proves nothing yet. The same ids and preconditions are published again until
//
//   - they are acknowledged: the first try has not landed and no longer can, its precondition is broken; or
//   - a precondition is broken for good: the first try has landed, or no longer can. Then, and only then,
//     what came after the append began is searched for it.
//
// Past the deadline it is ErrUnknown, and the connection is replaced, so that what may still wait in it for
// a stalled server is not sent much later.
func (l *Log) resolve(ctx context.Context, msgs []*nats.Msg, writes []Write, before Revision) (Revision, error) {
	patience := l.config.Timeout
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, max(0, time.Until(deadline)))
	}
	// The caller may have gone away; its write has not.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience+grace)
	defer cancel()
	for try := 0; ; try++ {
		rev, err := l.publish(ctx, msgs)
		if err == nil {
			return rev, nil
		}
		var broken *conflict
		if errors.As(err, &broken) {
			rev, err = l.search(ctx, msgs, writes, before, broken)
			if err == nil || errors.Is(err, ErrConflict) || errors.Is(err, errRangeGone) {
				return rev, err
			}
		}
		if errors.Is(err, nats.ErrConnectionClosed) || pause(ctx, try) != nil {
			_ = l.config.Conn.ForceReconnect() // it fails only on a connection that is closed already
			return 0, fmt.Errorf("%w: %w", ErrUnknown, err)
		}
	}
}

// errRangeGone is ErrUnknown for good: what would tell the outcome has left the log.
var errRangeGone = fmt.Errorf("%w: what came after it began has left the log", ErrUnknown)

// errStaleRefusal: a server that is behind refused the precondition.
var errStaleRefusal = errors.New("the refusal came from a server that is behind")

// search looks for the append among all events since it began, up to a proven head. That it is not there is
// ErrConflict only if its preconditions can never hold again; a deposed leader refuses them too.
func (l *Log) search(ctx context.Context, msgs []*nats.Msg, writes []Write, before Revision, broken *conflict) (Revision, error) {
	bounds, err := l.Head(ctx)
	if err != nil {
		return 0, err
	}
	id := msgs[len(msgs)-1].Header.Get(headerID)
	preconditions := make(map[Key]Revision, len(writes))
	highest := Revision(0)
	for _, w := range writes {
		preconditions[w.Key] = w.Precondition
		highest = max(highest, w.Precondition)
	}
	final := broken.last > highest || bounds.First > highest && broken.last == 0
	var found Revision
	after := max(before, writes[len(writes)-1].Precondition)
	err = l.Tail(ctx, after, bounds.Head, func(e Event) error {
		if precondition, ours := preconditions[e.Key]; ours {
			final = final || e.Revision > precondition
			if e.RequestID == id {
				found = e.Revision
			}
		}
		return nil
	})
	switch {
	case found > 0:
		return found, nil
	case errors.Is(err, ErrPurged):
		return 0, errRangeGone
	case err != nil:
		return 0, err
	case !final:
		return 0, errStaleRefusal
	}
	return 0, broken
}
