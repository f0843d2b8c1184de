package kubestore

import (
	"context"

	"github.com/logplane/logplane/eventlog"
)

// Request is what a context says of the request that it is of. It is a value: who changes it for a part of the request
// puts it into the context of that part (In), and the others keep theirs. So a request through the loopback has what
// its caller's has, but for what its own filters change.
type Request struct {
	// Author is whom appends name, nil for nobody.
	Author *eventlog.Author
	// Controller is the controller of upstream's whose work a part of Logplane does, empty for none.
	Controller string
	// Place is what the request holds while it is one of those that the process serves at once, nil for none.
	Place Place
	// End ends watches without an error once it is closed. Those that asked for bookmarks get a last one. A nil one is
	// never closed.
	End <-chan struct{}
	// Line leads from one watch to its client, nil if events have only the way through the watch.
	Line Line
	// Guarded says that an update, as a part of a transaction, is written even if it changes nothing. Only what is
	// written is sure to be the same until the end, and somebody relies on that.
	Guarded bool

	// ids are those of appends, nil for an id of its own for each.
	ids *requestIDs
	// view is the newest that the request has used, nil for a request that asks the log each time.
	view *requestView
	// transaction is the attempt of which the request is a part, nil for none.
	transaction *Transaction
	// writer counts the request for as long as it may write, nil if nobody counts.
	writer *writer
}

type requestKey struct{}

// none is the request of a context without one. Nobody writes to it.
var none Request

// requestOf is RequestOf without a copy. Nobody may write to what it returns.
func requestOf(ctx context.Context) *Request {
	if r, ok := ctx.Value(requestKey{}).(*Request); ok {
		return r
	}
	return &none
}

// RequestOf is the request of a context, with nothing in it if there is none.
func RequestOf(ctx context.Context) Request { return *requestOf(ctx) }

// In returns a context of the request.
func (r Request) In(ctx context.Context) context.Context {
	return context.WithValue(ctx, requestKey{}, &r)
}

// SetID sets the id that the request's appends carry. Without it, each append gets an id of its own. The id must be
// unique among all requests of all processes, so it must not be the client's own. The second append of a request
// carries the id with '/2' after it.
func (r *Request) SetID(id string) { r.ids = &requestIDs{id: id} }
