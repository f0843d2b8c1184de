// Package listers answers upstream's informers and listers from the newest view of the log, at the time of the call.
//
// Nouns. A Factory is upstream's SharedInformerFactory without a goroutine: its informers never call a handler. An
// Indexer takes the place of the store that an informer would fill: an Indexer holds no objects and reads the view. So
// each of upstream's listers is exact: it shows every write that was acknowledged before the request began, because
// each request catches up first.
//
// Most of upstream's listers take no context, so a read has its own timeout. Many listers return no error, and upstream
// takes an error of the other listers for a refusal. So a read that fails panics with Unreadable. In code that can
// return an error, Catch turns the panic into an error. Where nothing catches Unreadable, the server turns it into an
// answer.
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

// errNoView says that a lister was called before the process had ever caught up. Every request catches up first.
var errNoView = errors.New("no view of the log has been read yet")

// Unreadable is the value of a lister's panic when a read fails and upstream's interface cannot return the error.
type Unreadable struct{ Err error }

// Error implements error, for Return.
func (u Unreadable) Error() string { return u.Err.Error() }

// Unwrap returns the error of the read.
func (u Unreadable) Unwrap() error { return u.Err }

// Fail panics with an error that must not be taken for a refusal of the context's request. It also records the error in
// the context, so that the server finds the error even if upstream recovers the panic and keeps only the panic's text.
func Fail(ctx context.Context, err error) {
	kubestore.Unread(ctx, err)
	panic(Unreadable{err})
}

// Catch turns a lister's panic into an error that answers the request. It must be deferred.
func Catch(ctx context.Context, err *error) {
	switch reason := recover().(type) {
	case nil:
	case Unreadable:
		*err = kubestore.Answer(ctx, reason.Err)
	default:
		panic(reason)
	}
}

// Return turns a lister's panic into an error, in code that has no request to answer. IsUnreadable is true of that
// error. Return must be deferred.
func Return(err *error) {
	switch reason := recover().(type) {
	case nil:
	case Unreadable:
		*err = reason
	default:
		panic(reason)
	}
}

// IsUnreadable reports whether an error says that a read failed. Errors about the content that was read are not such
// errors.
func IsUnreadable(err error) bool { return errors.As(err, &Unreadable{}) }

// IsUndecodable reports whether the stored value of an object cannot be decoded. Reading such a value again does not
// help. A value that cannot be decrypted is different: the next try may succeed.
func IsUndecodable(err error) bool {
	undecodable := (*undecodableError)(nil)
	return errors.As(err, &undecodable)
}

type undecodableError struct{ error }

func (e *undecodableError) Unwrap() error { return e.error }

// leftOut counts the objects that were left out of lists.
var leftOut = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "logplane_apiserver_rows_left_out_total",
	Help: "Times an object that cannot be decoded was left out of what authorization, discovery or OpenAPI read.",
})

// Collectors returns this package's metrics, for the process to register.
func Collectors() []prometheus.Collector { return []prometheus.Collector{leftOut} }
