package kubestore

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/logplane/logplane/internal/kubestore/fanout"
)

// WatchWriter sends events to a watch's client directly, past the goroutine that serves the watch, while that goroutine
// is idle.
type WatchWriter interface {
	// Encoding is the encoding of events for the client.
	Encoding() Encoding
	// Sends says that Send may be able to send.
	Sends() bool
	// Send sends an event that was encoded by Encoding, and never waits. It returns false if it sent nothing.
	Send(event []byte) bool
	// SendAll sends frames that hold the given number of events, and waits for the client.
	SendAll(frames []byte, events int) error
}

// Encoding encodes events for a client.
type Encoding interface {
	fanout.Encoding
	// Name is unique among the encodings of the resource.
	Name() string
	// Frame encodes an event of an object, and may write to the object. Frames may be concatenated.
	Frame(t watch.EventType, object runtime.Object) ([]byte, error)
	// Verbatim returns a function that appends the frame of an object's ADDED event, given the object's stored value.
	// The context is the context of the watch. Verbatim returns nil if all objects must be decoded.
	Verbatim(ctx context.Context) Append
}
