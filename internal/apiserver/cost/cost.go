// Package cost bounds what one request may make a process do. What costs out of proportion to the bytes that were sent
// is refused before upstream meets it: bodies, quantities, patches, and the objects whose checks take long.
//
// Nouns. A shape is what a body costs to decode (package shape). A bound is the most that one object may have of
// something. A mistake is one of the errors that an answer lists.
package cost

import (
	"log/slog"

	"k8s.io/apimachinery/pkg/runtime"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// Config of a Meter.
type Config struct {
	// Builtin says whether a group is built in. The types of its objects are known, and some of them hold quantities.
	Builtin func(group string) bool
	// Example makes an empty object of what a request of such a group is about. It is nil if that is nothing.
	Example func(*apirequest.RequestInfo) runtime.Object
	Logger  *slog.Logger
}

// Meter measures what clients send. It is safe for concurrent use.
type Meter struct{ config Config }

// New makes a meter.
func New(c Config) *Meter { return &Meter{c} }
