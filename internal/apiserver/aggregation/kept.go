package aggregation

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/kubestore"
)

const (
	// keptFor is how long an answer, or a failure to get an answer, is used before the server is asked again.
	keptFor = 10 * time.Second
	// patience is how long a request waits for servers to describe themselves.
	patience = 3 * time.Second
)

// kept is a server's last answer about itself. It is safe for concurrent use.
type kept[T any] struct {
	mu sync.Mutex // guards the following fields
	// value is the last answer, even if later requests failed. err is the error of the newest request, nil if that
	// request succeeded.
	value T
	err   error
	at    time.Time
	// asking is closed when the running request has ended; nil if no request is running.
	asking chan struct{}
}

// last returns the last answer, and an error if the answer may be too old.
func (k *kept[T]) last() (T, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.at.IsZero() {
		return k.value, errUnasked
	}
	return k.value, k.err
}

var errUnasked = errors.New("the server has not been asked in time")

func (k *kept[T]) isFresh() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.at.IsZero() && time.Since(k.at) < keptFor
}

// errImpatient says that the server took too long, and not that a client gave up.
var errImpatient = fmt.Errorf("the server did not answer within %s", patience)

// ask asks the server with f, which gets the last answer. Only one caller asks at a time. Other callers wait for the
// answer to that caller; if that caller's client gives up, one of the waiting callers asks.
func (k *kept[T]) ask(ctx context.Context, f func(context.Context, T) (T, error)) {
	k.mu.Lock()
	for k.asking != nil {
		asking := k.asking
		k.mu.Unlock()
		select {
		case <-asking:
		case <-ctx.Done():
			return
		}
		k.mu.Lock()
	}
	if !k.at.IsZero() && time.Since(k.at) < keptFor { // another caller has asked since this caller looked
		k.mu.Unlock()
		return
	}
	asking, before := make(chan struct{}), k.value
	k.asking = asking
	k.mu.Unlock()

	value, err := guarded(ctx, before, f)

	k.mu.Lock()
	defer k.mu.Unlock()
	k.asking = nil
	close(asking)
	cause := context.Cause(ctx)
	switch {
	case err == nil:
		k.value, k.err, k.at = value, nil, time.Now()
	case cause == errImpatient:
		k.err, k.at = cause, time.Now()
	case cause == nil && !listers.IsUnreadable(err): // otherwise the error says nothing about the server
		k.err, k.at = err, time.Now()
	}
}

// guarded calls f, and returns a panic of f as an error, since no request handler in this goroutine would recover the
// panic.
func guarded[T any](ctx context.Context, before T, f func(context.Context, T) (T, error)) (value T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return f(ctx, before)
}

// askAll asks all servers at the same time, and waits no longer than patience. The request does not hold a seat
// meanwhile.
func askAll(ctx context.Context, asks []func(context.Context)) error {
	if len(asks) == 0 {
		return nil
	}
	return kubestore.WithoutSeat(ctx, func() error {
		ctx, cancel := context.WithTimeoutCause(ctx, patience, errImpatient)
		defer cancel()
		var running sync.WaitGroup
		for _, ask := range asks {
			running.Go(func() { ask(ctx) })
		}
		running.Wait()
		return nil
	})
}
