package kubestore

import (
	"context"
	"sync"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
)

type viewKey struct{}

// requestView is the newest view that one request has used. A request reads its own writes: after one,
// an older view is no longer good enough.
type requestView struct {
	mu    sync.Mutex // guards what follows
	view  *projection.View
	wrote eventlog.Revision
}

// WithView returns a context whose consistent reads use the view, which must be no older than the
// request's start: one request asks the log once. A write that conflicts catches up anew.
func WithView(ctx context.Context, v *projection.View) context.Context {
	return context.WithValue(ctx, viewKey{}, &requestView{view: v})
}

// ViewFrom returns the newest view that the context's request has used, nil if it has none. It may be
// older than the request's own last write.
func ViewFrom(ctx context.Context) *projection.View {
	r, _ := ctx.Value(viewKey{}).(*requestView)
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view
}

// Consistent returns a view that is at least as new as every write acknowledged before the context's
// request began, and as the request's own writes: the request's view, or else Projection.Latest.
func (c Cell) Consistent(ctx context.Context) (*projection.View, error) {
	v, _, err := c.consistent(ctx)
	return v, err
}

// consistent reports also whether the view is new, rather than from the request's start.
func (c Cell) consistent(ctx context.Context) (v *projection.View, fresh bool, err error) {
	if r, _ := ctx.Value(viewKey{}).(*requestView); r != nil {
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

// latest catches up with the log, and so does the request. Projection.Latest may take its time over it: if the tail has
// grown far too long, the process commits and purges the log by itself, in this request, a GET too. It takes 5 s at most
// for that, one request at a time.
func (c Cell) latest(ctx context.Context) (*projection.View, error) {
	v, err := c.Projection.Latest(ctx)
	if err != nil {
		return nil, viewError(ctx, err)
	}
	if r, _ := ctx.Value(viewKey{}).(*requestView); r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.view == nil || r.view.Revision() < v.Revision() {
			r.view = v
		}
	}
	return v, nil
}

// reachable is how far beyond the head a revision may be that is waited for: what is further does not come in the time that
// the projection waits, 3 s, unless ten thousand events are appended each second.
const reachable = 30_000

// atLeast returns a view not older than the revision. It waits a short while for one that may still come, and its request
// holds no place meanwhile.
func (c Cell) atLeast(ctx context.Context, rev eventlog.Revision) (*projection.View, error) {
	v := ViewFrom(ctx)
	if v != nil && v.Revision() >= rev {
		return v, nil
	}
	if known := c.Projection.Current(); known != nil && known.Revision() >= rev {
		return c.await(ctx, rev)
	}
	if v == nil || rev-v.Revision() <= reachable { // as far as the request has seen
		var err error
		if v, err = c.latest(ctx); err != nil || v.Revision() >= rev {
			return v, err
		}
	}
	if rev-v.Revision() > reachable {
		return nil, c.futureError(ctx, projection.ErrFuture, rev)
	}
	err := withoutPlace(ctx, func() (err error) {
		v, err = c.await(ctx, rev)
		return err
	})
	return v, err
}

// await waits for the revision, 3 s at most.
func (c Cell) await(ctx context.Context, rev eventlog.Revision) (*projection.View, error) {
	v, err := c.Projection.AtLeast(ctx, rev)
	if err != nil {
		return nil, c.futureError(ctx, err, rev)
	}
	return v, nil
}

// wrote tells the request that its view must be at least this new from now on.
func wrote(ctx context.Context, rev eventlog.Revision) {
	if r, _ := ctx.Value(viewKey{}).(*requestView); r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.wrote = max(r.wrote, rev)
	}
}

// release lets go of the request's view: a watch outlives it by far.
func release(ctx context.Context) {
	if r, _ := ctx.Value(viewKey{}).(*requestView); r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.view = nil
	}
}
