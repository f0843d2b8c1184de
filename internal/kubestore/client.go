package kubestore

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

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

// Line is the way of events to a watch's client past the goroutine that serves it, for while that has nothing to do.
type Line interface {
	// Form is how events are encoded for the client.
	Form() Form
	// Sends says that Send can send something, at times.
	Sends() bool
	// Send sends a chunk that Form has made, and never waits. It reports false if it sent nothing.
	Send(chunk []byte) bool
	// SendAll sends frames of so many events, and waits for the client.
	SendAll(frames []byte, events int) error
}

// Form is how events are encoded for a client.
type Form interface {
	fanout.Form
	// Name tells the form from others of the resource.
	Name() string
	// Frame encodes an event of an object, to which it may write. Frames of several events may follow one another.
	Frame(t watch.EventType, object runtime.Object) ([]byte, error)
	// Verbatim returns what appends the frame of the first event of an object, for the context of a watch. It is nil if
	// all objects must be decoded.
	Verbatim(ctx context.Context) Append
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
