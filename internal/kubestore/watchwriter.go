package kubestore

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
)

// WatchWriter sends the state with which a watch begins directly to the watch's client, while the goroutine that serves
// the watch waits.
type WatchWriter interface {
	// Name of the encoding of events for the client. It is unique among the encodings of the resource.
	Name() string
	// Frame encodes the ADDED event of an object, and may write to the object. Frames may be concatenated.
	Frame(object runtime.Object) ([]byte, error)
	// Verbatim returns a function that appends the frame of an object's ADDED event, given the object's stored value.
	// The context is the context of the watch. Verbatim returns nil if all objects must be decoded.
	Verbatim(ctx context.Context) Append
	// SendAll sends frames that hold the given number of events, and waits for the client.
	SendAll(frames []byte, events int) error
}
