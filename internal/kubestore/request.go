package kubestore

import (
	"context"

	"github.com/logplane/logplane/eventlog"
)

// Request holds the facts that a context has about its request. A Request is a value. Code that changes the Request for
// one part of a request puts the changed value into the context of that part (In). The other parts keep the old value.
// So a request through the loopback has the Request of its caller, except for the changes of its own filters.
type Request struct {
	// Author is the author that appends name, nil for none.
	Author *eventlog.Author
	// Controller is upstream's controller whose work a part of Logplane does, empty for none.
	Controller string
	// Seat is the request's slot among the requests that the process serves at once, nil for none.
	Seat Seat
	// End ends watches without an error once it is closed. Watches that asked for bookmarks get a last bookmark. A nil
	// End ends no watch.
	End <-chan struct{}
	// WatchWriter sends the state with which a watch begins to its client, nil if all events must go through the watch.
	WatchWriter WatchWriter
	// Guarded says that an update, as a part of a transaction, is written even if it changes nothing. Only an object
	// that is written is sure to stay unchanged until the transaction ends, and the caller relies on this.
	Guarded bool

	// ids are the ids of the request's appends. If ids is nil, each append gets an id of its own.
	ids *requestIDs
	// view is the newest view that the request has used, nil for a request that asks the log each time.
	view *requestView
	// transaction is the attempt of which the request is a part, nil for none.
	transaction *Transaction
	// writer counts the request for as long as it may write, nil if the request is not counted.
	writer *writer
}

type requestKey struct{}

// none is the request of a context that has no Request. Nobody writes to it.
var none Request

// requestOf is RequestOf without a copy. Nobody may write to the returned Request.
func requestOf(ctx context.Context) *Request {
	if r, ok := ctx.Value(requestKey{}).(*Request); ok {
		return r
	}
	return &none
}

// RequestOf returns the request of a context, or an empty Request if the context has none.
func RequestOf(ctx context.Context) Request { return *requestOf(ctx) }

// In returns a context of the request.
func (r Request) In(ctx context.Context) context.Context {
	return context.WithValue(ctx, requestKey{}, &r)
}

// SetID sets the id that the request's appends carry. Without it, each append gets an id of its own. The id must be
// unique among all requests of all processes, so it must not be the client's own. The second append of a request
// carries the id with '/2' after it.
func (r *Request) SetID(id string) { r.ids = &requestIDs{id: id} }
