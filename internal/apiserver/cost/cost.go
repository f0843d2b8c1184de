// Package cost bounds the work that one request may cause in a process. It refuses bodies, quantities, patches and
// objects that would cost out of proportion to the bytes that were sent, before upstream processes them.
//
// Nouns. A shape measures the cost of decoding a body (package shape). A bound is the maximum of something in one
// object. A mistake is one of the errors that an answer lists.
//
// Each file stands in for code that upstream lacks, and can be deleted once upstream has such code:
//
//   - content.go, shape, messages.go: decoders of JSON and YAML with a bound of depth and of values, decoders of CBOR
//     that also bound the sum of all values, and generated decoders of protobuf that check their input. None of
//     today's decoders stops when its request ends.
//   - quantities.go: a parser of quantities that refuses long numbers and exponents before it computes them.
//   - patches.go: code that applies patches within a bound of time, and reports mistakes about which upstream now
//     panics.
//   - mistakes.go: validation that stops after some errors, or puts them together in linear time.
//   - bounds.go: validation and checks of a role's rights that do not compare each item with each other item.
//   - compiled.go: a bound of the CEL expressions and regular expressions that are compiled for one object.
//   - stack.go: writes that are served in the goroutine of their request. stack.go saves time, and refuses nothing.
package cost

import (
	"log/slog"

	"k8s.io/apimachinery/pkg/runtime"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// Config configures a Meter.
type Config struct {
	// Builtin says whether a group is built in. The types of objects of such a group are known, and some of these types
	// hold quantities.
	Builtin func(group string) bool
	// Example makes an empty object of the kind that a request to such a group is about. It returns nil if there is no
	// such kind.
	Example func(*apirequest.RequestInfo) runtime.Object
	Logger  *slog.Logger
}

// Meter measures the bodies that clients send. It is safe for concurrent use.
type Meter struct{ config Config }

// New makes a meter.
func New(c Config) *Meter { return &Meter{c} }
