package eventlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
)

// heartbeat is how often a consumer with nothing to deliver says that it is alive. After three missed heartbeats the
// consumer is opened again.
const heartbeat = time.Second

// Follow calls yield for every append after the position, with all of its events at once, in order and without gaps. It
// reconnects as needed, until ctx ends or yield fails. It returns ErrPurged if the next event has left the log. It
// returns ErrDiverged if the log ends before the last event that was read, or has another event in its place. To detect
// both, Follow reads the last event again whenever it opens a consumer, if the log still has that event (invariant 9).
//
// It returns ctx's error when ctx ends, and yield's error when yield fails. A server that cannot be reached for a while
// is not an error.
func (l *Log) Follow(ctx context.Context, after Position, yield func(Batch) error) error {
	f := follower{log: l, at: after, yield: yield}
	for try := 0; ; try++ {
		before := f.at.Revision
		err := f.open(ctx)
		if f.at.Revision > before {
			try = 0
		}
		if fatal, ok := errors.AsType[*fatal](err); ok {
			return fatal.error
		}
		if errors.Is(err, nats.ErrConnectionClosed) {
			return fmt.Errorf("follow the log after %d: %w", f.at.Revision, err)
		}
		if ctx.Err() == nil && try == 0 {
			slog.Warn("reading the log broke off; trying again", "after", f.at.Revision, "error", err)
		}
		if backOff(ctx, try) != nil {
			return ctx.Err()
		}
	}
}

// fatal ends a follow. After any other error Follow opens a new consumer.
type fatal struct{ error }

// follower is one unfiltered reader of the log.
type follower struct {
	log *Log
	// at is the position of the event that was read last.
	at Position
	// next is the revision that the consumer must deliver next: first the revision of the event that was read last,
	// then the following revisions.
	next  Revision
	yield func(Batch) error
	batch Batch // events of an append whose last event has not come yet
}

// open reads from one consumer until the consumer breaks. The consumer begins with the event that was read last. This
// proves that the next events follow that event, whatever happened to the log and the connection meanwhile. A consumer
// skips purged revisions silently, so check asks for the log's first revision after the consumer is made.
func (f *follower) open(ctx context.Context) error {
	ctx, stop := f.log.whileConnected(ctx)
	defer stop()
	f.next = max(f.at.Revision, 1)
	conn := f.log.config.Conn
	inbox := conn.NewInbox()
	sub, err := conn.SubscribeSync(inbox)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }()
	name, err := f.consume(ctx, inbox)
	if err != nil {
		return err
	}
	// If this message is lost, the server removes the consumer by itself once nobody listens.
	defer func() { _ = conn.Publish("$JS.API.CONSUMER.DELETE."+f.log.config.Stream+"."+name, nil) }()
	if err := f.check(ctx); err != nil {
		return err
	}
	return f.read(ctx, sub)
}

// consume makes a push consumer that delivers to the inbox. After a crash of this process the consumer remains for five
// seconds.
func (f *follower) consume(ctx context.Context, inbox string) (name string, err error) {
	request := fmt.Appendf(nil, `{"stream_name":%q,"config":{"deliver_policy":"by_start_sequence","opt_start_seq":%d,`+
		`"deliver_subject":%q,"ack_policy":"none","max_deliver":1,"replay_policy":"instant","flow_control":true,`+
		`"idle_heartbeat":%d,"inactive_threshold":%d,"mem_storage":true,"num_replicas":1}}`,
		f.log.config.Stream, f.next, inbox, heartbeat, 5*heartbeat)
	var answer struct {
		refusal
		Name string `json:"name"`
	}
	err = f.log.call(ctx, "follow", "CONSUMER.CREATE."+f.log.config.Stream, request, decoded(&answer, &answer.refusal))
	return answer.Name, err
}

// check finds out whether the next event can still come. The event that was read last may have left the log.
func (f *follower) check(ctx context.Context) error {
	b, err := f.log.info(ctx)
	switch {
	case err != nil:
		return err
	case b.First > f.at.Revision+1:
		return &fatal{fmt.Errorf("follow the log: revision %d is before the first, %d: %w", f.at.Revision+1, b.First, ErrPurged)}
	case b.Head < f.at.Revision && f.log.replicated(): // perhaps the answer of a deposed leader, so ask a quorum
		b.Bounds, err = f.log.Head(ctx)
		if err != nil && !errors.Is(err, ErrDiverged) {
			return err
		}
	}
	if b.Head < f.at.Revision {
		return &fatal{fmt.Errorf("follow the log: the head is %d, and %d was seen: %w", b.Head, f.at.Revision, ErrDiverged)}
	}
	if b.First > f.at.Revision {
		f.next = f.at.Revision + 1
	}
	return nil
}

