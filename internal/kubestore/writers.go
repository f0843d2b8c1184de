package kubestore

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/logplane/logplane/eventlog"
)

// Writers counts a process's requests that may write. It is for callers that must know that every append of the
// requests so far is in the log or never will be. Its zero value is ready to use.
//
// A request counts from its call of Begin, before it looks at anything, until it and its appends have ended. When the
// client goes away, the request ends, perhaps while an append is still under way. An ended request begins no further
// append.
type Writers struct {
	mu sync.Mutex
	// running has the number of counted requests of each generation. Wait begins a new generation.
	running map[uint64]int // by mu
	current uint64         // by mu
	// ended is closed and replaced whenever a generation ends.
	ended chan struct{} // by mu
}

// writer is one request that counts.
type writer struct {
	of         *Writers
	generation uint64
	holds      int // by of.mu; one until the request ends, and one for each append
}

// Begin counts a request until end is called. Calling end more than once is safe.
func (w *Writers) Begin(ctx context.Context) (_ context.Context, end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running == nil {
		w.running = map[uint64]int{}
	}
	w.running[w.current]++
	r := &writer{of: w, generation: w.current, holds: 1}
	counted := RequestOf(ctx)
	counted.writer = r
	return counted.In(ctx), sync.OnceFunc(r.release)
}

// hold makes the request count until release is called. It returns false if the request has ended.
func (r *writer) hold() bool {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	if r.holds == 0 {
		return false
	}
	r.holds++
	return true
}

func (r *writer) release() {
	w := r.of
	w.mu.Lock()
	defer w.mu.Unlock()
	r.holds--
	if r.holds > 0 {
		return
	}
	w.running[r.generation]--
	if w.running[r.generation] > 0 {
		return
	}
	delete(w.running, r.generation)
	if w.ended != nil {
		close(w.ended)
		w.ended = nil
	}
}

// Wait returns when every request that counted at the time of the call has ended.
func (w *Writers) Wait(ctx context.Context) error {
	w.mu.Lock()
	last := w.current
	w.current++
	w.mu.Unlock()
	for {
		ended := w.before(last)
		if ended == nil {
			return nil
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// before returns a channel that is closed when a generation ends. It is nil if no generation up to last is running.
func (w *Writers) before(last uint64) chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	for generation := range w.running {
		if generation <= last {
			if w.ended == nil {
				w.ended = make(chan struct{})
			}
			return w.ended
		}
	}
	return nil
}

var errRequestEnded = errors.New("the request has ended")

// beginAppend makes the context's request count until the append has ended. It refuses a request that has ended,
// because the state that the request read may have changed. It also refuses while the log is known to refuse writes.
func (c Cell) beginAppend(ctx context.Context) (end func(), err error) {
	if c.Writable != nil {
		err = c.Writable()
	}
	r := requestOf(ctx).writer
	if err == nil && r != nil && !r.hold() {
		err = errRequestEnded
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", eventlog.ErrNotPublished, err)
	case r != nil:
		return r.release, nil
	}
	return func() {}, nil
}
