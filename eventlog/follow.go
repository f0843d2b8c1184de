package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Follow calls yield for every event after the revision until ctx ends or yield fails, reconnecting as
// needed, in order and without gaps. It is ErrPurged when the next event has left the log.
//
// It returns ctx's error when ctx ends, yield's own when yield fails.
func (l *Log) Follow(ctx context.Context, after Revision, yield func(Event) error) error {
	f := follower{log: l, next: after + 1, yield: yield}
	for try := 0; ; try++ {
		before := f.next
		err := f.read(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if f.failed != nil {
			return f.failed
		}
		if errors.Is(err, ErrPurged) || errors.Is(err, ErrDiverged) {
			return fmt.Errorf("follow the log from %d: %w", f.next, err)
		}
		if f.next > before {
			try = 0
		}
		if err := pause(ctx, try); err != nil {
			return err
		}
	}
}

// follower is one unfiltered reader of the log.
type follower struct {
	log    *Log
	next   Revision
	yield  func(Event) error
	failed error // what yield returned, or an event that cannot be decoded
}

// read opens a consumer and yields until it breaks. The log's first is checked before and after: a
// consumer behind a purge jumps forward without a word.
func (f *follower) read(ctx context.Context) error {
	if err := f.check(ctx); err != nil {
		return err
	}
	opening, cancel := f.log.within(ctx)
	defer cancel()
	roundTrips.WithLabelValues("follow").Inc()
	consumer, err := f.log.js.OrderedConsumer(opening, f.log.config.Stream, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: uint64(f.next),
		MaxResetAttempts: 1, InactiveThreshold: 30 * time.Second,
	})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(1000), jetstream.PullHeartbeat(time.Second), jetstream.PullExpiry(10*time.Second))
	if err != nil {
		return err
	}
	defer messages.Stop()
	if err := f.check(ctx); err != nil {
		return err
	}
	for {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		if err := f.deliver(ctx, msg); err != nil {
			return err
		}
	}
}

// check learns whether the next event can still come.
func (f *follower) check(ctx context.Context) error {
	ctx, cancel := f.log.within(ctx)
	defer cancel()
	b, err := f.log.info(ctx)
	if err != nil {
		return err
	}
	if b.First > f.next {
		return fmt.Errorf("revision %d is before the first, %d: %w", f.next, b.First, ErrPurged)
	}
	return nil
}

func (f *follower) deliver(ctx context.Context, msg jetstream.Msg) error {
	meta, err := msg.Metadata()
	if err != nil {
		return err
	}
	if rev := Revision(meta.Sequence.Stream); rev != f.next {
		return fmt.Errorf("revision %d came after %d: %w", rev, f.next-1, ErrPurged)
	}
	e, err := decode(f.log.config.Prefix, msg.Subject(), nats.Header(msg.Headers()), msg.Data(), f.next, meta.Timestamp)
	if err == nil {
		err = f.yield(e)
	}
	if err != nil {
		f.failed = err
		return err
	}
	f.log.see(f.next)
	f.next++
	return nil
}
