package kubestore

import (
	"context"
	"strconv"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/uuid"
)

type requestIDKey struct{}

type requestIDs struct {
	id   string
	last atomic.Uint64
}

// WithRequestID returns a context whose appends carry the id, which must be unique among all requests of
// all processes: a client's own id will not do. The second append of a request has '/2' after it.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, &requestIDs{id: id})
}

// requestID is unique for every append: by it an append of unknown outcome is found again.
func requestID(ctx context.Context) string {
	r, _ := ctx.Value(requestIDKey{}).(*requestIDs)
	if r == nil {
		return string(uuid.NewUUID())
	}
	if n := r.last.Add(1); n > 1 {
		return r.id + "/" + strconv.FormatUint(n, 10)
	}
	return r.id
}
