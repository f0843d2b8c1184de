package kubestore

import "context"

// Place is a request's place among those that the process serves at once.
type Place interface {
	// Wait gives the place back while wait runs, and takes one again once wait has succeeded. It fails without calling
	// wait if too many requests of the same user wait already. It also fails if it gets no place again.
	Wait(ctx context.Context, wait func() error) error
	// Turn waits for the request's turn among the requests of the same user that keep a processor busy for
	// milliseconds. It gives the place back meanwhile. If the request has its turn, Turn does not wait, except that a
	// write that has had the turn for long lets others have theirs.
	Turn(ctx context.Context) error
}

// WithoutPlace gives the place of the context's request back while wait runs. It takes one again once wait has
// succeeded.
func WithoutPlace(ctx context.Context, wait func() error) error {
	if p := requestOf(ctx).Place; p != nil {
		return p.Wait(ctx, wait)
	}
	return wait()
}

// yieldPlace lets other requests have the place of the context's request, and returns when the request has one again.
func yieldPlace(ctx context.Context) error {
	return WithoutPlace(ctx, func() error { return nil })
}

// TakeTurn waits for the turn of the context's request, if the request holds a place. It is called before work that
// keeps a processor busy for milliseconds, and between the parts of longer work.
func TakeTurn(ctx context.Context) error {
	if p := requestOf(ctx).Place; p != nil {
		return p.Turn(ctx)
	}
	return nil
}
