package eventlog

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Error codes of JetStream that decide the outcome of an append.
const (
	codeWrongLast       = 10071 // the precondition does not hold
	codeBatchTooLarge   = 10199
	codeMessageTooLarge = 10054
	codeHeadersTooLarge = 10097
	codeStoreFailed     = 10077
)

// JetStream's own headers of an atomic batch.
const (
	headerBatchID       = "Nats-Batch-Id"
	headerBatchSequence = "Nats-Batch-Sequence"
	headerBatchCommit   = "Nats-Batch-Commit"
)

const (
	// MaxBatch is how many events one append may have. It is JetStream's own bound.
	MaxBatch        = 1000
	batchesInFlight = 16
	// grace is the time that resolving an append's outcome may take after the append's deadline.
	grace = time.Second
)

var (
	// errUnanswered: the message may have been sent, and no answer came.
	errUnanswered = errors.New("no answer came in time")
	// errOpen: one server refused the message, and another server may have taken it or may still take it.
	errOpen = errors.New("another server may have taken it")
)

// conflict is a broken precondition. last is the revision of the key's last event, as the refusing server knows it.
type conflict struct {
	last  Revision
	cause error
}

func (c *conflict) Error() string   { return fmt.Sprintf("%v: %v", ErrConflict, c.cause) }
func (c *conflict) Unwrap() []error { return []error{ErrConflict, c.cause} }

// Append appends all writes atomically, in order and without a gap, each under its own precondition. It returns the
// revision of the last event. Errors are ErrConflict, ErrUnknown, ErrNotPublished, ErrTooLarge, ErrKeyTooLong, and
// ErrDiverged or ErrFenced, after which the process must stop.
//
// If the outcome is open, Append tries to resolve it before it returns ErrUnknown. Append may then return up to a
// second after ctx's deadline.
//
// The first event has the request id as its id. The n-th event after it has '<request id>.<n>'. Outcomes are resolved
// by these ids, so no two appends may have the same request id. No two writes of one append may have the same key.
//
// basis names the view from which the writes were computed. If the log was fenced after that view, Append returns
// ErrFenced: only a fence raises revisions so far above a view's head. A crash of this process leaves either all events
// in the log or none.
func (l *Log) Append(ctx context.Context, basis Basis, requestID string, writes ...Write) (Revision, error) {
	msgs, err := l.encodeAll(basis.Epoch, requestID, writes)
	if err != nil {
		return 0, err
	}
	ctx, s := span(ctx, "log append")
	defer s.End()
	mark(ctx, msgs)
	seen, began := Revision(l.seen.Load()), time.Now()
	if len(msgs) > 1 {
		l.begun.Add(1)
	}
	rev, err := l.publishSurely(ctx, msgs)
	if l.leavesOpen(err) {
		rev, err = l.resolve(ctx, msgs, writes, basis.Head, err)
	}
	if len(msgs) > 1 && !stillOpen(err) {
		l.ended.Add(1)
	}
	if err != nil {
		return 0, fmt.Errorf("append %s: %w", writes[0].Key.RowKey(), err)
	}
	if rev <= seen {
		return 0, fmt.Errorf("append %s: acknowledged as %d after %d was seen: %w", writes[0].Key.RowKey(), rev, seen, ErrDiverged)
	}
	if err := l.checkRetained(ctx, basis.Head, rev, Elapsed(began) > l.tryTime(0)); err != nil {
		return 0, fmt.Errorf("append %s: %w", writes[0].Key.RowKey(), err)
	}
	l.See(rev)
	return rev, nil
}

func (l *Log) encodeAll(epoch uint64, requestID string, writes []Write) ([]*nats.Msg, error) {
	if len(writes) > MaxBatch {
		return nil, fmt.Errorf("append %d events at once, of which there may be %d: %w", len(writes), MaxBatch, ErrTooLarge)
	}
	if requestID == "" || len(writes) == 0 {
		return nil, fmt.Errorf("append %d events for request %q: must be some, with an id", len(writes), requestID)
	}
	now := time.Now()
	msgs := make([]*nats.Msg, len(writes))
	subjects := make(map[string]bool, len(writes))
	for i, w := range writes {
		id := requestID
		if i > 0 {
			id += "." + strconv.Itoa(i)
		}
		msg, err := encode(l.config.Prefix, epoch, id, now, w)
		if err != nil {
			return nil, err
		}
		if len(writes) > 1 {
			msg.Header[headerBatch] = []string{fmt.Sprintf("%d/%d", i+1, len(writes))}
		}
		seal(msg)
		if int64(msg.Size()) > min(maxMessage, l.config.Conn.MaxPayload()) {
			return nil, fmt.Errorf("append %s: %w", w.Key.RowKey(), ErrTooLarge)
		}
		if subjects[msg.Subject] {
			return nil, fmt.Errorf("append %s: it occurs twice in one batch", w.Key.RowKey())
		}
		subjects[msg.Subject], msgs[i] = true, msg
	}
	return msgs, nil
}

// publishSurely publishes the messages. While it is certain that nothing was published, publishSurely tries again, for
// as long as a change of leaders takes.
func (l *Log) publishSurely(ctx context.Context, msgs []*nats.Msg) (Revision, error) {
	again, cancel := context.WithTimeout(ctx, l.config.Timeout/tries)
	defer cancel()
	for try := 0; ; try++ {
		rev, err := l.publish(ctx, msgs)
		if !errors.Is(err, ErrNotPublished) || errors.Is(err, nats.ErrConnectionClosed) || backOff(again, try) != nil {
			return rev, err
		}
	}
}

