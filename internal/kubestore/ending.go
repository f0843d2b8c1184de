package kubestore

import "context"

type endKey struct{}

// WithEnd returns a context whose watches end without an error once end is closed. Those that asked for bookmarks get a
// last one. A nil end takes the end of an outer context away.
func WithEnd(ctx context.Context, end <-chan struct{}) context.Context {
	return context.WithValue(ctx, endKey{}, end)
}

// EndOf returns the context's end. Without one it is nil, which is never closed.
func EndOf(ctx context.Context) <-chan struct{} {
	end, _ := ctx.Value(endKey{}).(<-chan struct{})
	return end
}
