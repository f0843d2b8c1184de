// Package kubestore is k8s.io/apiserver's storage.Interface, natively over a View and the Log.
package kubestore

import (
	"context"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
)

// Cell is what every store of one process shares.
type Cell struct {
	Log        *eventlog.Log
	Projection *projection.Projection
	// Cluster whose objects are read and written.
	Cluster string
	// Objects caches decoded objects by key and revision; nil for none.
	Objects *Objects
	// Feed delivers the log to watches; nil in a function, where a watch answers an error.
	Feed *Feed
}

// Resource describes the objects of one store.
type Resource struct {
	schema.GroupResource
	// Prefix is upstream's storage prefix with a leading slash, for example '/services/specs'.
	Prefix     string
	Namespaced bool
	Codec      runtime.Codec
	// ContentType of what Codec encodes.
	ContentType string
	NewFunc     func() runtime.Object
	NewListFunc func() runtime.Object
	// Transformer as in kube-apiserver's encryption configuration; nil for identity.
	Transformer value.Transformer
	// Claims, if set, names the claim objects that must exist exactly as long as the object says so
	// (IP addresses, node ports, a CRD's names): they are appended in the object's own atomic batch.
	Claims func(ctx context.Context, obj runtime.Object) ([]Claim, error)
}

// Claim is an object that only one owner can hold: it is appended with precondition 0 in its owner's
// batch and deleted with it.
type Claim struct {
	Key eventlog.Key
	// ContentType and Body of the claim object as stored.
	ContentType string
	Body        []byte
}

// ClaimedError says that another owner holds a claim. Nothing was written.
type ClaimedError struct{ Key eventlog.Key }

func (e *ClaimedError) Error() string { return e.Key.Path() + " is already claimed" }

// Objects is a cache of decoded objects by row key and revision with a budget of bytes. It is safe for
// concurrent use and hands out deep copies to whatever may write to them.
type Objects struct{}

// NewObjects returns a cache of at most that many bytes of encoded objects.
func NewObjects(bytes int64) *Objects { panic("todo") }

// Feed reads the log once per process and fans it out to watches.
type Feed struct{}

// NewFeed returns a feed; it delivers nothing until Run.
func NewFeed(log *eventlog.Log, p *projection.Projection) *Feed { panic("todo") }

// Run follows the log until ctx ends; it is the feed's only goroutine.
func (f *Feed) Run(ctx context.Context) error { panic("todo") }

// New returns the store of one resource.
func New(c Cell, r Resource) storage.Interface { panic("todo") }

// WithView returns a context whose consistent reads use the view, which must be no older than the
// request's start: one request asks the log once. A write that conflicts catches up anew.
func WithView(ctx context.Context, v *projection.View) context.Context { panic("todo") }
