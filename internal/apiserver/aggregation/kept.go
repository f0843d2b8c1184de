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
	// keptFor is how long an answer is used before the server is asked again. The same is true of the lack of one.
	keptFor = 10 * time.Second
	// patience is how long a request waits for what servers say of themselves.
	patience = 3 * time.Second
)

// kept is what a server last said of itself. It is safe for concurrent use.
type kept[T any] struct {
	mu sync.Mutex // guards what follows
	// value is the last answer, also after later failures. err is why there is no newer one.
	value T
	err   error
	at    time.Time
	// asking is closed when the server has been asked; nil if nobody asks it.
	asking chan struct{}
}

// last returns the last answer, and why it may be too old.
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

// errImpatient says that the server took too long, rather than that a client gave up.
var errImpatient = fmt.Errorf("the server did not answer within %s", patience)

// ask asks the server with f, which gets the last answer. One request asks. Others that need the answer wait for it,
// and ask themselves if its client gives up.
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
	if !k.at.IsZero() && time.Since(k.at) < keptFor { // since the caller looked
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
	case cause == nil && !listers.IsUnreadable(err): // otherwise it says nothing of the server
		k.err, k.at = err, time.Now()
	}
}

// guarded returns a panic as an error. No request's handler is above to recover it.
func guarded[T any](ctx context.Context, before T, f func(context.Context, T) (T, error)) (value T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return f(ctx, before)
}

// askAll asks servers at the same time, and not for long. The request holds no place meanwhile.
func askAll(ctx context.Context, asks []func(context.Context)) error {
	if len(asks) == 0 {
		return nil
	}
	return kubestore.WithoutPlace(ctx, func() error {
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
