package projection

import (
	"context"
	"sync/atomic"
)

// gate lets one caller in at a time. A caller whose context has ended never enters: a caller that must not wait would
// otherwise do the read behind the gate.
type gate chan struct{}

func newGate() gate { return make(gate, 1) }

func (g gate) enter(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case g <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (g gate) leave() { <-g }

// lazy is a value that the first caller reads for all callers that wait.
type lazy[T any] struct {
	atomic.Pointer[T]
	reading gate
}

func newLazy[T any]() lazy[T] { return lazy[T]{reading: newGate()} }

func (l *lazy[T]) get(ctx context.Context, read func(context.Context) (*T, error)) (*T, error) {
	if known := l.Load(); known != nil {
		return known, nil
	}
	if err := l.reading.enter(ctx); err != nil {
		return nil, err
	}
	defer l.reading.leave()
	if known := l.Load(); known != nil { // another caller has read it meanwhile
		return known, nil
	}
	value, err := read(ctx)
	if err == nil {
		l.Store(value)
	}
	return value, err
}