// leavesOpen says that an answer does not decide the outcome. On a replicated log a refusal alone never decides the
// outcome. During a change of leaders the new leader may append a message, and the old leader may refuse the same
// message because its own event now breaks the precondition.
func (l *Log) leavesOpen(err error) bool {
	return errors.Is(err, errUnanswered) || errors.Is(err, errOpen) || l.replicated() && errors.Is(err, ErrConflict)
}

// publish sends the messages once and waits for the one answer.
func (l *Log) publish(ctx context.Context, msgs []*nats.Msg) (Revision, error) {
	if len(msgs) == 1 {
		return l.publishLast(ctx, msgs[0])
	}
	select {
	case l.batches <- struct{}{}:
		defer func() { <-l.batches }()
		return l.publishBatch(ctx, msgs)
	case <-ctx.Done():
		return 0, fmt.Errorf("%w: %w", ErrNotPublished, ctx.Err())
	}
}

// publishBatch stages all messages under a new batch id, and commits them with the last message. A crash before the
// commit leaves nothing in the log: the server drops what it has staged.
func (l *Log) publishBatch(ctx context.Context, msgs []*nats.Msg) (Revision, error) {
	id := rand.Text()
	for i, msg := range msgs {
		msg.Header[headerBatchID] = []string{id}
		msg.Header[headerBatchSequence] = []string{strconv.Itoa(i + 1)}
	}
	last := len(msgs) - 1
	msgs[last].Header[headerBatchCommit] = []string{"1"}
	for _, msg := range msgs[:last] {
		if err := ctx.Err(); err != nil {
			return 0, fmt.Errorf("%w: %w", ErrNotPublished, err)
		}
		if err := l.config.Conn.PublishMsg(msg); err != nil {
			return 0, fmt.Errorf("%w: %w", ErrNotPublished, err) // without the commit, nothing is published
		}
	}
	return l.publishLast(ctx, msgs[last])
}

func (l *Log) publishLast(ctx context.Context, msg *nats.Msg) (Revision, error) {
	if err := over(ctx); err != nil { // checked right before publishing, so that nothing is sent past the deadline
		return 0, fmt.Errorf("%w: %w", ErrNotPublished, err)
	}
	ctx, cancel := context.WithTimeout(ctx, l.tryTime(0))
	defer cancel()
	var ack acknowledgement
	err := l.callOnce(ctx, "append", msg, decoded(&ack, &ack.refusal))
	noteAcknowledged(ack, err)
	var refused *serverError
	switch {
	case errors.As(err, &refused):
		return 0, l.outcome(refused)
	case errors.Is(err, nats.ErrMaxPayload):
		return 0, ErrTooLarge
	case slices.ContainsFunc(unsent, func(proof error) bool { return errors.Is(err, proof) }):
		return 0, fmt.Errorf("%w: %w", ErrNotPublished, err)
	case err != nil:
		return 0, fmt.Errorf("%w: %w", errUnanswered, err)
	case ack.Sequence == 0:
		return 0, fmt.Errorf("%w: the acknowledgement has no sequence", errUnanswered)
	}
	return ack.Sequence, nil
}

// over returns ctx's error, or DeadlineExceeded if the deadline has passed but ctx's timer has not run yet. That
// happens right after the process was frozen. Both clocks are compared: the monotonic one may have stood still during
// the freeze, and the wall clock may have been set back.
func over(ctx context.Context) error {
	now := time.Now()
	deadline, ok := ctx.Deadline()
	if ok && (now.After(deadline) || now.Round(0).After(deadline.Round(0))) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// acknowledgement is JetStream's answer to a published message.
type acknowledgement struct {
	refusal
	Sequence Revision `json:"seq"`
}

// noteAcknowledged counts how many appends and barriers in a row got no acknowledgement. A permanent refusal does not
// change the count, since a leader that has lost the other servers also refuses.
func noteAcknowledged(ack acknowledgement, err error) {
	var refused *serverError
	switch {
	case ack.Sequence > 0:
		unacknowledged.Set(0)
	case err != nil && (!errors.As(err, &refused) || unavailable(err)):
		unacknowledged.Inc()
	}
}

// unsent are the errors which prove that nothing was sent, or that no server was there to take the message.
var unsent = []error{nats.ErrNoResponders, nats.ErrReconnectBufExceeded, nats.ErrConnectionDraining,
	nats.ErrInvalidConnection, nats.ErrBadSubject}

// refusedForGood are refusals that a log's only server gives before it stores anything. outcome handles all other
// refusals.
var refusedForGood = map[int]bool{
	10002: true, // account resources exceeded
	10023: true, // insufficient resources
	10028: true, // memory resources exceeded
	10047: true, // storage resources exceeded
	10060: true, // another stream was expected
	10109: true, // the stream is sealed
	10174: true, // atomic publish is disabled
	10176: true, // the batch was dropped
	10210: true, // too many batches at once
}

// outcome translates a refusal. On a replicated log each server refuses by its own view: its disk is full, or another
// write of the subject is proposed and not yet applied (10164). Another server may accept the same message. Only a
// message that is too large is refused by all servers.
func (l *Log) outcome(refused *serverError) error {
	switch {
	case refused.Code == codeWrongLast:
		_, number, _ := strings.Cut(refused.Description, ": ")
		last, _ := strconv.ParseUint(number, 10, 64)
		return &conflict{Revision(last), refused}
	case refused.Code == codeMessageTooLarge, refused.Code == codeHeadersTooLarge, refused.Code == codeBatchTooLarge:
		return fmt.Errorf("%w: %w", ErrTooLarge, refused)
	case l.replicated():
		return fmt.Errorf("%w: %w", errOpen, refused)
	case refusedForGood[refused.Code], refused.Code == codeStoreFailed && strings.HasPrefix(refused.Description, "maximum "):
		return fmt.Errorf("%w: %w", ErrNotPublished, refused)
	}
	return fmt.Errorf("%w: %w", errOpen, refused)
}