// read delivers events until the consumer breaks. A consumer may also be on a replica that is alive, but cut off and
// behind. So if no event has come for the timeout, read asks the leader whether there are new events.
func (f *follower) read(ctx context.Context, sub *nats.Subscription) error {
	quiet := time.Now()
	for {
		waiting, cancel := context.WithTimeout(ctx, 3*heartbeat)
		msg, err := sub.NextMsgWithContext(waiting)
		cancel()
		if errors.Is(err, nats.ErrNoResponders) { // a message's headers claimed this, and the client dropped it
			continue // the next message shows the gap
		}
		if err != nil {
			return err
		}
		// The reply subject of an event names the event's revision. Headers prove nothing: they may contain anything.
		if at, err := msg.Metadata(); err == nil {
			if err := f.deliver(ctx, msg, at); err != nil {
				return err
			}
			quiet = time.Now()
			continue
		}
		if err := f.answer(ctx, msg); err != nil {
			return err
		}
		if time.Since(quiet) > f.log.config.Timeout {
			b, err := f.log.info(ctx)
			if err == nil && b.Head >= f.next {
				err = fmt.Errorf("the head is %d, and %d never came", b.Head, f.next)
			}
			if err != nil {
				return err
			}
			quiet = time.Now()
		}
	}
}

// answer handles the consumer's messages that are not events. Flow control must be answered. Heartbeats say how far the
// consumer has delivered.
func (f *follower) answer(ctx context.Context, msg *nats.Msg) error {
	if msg.Header.Get("Status") != "100" {
		return fmt.Errorf("the consumer ended: %s %s", msg.Header.Get("Status"), msg.Header.Get("Description"))
	}
	if wanted := cmp.Or(msg.Reply, msg.Header.Get("Nats-Consumer-Stalled")); wanted != "" {
		return f.log.config.Conn.Publish(wanted, nil)
	}
	if last, err := parseNumber[Revision](msg.Header, "Nats-Last-Stream", 64); err == nil {
		return f.missed(ctx, last)
	}
	return nil
}

func (f *follower) deliver(ctx context.Context, msg *nats.Msg, at *nats.MsgMetadata) error {
	m := stored{msg.Subject, Revision(at.Sequence.Stream), at.Timestamp, msg.Header, msg.Data, nil}
	if m.Revision < f.next {
		return fmt.Errorf("revision %d came in place of %d", m.Revision, f.next)
	}
	if err := f.missed(ctx, m.Revision-1); err != nil {
		return err
	}
	return f.accept(f.log.whole(ctx, m))
}

// missed reads the events up to a revision that the consumer did not deliver. Those events were lost on the way, or
// purged, or are damaged on the consumer's server.
func (f *follower) missed(ctx context.Context, upto Revision) error {
	for f.next <= upto {
		if err := f.accept(f.log.fromLeader(ctx, f.next)); err != nil {
			return err
		}
	}
	return nil
}

// accept handles the result of reading the next event.
func (f *follower) accept(e Event, err error) error {
	if errors.Is(err, ErrPurged) && f.next == f.at.Revision { // this event was read before
		f.next++
		return nil
	}
	if errors.Is(err, ErrPurged) || errors.Is(err, ErrDiverged) || errors.Is(err, ErrNowhere) {
		return &fatal{fmt.Errorf("follow the log: %w", err)}
	}
	if err != nil {
		return err
	}
	f.next++
	if e.Revision == f.at.Revision {
		err = f.at.Compare(e.Position())
	} else {
		err = f.gather(e)
	}
	if err != nil {
		return &fatal{err}
	}
	f.at = e.Position()
	return nil
}

// gather yields an append once all of its events have come. A foreign message may claim to belong to a batch whose rest
// never comes. gather yields such a message alone as soon as the next event shows that the rest is missing.
func (f *follower) gather(e Event) error {
	if len(f.batch) > 0 && !e.Continues(&f.batch[len(f.batch)-1]) {
		if err := f.flush(); err != nil {
			return err
		}
	}
	f.batch = append(f.batch, e)
	if e.Left > 0 {
		return nil
	}
	return f.flush()
}

func (f *follower) flush() error {
	whole := f.batch
	f.batch = nil
	return f.yield(whole)
}
