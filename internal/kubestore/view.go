package kubestore

import (
	"context"
	"sync"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
)

// requestView is the newest view that one request has used. A request reads its own writes: after a write, it needs a
// view that includes the write.
type requestView struct {
	mu    sync.Mutex // guards the fields below
	view  *projection.View
	wrote eventlog.Revision
	// open counts the appends that were begun and may have written something.
	open int
	// past says that the request reads the view and nothing newer.
	past bool
	// unread is the reason why the request cannot be served.
	unread error
}

// requestViewOf returns the context's view, or nil.
func requestViewOf(ctx context.Context) *requestView { return requestOf(ctx).view }

func withView(ctx context.Context, v *requestView) context.Context {
	r := RequestOf(ctx)
	r.view = v
	return r.In(ctx)
}

// WithView returns a context whose consistent reads use the view, so that a request asks the log only once. The view
// must be no older than the request's start. A write that meets a conflict asks the log again and reads a newer view.
func WithView(ctx context.Context, v *projection.View) context.Context {
	return withView(ctx, &requestView{view: v})
}

// WithoutView returns a context of a request that keeps no view: the request asks the log each time.
func WithoutView(ctx context.Context) context.Context {
	return withView(ctx, nil)
}

// WithPast returns a context for a request that reads the past: the request's head is the view's revision, whatever
// revision the request asks for.
func WithPast(ctx context.Context, v *projection.View) context.Context {
	return withView(ctx, &requestView{view: v, past: true})
}

// PastFrom returns the view that a request of the past reads, or nil for a request of the present.
func PastFrom(ctx context.Context) *projection.View {
	r := requestViewOf(ctx)
	if r == nil || !r.past {
		return nil
	}
	return r.view // never changes
}

// pinned returns the view of a request that reads nothing newer: the view of its moment in the past, or the view of its
// transaction. For any other request it returns nil.
func pinned(ctx context.Context) *projection.View {
	if t := transactionOf(ctx); t != nil {
		return t.view()
	}
	return PastFrom(ctx)
}

// ViewFrom returns the newest view that the context's request has used, or nil if the request has used no view. The
// view may be older than the request's last write.
func ViewFrom(ctx context.Context) *projection.View {
	if t := transactionOf(ctx); t != nil {
		return t.view()
	}
	r := requestViewOf(ctx)
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view
}

// Consistent returns a view that includes every write acknowledged before the context's request began, and the
// request's own writes. The result is the request's view, or else the view that Projection.Latest returns.
func (c Cell) Consistent(ctx context.Context) (*projection.View, error) {
	v, _, err := c.consistent(ctx)
	return v, err
}

// consistent is Consistent, but also says whether the view is fresh, as opposed to a view from the request's start.
func (c Cell) consistent(ctx context.Context) (v *projection.View, fresh bool, err error) {
	if t := transactionOf(ctx); t != nil {
		return t.view(), true, nil
	}
	r := requestViewOf(ctx)
	if r != nil {
		r.mu.Lock()
		v, wrote := r.view, r.wrote
		r.mu.Unlock()
		if v != nil && v.Revision() >= wrote {
			return v, false, nil
		}
	}
	v, err = c.latest(ctx)
	return v, true, err
}

// Staleness bounds the age of the view from which a write starts, and of the view that decides about the write when it
// is appended. So a write that does not see the termination of its namespace is decided at most Staleness after the
// termination's start.
const Staleness = time.Second

// recent is like consistent, but its view is no older than Staleness. Only a slow request has an older view, such as a
// request that has waited for a webhook.
func (c Cell) recent(ctx context.Context) (v *projection.View, fresh bool, err error) {
	v, fresh, err = c.consistent(ctx)
	if err != nil || fresh || v.Age() < Staleness {
		return v, fresh, err
	}
	v, err = c.latest(ctx)
	return v, true, err
}

// latest catches up with the log, and updates the request's view. Projection.Latest may do more than read: when the
// tail has grown far too long, one request of the process commits the snapshot and purges the log. That request may be
// a GET. The commit and the purge take 5 s at most.
func (c Cell) latest(ctx context.Context) (*projection.View, error) {
	if v := pinned(ctx); v != nil {
		return v, nil
	}
	v, err := c.Projection.Latest(ctx)
	if err != nil {
		return nil, Answer(ctx, err)
	}
	r := requestViewOf(ctx)
	if r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.view == nil || r.view.Revision() <= v.Revision() {
			r.view = v
		}
	}
	return v, nil
}

// reachable is the largest distance from the head to a revision for which a request waits. The projection waits 3 s. A
// revision further away would come within the 3 s only if ten thousand events were appended each second.
const reachable = 30_000

// AtLeast returns a view not older than the revision. It waits a short while for a revision that may still come.
// Meanwhile the request gives up its seat.
func (c Cell) AtLeast(ctx context.Context, rev eventlog.Revision) (*projection.View, error) {
	v := ViewFrom(ctx)
	if v != nil && (v.Revision() >= rev || transactionOf(ctx) != nil) {
		return v, nil
	}
	if past := PastFrom(ctx); past != nil {
		return nil, afterMoment(rev, past.Revision())
	}
	known := c.Projection.Current()
	if known != nil && known.Revision() >= rev {
		return c.await(ctx, rev)
	}
	if v == nil || rev-v.Revision() <= reachable { // otherwise the request's own view shows that rev is too far
		var err error
		v, err = c.latest(ctx)
		if err != nil || v.Revision() >= rev {
			return v, err
		}
	}
	if rev-v.Revision() > reachable {
		return nil, c.RevisionError(ctx, projection.ErrFuture, rev)
	}
	err := WithoutSeat(ctx, func() (err error) {
		v, err = c.await(ctx, rev)
		return err
	})
	return v, err
}

// await waits for the revision, 3 s at most.
func (c Cell) await(ctx context.Context, rev eventlog.Revision) (*projection.View, error) {
	v, err := c.Projection.AtLeast(ctx, rev)
	if err != nil {
		return nil, c.RevisionError(ctx, err, rev)
	}
	return v, nil
}

// Unread remembers why the request cannot be served, for callees that cannot return an error.
func Unread(ctx context.Context, err error) {
	if r := requestViewOf(ctx); r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.unread = err
	}
}

// UnreadOf returns the error that Unread has remembered, or nil.
func UnreadOf(ctx context.Context) error {
	r := requestViewOf(ctx)
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unread
}

// MayHaveWritten reports whether the context's request has begun an append that may be in the log.
func MayHaveWritten(ctx context.Context) bool {
	r := requestViewOf(ctx)
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open > 0
}

func (r *requestView) hasWritten() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wrote > 0
}

// release drops the request's view. Otherwise a watch would keep the view in memory for as long as the watch runs.
func release(ctx context.Context) {
	r := requestViewOf(ctx)
	if r != nil && !r.past {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.view = nil
	}
}
