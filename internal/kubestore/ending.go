package kubestore

import "context"

type endKey struct{}

// WithEnd returns a context whose watches end well once end is closed: with a last bookmark for those that
// asked for bookmarks, then without an error. Nil takes an outer end away.
func WithEnd(ctx context.Context, end <-chan struct{}) context.Context {
	return context.WithValue(ctx, endKey{}, end)
}

// endOf returns the context's end, nil (which never comes) if it has none.
func endOf(ctx context.Context) <-chan struct{} {
	end, _ := ctx.Value(endKey{}).(<-chan struct{})
	return end
}
