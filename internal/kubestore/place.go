package kubestore

import "context"

// Place is what a request holds while it is one of those that the process serves at once.
type Place interface {
	// Wait gives the place back while wait waits for others, and takes one again when wait has succeeded. If too many
	// requests of the same user wait already, it fails without a call of wait. It also fails if it gets no place again.
	Wait(ctx context.Context, wait func() error) error
	// Turn waits for the request's turn among those of the same user that keep a processor busy for milliseconds, and
	// gives the place back meanwhile. A request that has its turn does not wait, but a write that has had it for long
	// lets others have theirs.
	Turn(ctx context.Context) error
}

type placeKey struct{}

// WithPlace returns a context whose request holds the place.
func WithPlace(ctx context.Context, p Place) context.Context {
	return context.WithValue(ctx, placeKey{}, p)
}

// WithoutPlace gives the place of the context's request back while wait waits for others. It takes one again when wait
// has succeeded.
func WithoutPlace(ctx context.Context, wait func() error) error {
	p, ok := ctx.Value(placeKey{}).(Place)
	if ok {
		return p.Wait(ctx, wait)
	}
	return wait()
}

// yieldPlace lets others have the place of the context's request, and returns when it has one again.
func yieldPlace(ctx context.Context) error {
	return WithoutPlace(ctx, func() error { return nil })
}

// TakeTurn waits for the turn of the context's request, if the request holds a place. It comes before work that keeps a
// processor busy for milliseconds, and between parts of it that together may take long.
func TakeTurn(ctx context.Context) error {
	p, ok := ctx.Value(placeKey{}).(Place)
	if ok {
		return p.Turn(ctx)
	}
	return nil
}
