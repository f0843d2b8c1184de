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
// must be unique among all requests of all processes, so the client must not choose it. The second append of a request
// carries the id followed by '/2'.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, &requestIDs{id: id})
}

// requestID returns an id that is unique for each append. An append of unknown outcome is looked for in the log by its
// id.
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

// AuthorOf returns the author that the context's appends name. It returns false if they name none.
func AuthorOf(ctx context.Context) (eventlog.Author, bool) {
	author, ok := ctx.Value(authorKey{}).(eventlog.Author)
	return author, ok
}

// PartOf returns the author for writes that a part of Logplane makes without a request.
func PartOf(part string) eventlog.Author { return eventlog.Author{User: "system:logplane:" + part} }

type controllerKey struct{}

// WithController returns a context in which a part of Logplane does the work of one of upstream's controllers. Its
// requests come from that controller's service account, so that webhooks, policies and audits see the usual name. Its
// appends name both the part and the controller.
func WithController(ctx context.Context, name string) context.Context {
	author, _ := AuthorOf(ctx)
	author.As = serviceaccount.MakeUsername(metav1.NamespaceSystem, name)
	return WithAuthor(context.WithValue(ctx, controllerKey{}, name), author)
}

// ControllerOf returns the controller whose work the context's part of Logplane does, or the empty string.
func ControllerOf(ctx context.Context) string {
	name, _ := ctx.Value(controllerKey{}).(string)
	return name
}

// WithCause returns a context whose appends name the deletion that caused them. Only parts of Logplane have such a
// context, since each client's request begins with a new author.
func WithCause(ctx context.Context, cause eventlog.Cause) context.Context {
	author, _ := AuthorOf(ctx)
	author.Cause = cause
	return WithAuthor(ctx, author)
}
