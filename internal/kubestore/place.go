package kubestore

import "context"

// Place is what a request holds among those that its process serves at once.
type Place interface {
	// Wait gives the place back while wait waits for others, and takes one again when it succeeded. It fails, without having
	// waited, if too many requests of the same user wait already, and if no place is to be had afterwards.
	Wait(ctx context.Context, wait func() error) error
	// Turn waits for the request's turn among those of the same user that keep a processor busy for milliseconds. The place is
	// given back meanwhile. Who has it already does not wait.
	Turn(ctx context.Context) error
}

type placeKey struct{}

// WithPlace returns a context whose request holds the place.
func WithPlace(ctx context.Context, p Place) context.Context {
	return context.WithValue(ctx, placeKey{}, p)
}

// withoutPlace waits while the context's request, if it holds a place, does not.
func withoutPlace(ctx context.Context, wait func() error) error {
	if p, ok := ctx.Value(placeKey{}).(Place); ok {
		return p.Wait(ctx, wait)
	}
	return wait()
}

// TakeTurn waits for the turn of the context's request if it holds a place. It is for work that keeps a processor busy for
// milliseconds.
func TakeTurn(ctx context.Context) error {
	if p, ok := ctx.Value(placeKey{}).(Place); ok {
		return p.Turn(ctx)
	}
	return nil
}
