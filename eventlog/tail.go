package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// One page of a tail: large enough for few round trips, small enough for the buffers of the server and of this process.
const (
	pageEvents = 1024
	pageBytes  = 4 << 20
	// memoryEvents is the size of a page if the log is in memory.
	memoryEvents = 8
	// directTries is how often replicas are asked before the leader is asked.
	directTries = 2
	// leaderEvents is how many events are read from the leader before replicas are tried again.
	leaderEvents = 64
	// gapTries is how often the leader must show the same hole before the hole counts as real.
	gapTries = 3
)

// Tail calls yield for every event in (after, upto], in order, barriers included. It returns ErrPurged if one of these
// events has left the log. An event is valid until yield or Tail returns; its Body may be kept.
//
// upto must be a revision that Head or Append returned. If the log does not hold that revision, Tail fails after the
// timeout. Any replica may answer: only the unbroken sequence up to upto proves that the result is complete. A hole
// above the first revision is ErrDiverged, since no setting of the log allows a hole. If a copy of an event is damaged
// or missing, the event is read from another server; if no server has an undamaged copy, Tail fails. A message that
// never was an event is delivered as a Barrier: it changes nothing.
func (l *Log) Tail(ctx context.Context, after, upto Revision, yield func(Event) error) error {
	ctx, s := span(ctx, "log tail")
	defer s.End()
	r := reader{log: l, next: after + 1, upto: upto, yield: yield}
	if err := r.read(ctx); err != nil {
		return fmt.Errorf("read the log from %d to %d: %w", r.next, upto, err)
	}
	return nil
}

// EventAt reads the event at one revision from the leader. It returns ErrPurged if the event has left the log.
func (l *Log) EventAt(ctx context.Context, rev Revision) (Event, error) {
	e, err := l.fromLeader(ctx, rev)
	if err != nil {
		return Event{}, fmt.Errorf("read the event at revision %d: %w", rev, err)
	}
	return e, nil
}

// reader reads the events between two revisions.
type reader struct {
	log        *Log
	next, upto Revision
	yield      func(Event) error
}

func (r *reader) read(ctx context.Context) error {
	for short := 0; r.next <= r.upto; {
		before := r.next
		silent, err := r.page(ctx)
		if err != nil {
			return err
		}
		if r.next > before {
			short = 0
		}
		short++
		if short < directTries && !silent {
			continue
		}
		if err := r.fromLeader(ctx); err != nil {
			return err
		}
	}
	return nil
}

// fromLeader reads some events that the replicas do not have yet, or do not answer for.
func (r *reader) fromLeader(ctx context.Context) error {
	for end := min(r.next+leaderEvents-1, r.upto); r.next <= end; {
		e, err := r.log.fromLeader(ctx, r.next)
		if err == nil {
			err = r.deliver(e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) deliver(e Event) error {
	if err := r.yield(e); err != nil {
		return err
	}
	r.next++
	return nil
}

// page delivers at most one page of the next events, as far as one replica has these events. It is not an error if the
// replica lacks some events of the page. silent says that the replica stopped answering.
//
// For a batch of messages the server counts how many messages are pending. With file storage the server knows the count
// for a log without holes. With memory storage the server first looks for the next message of each subject that a purge
// has cut, and answers nobody meanwhile. The search takes three seconds for 10,000 events of 10,000 subjects. So from
// memory, page asks for each event by itself.
func (r *reader) page(ctx context.Context) (silent bool, err error) {
	conn := r.log.config.Conn
	size := min(r.upto-r.next+1, pageEvents)
	step, batch := size, size
	if r.log.config.InMemory {
		size, step, batch = min(size, memoryEvents), 1, 0
	}
	answers := make(chan *nats.Msg, size+1) // room for all events and the end of the batch, so that none is dropped
	inbox := conn.NewInbox()
	sub, err := conn.ChanSubscribe(inbox, answers)
	if err != nil {
		return false, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	end := r.next + size
	roundTrips.WithLabelValues("tail").Inc()
	for seq := r.next; seq < end; seq += step {
		request := fmt.Appendf(nil, `{"seq":%d,"batch":%d,"max_bytes":%d}`, seq, batch, pageBytes)
		if err := conn.PublishRequest("$JS.API.DIRECT.GET."+r.log.config.Stream, inbox, request); err != nil {
			return true, ctx.Err() // not connected: the caller asks the leader, until the deadline
		}
	}
	patience := r.log.config.Timeout / tries
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for r.next < end {
		select {
		case msg := <-answers:
			if more, err := r.take(ctx, msg); err != nil || !more {
				return false, err
			}
			timer.Reset(patience)
		case <-timer.C:
			return true, nil
		case <-ctx.Done():
			return true, ctx.Err()
		}
	}
	return false, nil
}

// take delivers one message of a page. more is false at the page's end.
func (r *reader) take(ctx context.Context, msg *nats.Msg) (more bool, err error) {
	if msg == nil || lastOf(msg.Header, headerSequence) == "" { // the connection is closed, or the replica has no more
		return false, nil
	}
	m, err := direct(msg)
	if err != nil || m.Revision != r.next { // damaged, purged, or the replica is catching up: the leader is asked
		return false, nil
	}
	e, err := r.log.whole(ctx, m)
	if err != nil {
		return false, err
	}
	return true, r.deliver(e)
}

// fromLeader reads one revision from the stream's leader. During a change of leaders the answering server may not have
// that revision yet, so fromLeader asks again until the deadline.
func (l *Log) fromLeader(ctx context.Context, rev Revision) (Event, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	for try := 0; ; try++ {
		// This asks for the next message at or after the revision. If a later message comes, the revision is missing.
		m, err := l.get(ctx, fmt.Sprintf(`{"seq":%d,"next_by_subj":">"}`, rev))
		switch {
		case err == nil && m.Revision == rev:
			return l.whole(ctx, m)
		case err == nil:
			if err = l.checkFirst(ctx, rev); errors.Is(err, errLacking) && try >= gapTries {
				return l.otherCopy(ctx, rev, errMissing)
			}
		case errors.Is(err, errNoMessage): // no later message either: a fence purged them, or they are damaged
			if err = l.checkFirst(ctx, rev); errors.Is(err, errLacking) && try >= gapTries && l.replicated() {
				return l.otherCopy(ctx, rev, err)
			}
		}
		if errors.Is(err, ErrPurged) || backOff(ctx, try) != nil {
			return Event{}, err
		}
	}
}

// errLacking: the leader does not have an event, although its log reaches past it.
var errLacking = errors.New("the leader lacks it")

// checkFirst says why the leader does not have a revision. It returns ErrPurged if the revision is below the log's
// first.
func (l *Log) checkFirst(ctx context.Context, rev Revision) error {
	b, err := l.info(ctx)
	if err != nil {
		return err
	}
	if b.First > rev {
		return fmt.Errorf("revision %d is before the first, %d: %w", rev, b.First, ErrPurged)
	}
	if b.Head >= rev {
		return fmt.Errorf("the log ends at %d and revision %d is not there: %w", b.Head, rev, errLacking)
	}
	return fmt.Errorf("revision %d is not in the log, which ends at %d", rev, b.Head)
}
