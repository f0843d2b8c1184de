package kubestore

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/logplane/logplane/internal/kubestore/fanout"
)

// Line sends events to a watch's client directly, past the goroutine that serves the watch, while that goroutine is
// idle.
type Line interface {
	// Form is the encoding of events for the client.
	Form() Form
	// Sends says that Send may be able to send.
	Sends() bool
	// Send sends a chunk that was encoded by Form, and never waits. It returns false if it sent nothing.
	Send(chunk []byte) bool
	// SendAll sends frames that hold so many events, and waits for the client.
	SendAll(frames []byte, events int) error
}

// Form is how events are encoded for a client.
type Form interface {
	fanout.Form
	// Name is unique among the forms of the resource.
	Name() string
	// Frame encodes an event of an object, and may write to the object. Frames may be concatenated.
	Frame(t watch.EventType, object runtime.Object) ([]byte, error)
	// Verbatim returns a function that appends the frame of an object's ADDED event, given how the object is stored.
	// The context is that of the watch. It returns nil if all objects must be decoded.
	Verbatim(ctx context.Context) Append
}

// EndOf returns the end of the context's request. Without one it is nil, which is never closed.
func EndOf(ctx context.Context) <-chan struct{} { return requestOf(ctx).End }
