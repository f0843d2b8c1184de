package kubestore

import "context"

// Seat is a request's slot among the requests that the process serves at once.
type Seat interface {
	// Wait gives the seat back while wait runs, and takes a seat again once wait has succeeded. Wait fails without
	// calling wait if too many requests of the same user wait already. Wait also fails if it gets no seat again.
	Wait(ctx context.Context, wait func() error) error
	// TakeHeavy waits for a heavy seat: one of the few slots for requests that keep a processor busy for milliseconds.
	// TakeHeavy gives the ordinary seat back meanwhile. If the request has a heavy seat, TakeHeavy does not wait,
	// except that a write that has had its heavy seat for long lets other requests have that seat.
	TakeHeavy(ctx context.Context) error
}

// WithoutSeat gives the seat of the context's request back while wait runs. It takes a seat again once wait has
// succeeded.
func WithoutSeat(ctx context.Context, wait func() error) error {
	if s := requestOf(ctx).Seat; s != nil {
		return s.Wait(ctx, wait)
	}
	return wait()
}

// TakeHeavySeat waits until the context's request has a heavy seat, if the request holds a seat at all. It is called
// before work that keeps a processor busy for milliseconds, and between the parts of longer work.
func TakeHeavySeat(ctx context.Context) error {
	if s := requestOf(ctx).Seat; s != nil {
		return s.TakeHeavy(ctx)
	}
	return nil
}
