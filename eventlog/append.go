package eventlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
)

// Error codes of JetStream that decide the outcome of an append.
const (
	codeWrongLast          = 10071 // the precondition does not hold
	codeInFlight           = 10164 // another write of the subject is proposed and not applied yet
	codeIncompleteBatch    = 10176 // the server dropped the batch: a leader change, or too many at once
	codeTooManyBatches     = 10210 // too many batches at once
	codeBatchTooLarge      = 10199
	codeMessageTooLarge    = 10054
	codeHeadersTooLarge    = 10097
	codeMessageNotFound    = 10037
	maxBatch               = 1000 // JetStream's own bound
	grace                  = time.Second
	resolveTry             = 500 * time.Millisecond
	headerBatch            = "Nats-Batch-Id"
	headerBatchSequence    = "Nats-Batch-Sequence"
	headerBatchCommit      = "Nats-Batch-Commit"
	incompleteBatchRetries = 4
)

// serverError is JetStream's answer that an append was refused.
type serverError struct {
	Code        int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *serverError) Error() string { return fmt.Sprintf("%s (%d)", e.Description, e.Code) }

// errUnanswered: the message may have been sent and no answer came.
var errUnanswered = errors.New("no answer came in time")

// Append appends all writes atomically, contiguous and in order, each under its own precondition, and
// returns the revision of the last one. Errors: ErrConflict, ErrInFlight, ErrUnknown, ErrNotPublished,
// ErrTooLarge, ErrKeyTooLong. An outcome that timed out is resolved before ErrUnknown is returned.
//
// The first event's id is the request id, the n-th further one's is '<request id>.<n>'. All keys of one
// call must differ. A crash of this process leaves either all events in the log or none.
func (l *Log) Append(ctx context.Context, requestID string, writes ...Write) (Revision, error) {
	msgs, err := l.encodeAll(requestID, writes)
	if err != nil {
		return 0, err
	}
	before := Revision(l.seen.Load())
	rev, err := l.publish(ctx, msgs)
	if errors.Is(err, errUnanswered) {
		rev, err = l.resolve(ctx, msgs, writes, before)
	}
	if err != nil {
		return 0, fmt.Errorf("append %s: %w", writes[0].Key.Row(), err)
	}
	if rev <= before {
		return 0, fmt.Errorf("append %s: acknowledged as %d after %d was seen: %w", writes[0].Key.Row(), rev, before, ErrDiverged)
	}
	l.see(rev)
	return rev, nil
}

func (l *Log) encodeAll(requestID string, writes []Write) ([]*nats.Msg, error) {
	if len(writes) == 0 || len(writes) > maxBatch {
		return nil, fmt.Errorf("append %d events: must be 1 to %d", len(writes), maxBatch)
	}
	now := time.Now()
	msgs := make([]*nats.Msg, len(writes))
	subjects := make(map[string]bool, len(writes))
	for i, w := range writes {
		id := requestID
		if i > 0 {
			id += "." + strconv.Itoa(i)
		}
		msg, err := encode(l.config.Prefix, l.config.Epoch, id, now, w)
		if err != nil {
			return nil, err
		}
		if subjects[msg.Subject] {
			return nil, fmt.Errorf("append %s: it occurs twice in one batch", w.Key.Row())
		}
		subjects[msg.Subject], msgs[i] = true, msg
	}
	return msgs, nil
}

// publish sends the messages once and waits for the one answer. errUnanswered is the only outcome that
// leaves anything open.
func (l *Log) publish(ctx context.Context, msgs []*nats.Msg) (Revision, error) {
	if len(msgs) == 1 {
		return l.publishLast(ctx, msgs[0])
	}
	for try := 0; ; try++ {
		rev, err := l.publishBatch(ctx, msgs)
		var refused *serverError
		if try == incompleteBatchRetries || !errors.As(err, &refused) || (refused.Code != codeIncompleteBatch && refused.Code != codeTooManyBatches) {
			return rev, err
		}
		if err := pause(ctx, try); err != nil {
			return 0, ErrInFlight
		}
	}
}

// publishBatch stages all messages under a batch id of its own and commits them with the last one. A
// crash before the commit leaves nothing: the server drops what it staged.
func (l *Log) publishBatch(ctx context.Context, msgs []*nats.Msg) (Revision, error) {
	batch := nuid.Next()
	for i, msg := range msgs {
		msg.Header[headerBatch] = []string{batch}
		msg.Header[headerBatchSequence] = []string{strconv.Itoa(i + 1)}
	}
	last := len(msgs) - 1
	msgs[last].Header[headerBatchCommit] = []string{"1"}
	for _, msg := range msgs[:last] {
		if ctx.Err() != nil {
			return 0, ErrNotPublished
		}
		if err := l.config.Conn.PublishMsg(msg); err != nil {
			return 0, unpublished(err)
		}
	}
	return l.publishLast(ctx, msgs[last])
}

