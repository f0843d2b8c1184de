package lists

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/internal/kubestore"
)

// askedKey is the context key of the chunks in which a request wants its list. Upstream's registries are between Serve
// and the store, and know nothing of chunks.
type askedKey struct{}

// store is the store from which registries read lists.
type store struct {
	storage.Interface
	chunkLister kubestore.ChunkLister
}

// Store wraps a store so that its lists come in chunks, for requests that Serve serves.
func Store(of storage.Interface) storage.Interface {
	if chunkLister, ok := of.(kubestore.ChunkLister); ok {
		return store{of, chunkLister}
	}
	return of
}

// GetList implements storage.Interface. It leaves the list empty if its items come in chunks.
func (s store) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	if p, ok := ctx.Value(askedKey{}).(*kubestore.Chunks); ok {
		if given, err := s.chunkLister.ListChunks(ctx, key, opts, list, p); given || err != nil {
			return err
		}
	}
	return s.Interface.GetList(ctx, key, opts, list)
}
