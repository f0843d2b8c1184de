package lists

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/internal/kubestore"
)

// askedKey is that of the pieces in which a request wants its list: upstream's registries are between Serve and the
// store, and know nothing of pieces.
type askedKey struct{}

// store is what registries list from.
type store struct {
	storage.Interface
	pieced kubestore.Pieced
}

// Store lets requests that Serve serves have the lists of a store in pieces.
func Store(of storage.Interface) storage.Interface {
	if pieced, ok := of.(kubestore.Pieced); ok {
		return store{of, pieced}
	}
	return of
}

// GetList implements storage.Interface. It leaves the list empty if its items come in pieces.
func (s store) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	if p, ok := ctx.Value(askedKey{}).(*kubestore.Pieces); ok {
		if given, err := s.pieced.ListPieces(ctx, key, opts, list, p); given || err != nil {
			return err
		}
	}
	return s.Interface.GetList(ctx, key, opts, list)
}