func (l *Log) publishLast(ctx context.Context, msg *nats.Msg) (Revision, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	if ctx.Err() != nil { // right before publishing: nothing is sent later than meant
		return 0, ErrNotPublished
	}
	roundTrips.WithLabelValues("append").Inc()
	answer, err := l.config.Conn.RequestMsgWithContext(ctx, msg)
	if err != nil {
		return 0, unpublished(err)
	}
	return readAck(answer.Data)
}

// unpublished tells errors that mean nothing was sent from those that leave it open.
func unpublished(err error) error {
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return ErrTooLarge
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrConnectionClosed),
		errors.Is(err, nats.ErrConnectionDraining), errors.Is(err, nats.ErrInvalidConnection), errors.Is(err, nats.ErrBadSubject):
		return fmt.Errorf("%w: %w", ErrNotPublished, err)
	default:
		return fmt.Errorf("%w: %w", errUnanswered, err)
	}
}

func readAck(data []byte) (Revision, error) {
	var ack struct {
		Error    *serverError `json:"error"`
		Sequence Revision     `json:"seq"`
	}
	if err := json.Unmarshal(data, &ack); err != nil {
		return 0, fmt.Errorf("%w: read acknowledgement: %w", errUnanswered, err)
	}
	if ack.Error == nil && ack.Sequence == 0 {
		return 0, fmt.Errorf("%w: the acknowledgement has no sequence", errUnanswered)
	}
	if ack.Error == nil {
		return ack.Sequence, nil
	}
	switch ack.Error.Code {
	case codeWrongLast:
		return 0, fmt.Errorf("%w: %w", ErrConflict, ack.Error)
	case codeInFlight:
		return 0, fmt.Errorf("%w: %w", ErrInFlight, ack.Error)
	case codeMessageTooLarge, codeHeadersTooLarge, codeBatchTooLarge:
		return 0, fmt.Errorf("%w: %w", ErrTooLarge, ack.Error)
	}
	return 0, fmt.Errorf("%w: %w", ErrNotPublished, ack.Error)
}

// resolve finds out what became of an append that was not answered: it may land later, so that the
// key's last event proves nothing. The same ids and preconditions are published again until the server
// acknowledges them (then the first try never landed, and no longer can) or says that a precondition is
// broken (then the first try landed, or never can). Only then the key's events are searched.
func (l *Log) resolve(ctx context.Context, msgs []*nats.Msg, writes []Write, before Revision) (Revision, error) {
	deadline, ok := ctx.Deadline()
	if !ok || time.Until(deadline) > l.config.Timeout {
		deadline = time.Now().Add(l.config.Timeout)
	}
	if earliest := time.Now(); deadline.Before(earliest) {
		deadline = earliest
	}
	// The caller may have gone away; its write has not.
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline.Add(grace))
	defer cancel()
	for try := 0; ; try++ {
		attempt, cancel := context.WithTimeout(ctx, resolveTry)
		rev, err := l.publish(attempt, msgs)
		cancel()
		if err == nil {
			return rev, nil
		}
		if errors.Is(err, ErrConflict) {
			return l.search(ctx, msgs, writes, before)
		}
		if pause(ctx, try) != nil {
			return 0, fmt.Errorf("%w: %w", ErrUnknown, err)
		}
	}
}

// search looks for the append's last event among all events of its key that came after the append began.
func (l *Log) search(ctx context.Context, msgs []*nats.Msg, writes []Write, before Revision) (Revision, error) {
	last := len(msgs) - 1
	id := msgs[last].Header.Get(headerID)
	bounds, err := l.Head(ctx)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	from := max(writes[last].Base, writes[last].Precondition, before) + 1
	if bounds.First > from {
		return 0, fmt.Errorf("%w: revisions from %d have left the log", ErrUnknown, from)
	}
	for from <= bounds.Head {
		e, err := l.nextOf(ctx, msgs[last].Subject, from)
		if errors.Is(err, errNoMessage) {
			break
		}
		if err != nil {
			return 0, fmt.Errorf("%w: %w", ErrUnknown, err)
		}
		if e.RequestID == id {
			return e.Revision, nil
		}
		from = e.Revision + 1
	}
	return 0, ErrConflict
}

// pause waits before the next try: 10 ms doubled each time up to 320 ms, with full jitter.
func pause(ctx context.Context, try int) error {
	timer := time.NewTimer(rand.N(10*time.Millisecond<<min(try, 5)) + time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
