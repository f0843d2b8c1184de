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

// requestIDs are the ids of the appends of one request.
type requestIDs struct {
	id   string
	last atomic.Uint64
}

// requestID returns an id that is unique for each append. If the outcome of an append is unknown, the append is looked
// up in the log by this id.
func requestID(ctx context.Context) string {
	r := requestOf(ctx).ids
	if r == nil {
		return string(uuid.NewUUID())
	}
	n := r.last.Add(1)
	if n > 1 {
		return r.id + "/" + strconv.FormatUint(n, 10)
	}
	return r.id
}

// WithAuthor returns a context whose appends name the author.
func WithAuthor(ctx context.Context, author eventlog.Author) context.Context {
	r := RequestOf(ctx)
	r.Author = &author
	return r.In(ctx)
}

// AuthorOf returns the author that the context's appends name. It returns false if the appends name no author.
func AuthorOf(ctx context.Context) (eventlog.Author, bool) {
	if author := requestOf(ctx).Author; author != nil {
		return *author, true
	}
	return eventlog.Author{}, false
}

// PartOf returns the author for writes that a part of Logplane makes without a request.
func PartOf(part string) eventlog.Author { return eventlog.Author{User: "system:logplane:" + part} }

// WithController returns a context in which a part of Logplane does the work of one of upstream's controllers. Requests
// with this context come from that controller's service account, so that webhooks, policies and audits see the usual
// name. Appends with this context name both the part and the controller.
func WithController(ctx context.Context, name string) context.Context {
	author, _ := AuthorOf(ctx)
	author.As = serviceaccount.MakeUsername(metav1.NamespaceSystem, name)
	r := RequestOf(ctx)
	r.Controller, r.Author = name, &author
	return r.In(ctx)
}

// ControllerOf returns the controller whose work the context's part of Logplane does, or the empty string.
func ControllerOf(ctx context.Context) string {
	return requestOf(ctx).Controller
}

// WithCause returns a context whose appends name the deletion that caused these appends. Only parts of Logplane have
// such a context, since each client's request begins with a new author.
func WithCause(ctx context.Context, cause eventlog.Cause) context.Context {
	author, _ := AuthorOf(ctx)
	author.Cause = cause
	return WithAuthor(ctx, author)
}
