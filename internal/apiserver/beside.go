package apiserver

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/logplane/logplane/internal/apiserver/dependents"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// beside decides about a write on the view from which it is computed, and returns what must be written together with
// it. Admission has decided before, on a view that may be older.
func (s *Server) beside(ctx context.Context, v *projection.View, c kubestore.Change) ([]projection.Write, error) {
	if err := s.definitions.Check(ctx, v, c); err != nil {
		return nil, err
	}
	writes, err := s.namespaces.Beside(ctx, v, c)
	if err != nil {
		return nil, err
	}
	index, err := dependents.Beside(ctx, v, c)
	if err != nil {
		return nil, err
	}
	charges, err := s.quotas.Beside(ctx, v, c)
	if err != nil {
		return nil, err
	}
	return append(append(writes, index...), charges...), nil
}

// complete is what the server itself writes to the objects of a resource, nil for nothing.
func (s *Server) complete(resource schema.GroupResource) resources.CompleteFunc {
	switch resource {
	case corev1.Resource("resourcequotas"):
		return s.quotas.Complete
	case corev1.Resource("secrets"):
		return s.fillSecret
	}
	return nil
}

// UID is the uid of a stored object. The lifecycle finds the dependents of a deleted object by it.
func (s *Server) UID(ctx context.Context, row projection.Row) (types.UID, error) {
	plain, err := s.plain(ctx, row)
	if err != nil {
		return "", err
	}
	object, err := dependents.MetadataOf(row.ContentType, plain)
	if err != nil {
		return "", err
	}
	return object.UID, nil
}

// BesideDeletion returns the writes that go into the batch of a stored object's deletion. The lifecycle deletes what
// has expired without a request. The object must be of a kind that no quota measures.
func (s *Server) BesideDeletion(ctx context.Context, v *projection.View, row projection.Row) ([]projection.Write, error) {
	plain, err := s.plain(ctx, row)
	if err != nil {
		return nil, err
	}
	change := kubestore.Change{Key: row.ID}
	if object, err := dependents.MetadataOf(row.ContentType, plain); err == nil { // what nobody can decode goes, too
		change.Before = object
	}
	return s.beside(ctx, v, change)
}

func (s *Server) plain(ctx context.Context, row projection.Row) ([]byte, error) {
	return kubestore.Plain(ctx, s.stores.Transformer(schema.GroupResource{Group: row.ID.Group, Resource: row.ID.Resource}), row)
}
