package eventlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
)

// serverError is JetStream's answer that a request was refused.
type serverError struct {
	Status      int    `json:"code"`
	Code        int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *serverError) Error() string { return fmt.Sprintf("%s (%d)", e.Description, e.Code) }

// refusal is part of every answer of JetStream's API.
type refusal struct {
	Error *serverError `json:"error"`
}

func (r refusal) refused() *serverError { return r.Error }

// tries of the first one's length are the timeout: a request sent during a leader change may never be
// answered, so that one try must be much shorter than the whole.
const tries = 5

// call asks JetStream's API until it answers or the deadline passes. The request must be idempotent.
func (l *Log) call(ctx context.Context, kind, api string, body []byte, answer interface{ refused() *serverError }) error {
	ctx, cancel := l.within(ctx)
	defer cancel()
	for try := 0; ; try++ {
		attempt, cancel := context.WithTimeout(ctx, l.tryTime(try))
		err := l.callOnce(attempt, kind, &nats.Msg{Subject: "$JS.API." + api, Data: body}, answer)
		cancel()
		var refused *serverError
		if err == nil || errors.As(err, &refused) && refused.Status != 503 || errors.Is(err, nats.ErrConnectionClosed) {
			return err
		}
		if pause(ctx, try) != nil {
			return err
		}
	}
}

// tryTime is how long one try may take: a fifth of the timeout at first, and longer each time, since the
// answer may be 8 MiB from a busy server.
func (l *Log) tryTime(try int) time.Duration {
	return l.config.Timeout / tries * time.Duration(try+1)
}

func (l *Log) callOnce(ctx context.Context, kind string, msg *nats.Msg, answer interface{ refused() *serverError }) error {
	roundTrips.WithLabelValues(kind).Inc()
	got, err := l.config.Conn.RequestMsgWithContext(ctx, msg)
	if err != nil {
		return fmt.Errorf("ask the log's server: %w", err)
	}
	if err := json.Unmarshal(got.Data, answer); err != nil {
		return fmt.Errorf("read the answer of the log's server: %w", err)
	}
	if refused := answer.refused(); refused != nil {
		return refused
	}
	return nil
}

// within bounds an operation.
func (l *Log) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, l.config.Timeout)
}

// pause waits before the next try: up to 10 ms at first, doubled each time up to 320 ms, jittered so that
// writers of one object do not meet again.
func pause(ctx context.Context, try int) error {
	timer := time.NewTimer(time.Millisecond + rand.N(10*time.Millisecond<<min(try, 5)))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
