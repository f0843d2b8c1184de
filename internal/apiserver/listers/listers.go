// Package listers answers upstream's informers and listers from the newest view of the log, at the time of the call.
//
// Nouns. A Factory is upstream's SharedInformerFactory without a goroutine: its informers never call a handler. An
// Indexer is what an informer would fill. This one holds nothing and reads the view. So each of upstream's listers is
// exact: it shows what was acknowledged before the request began, because each request catches up first.
//
// Most of upstream's listers have no context, and many no error; where they have one, upstream takes it for a refusal.
// A read is bounded by a timeout of its own, and a read that fails panics with Unreadable. Catch makes an error of it
// where there is a place for one, and the server answers it as any other.
package listers

import (
	"context"
	"errors"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// Config of a Factory.
type Config struct {
	Projection *projection.Projection
	// Cluster whose objects are listed.
	Cluster string
	Storage Storage
	Logger  *slog.Logger
}

// Storage says how built-in resources are stored. It must be safe for concurrent use.
type Storage interface {
	// Prefix is upstream's storage prefix without slashes at its ends, for example 'services/specs'.
	Prefix(schema.GroupResource) string
	// Transformer undoes the encryption of values; nil for values that are stored as they are.
	Transformer(schema.GroupResource) value.Transformer
}

// ErrNoView says that a lister was asked before the process had ever caught up. Every request catches up first.
var ErrNoView = errors.New("no view of the log has been read yet")

// Unreadable is what a lister panics with where upstream's interface has no place for an error.
type Unreadable struct{ Err error }

// Error implements error, for Return.
func (u Unreadable) Error() string { return u.Err.Error() }

// Unwrap returns what could not be read.
func (u Unreadable) Unwrap() error { return u.Err }

// Fail panics with an error that is no answer to the request in whose context it is. The server still knows it if
// upstream makes a text of the panic.
func Fail(ctx context.Context, err error) {
	kubestore.Unread(ctx, err)
	panic(Unreadable{err})
}

// Catch returns as an answer what a lister panicked with. It must be deferred.
func Catch(ctx context.Context, err *error) {
	switch reason := recover().(type) {
	case nil:
	case Unreadable:
		*err = kubestore.Answer(ctx, reason.Err)
	default:
		panic(reason)
	}
}

// Return is Catch where there is no request to answer: the error IsUnreadable. It must be deferred.
func Return(err *error) {
	switch reason := recover().(type) {
	case nil:
	case Unreadable:
		*err = reason
	default:
		panic(reason)
	}
}

// IsUnreadable reports whether an error is about what could not be read, rather than about what was.
func IsUnreadable(err error) bool { return errors.As(err, &Unreadable{}) }

// IsUndecodable reports whether an object could not be read because its stored value is not what it should be. Such an
// object stays unreadable. A value that cannot be decrypted is different, because the next try may succeed.
func IsUndecodable(err error) bool {
	undecodable := (*undecodableError)(nil)
	return errors.As(err, &undecodable)
}

type undecodableError struct{ error }

func (e *undecodableError) Unwrap() error { return e.error }

// leftOut counts how often a list left out an object.
var leftOut = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "logplane_apiserver_rows_left_out_total",
	Help: "Times an object that cannot be decoded was left out of what authorization, discovery or OpenAPI read.",
})

// Collectors are this package's metrics, for the process to register.
func Collectors() []prometheus.Collector { return []prometheus.Collector{leftOut} }
