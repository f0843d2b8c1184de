package kubestore

import (
	"context"
	"strconv"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

	"github.com/logplane/logplane/eventlog"
)

type requestIDKey struct{}

type requestIDs struct {
	id   string
	last atomic.Uint64
}

// WithRequestID returns a context whose appends carry the id. Without it, each append gets an id of its own. The id
// must be unique among all requests of all processes, so it must not be the client's own. The second append of a
// request carries the id with '/2' after it.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, &requestIDs{id: id})
}

// requestID is unique for each append. By it the log is searched for an append of unknown outcome.
func requestID(ctx context.Context) string {
	r, _ := ctx.Value(requestIDKey{}).(*requestIDs)
	if r == nil {
		return string(uuid.NewUUID())
	}
	n := r.last.Add(1)
	if n > 1 {
		return r.id + "/" + strconv.FormatUint(n, 10)
	}
	return r.id
}

type authorKey struct{}

// WithAuthor returns a context whose appends name the author.
func WithAuthor(ctx context.Context, author eventlog.Author) context.Context {
	return context.WithValue(ctx, authorKey{}, author)
}

// AuthorOf is the author that the context's appends name, false if they name none.
func AuthorOf(ctx context.Context) (eventlog.Author, bool) {
	author, ok := ctx.Value(authorKey{}).(eventlog.Author)
	return author, ok
}

// PartOf is the author of what a part of Logplane writes without a request.
func PartOf(part string) eventlog.Author { return eventlog.Author{User: "system:logplane:" + part} }

type controllerKey struct{}

// WithController returns a context in which a part of Logplane does the work of one of upstream's controllers. Its
// requests come from the service account of that, so that webhooks, policies and audits know it by its name. Its
// appends name both.
func WithController(ctx context.Context, name string) context.Context {
	author, _ := AuthorOf(ctx)
	author.As = serviceaccount.MakeUsername(metav1.NamespaceSystem, name)
	return WithAuthor(context.WithValue(ctx, controllerKey{}, name), author)
}

// ControllerOf is the controller whose work the context's part of Logplane does, empty for none.
func ControllerOf(ctx context.Context) string {
	name, _ := ctx.Value(controllerKey{}).(string)
	return name
}

// WithCause returns a context whose appends name the deletion that led to them. Only a part of Logplane has such a
// context: a client's request begins with a new author.
func WithCause(ctx context.Context, cause eventlog.Cause) context.Context {
	author, _ := AuthorOf(ctx)
	author.Cause = cause
	return WithAuthor(ctx, author)
}
