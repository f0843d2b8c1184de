package kubestore

import (
	"context"

	"github.com/logplane/logplane/internal/kubestore/fanout"
)

type endKey struct{}

// WithEnd returns a context whose watches end without an error once end is closed. Those that asked for bookmarks get a
// last one. A nil end takes the end of an outer context away.
func WithEnd(ctx context.Context, end <-chan struct{}) context.Context {
	return context.WithValue(ctx, endKey{}, end)
}

// EndOf returns the context's end. Without one it is nil, which is never closed.
func EndOf(ctx context.Context) <-chan struct{} {
	end, _ := ctx.Value(endKey{}).(<-chan struct{})
	return end
}

// Line is the way of events to a watch's client past the goroutines that serve it, for while these have nothing to do.
type Line interface {
	// Form is how events are encoded for the client.
	Form() fanout.Form
	// Send sends what Form has encoded, and never waits. It reports false if it sent nothing.
	Send(frame []byte) bool
}

type lineKey struct{}

// WithLine returns a context of one watch, for which it gives the line to the client.
func WithLine(ctx context.Context, l Line) context.Context {
	return context.WithValue(ctx, lineKey{}, l)
}

// lineOf returns the context's line, nil if there is none.
func lineOf(ctx context.Context) Line {
	l, _ := ctx.Value(lineKey{}).(Line)
	return l
}
