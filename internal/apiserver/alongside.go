package apiserver

import (
	"context"
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/clusters"
	"github.com/logplane/logplane/internal/apiserver/dependents"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/apiserver/tokens"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// alongside checks a write on the view that the write is computed from, and returns the writes that must be in the same
// append. Admission has checked the write before, perhaps on an older view.
func (s *Server) alongside(ctx context.Context, v *projection.View, c kubestore.Change) ([]projection.Write, error) {
	if err := s.definitions.Check(ctx, v, c); err != nil {
		return nil, err
	}
	writes, err := s.namespaces.Alongside(ctx, v, c)
	if err != nil {
		return nil, err
	}
	index, err := dependents.Alongside(ctx, v, c)
	if err != nil {
		return nil, err
	}
	charges, err := s.quotas.Alongside(ctx, v, c)
	if err != nil {
		return nil, err
	}
	branch, err := clusters.Alongside(ctx, v, c, s.born)
	if err != nil {
		return nil, err
	}
	return slices.Concat(writes, index, charges, branch), nil
}

// complete returns the function by which the server adds its own part to the objects of a resource, nil if the server
// adds nothing.
func (s *Server) complete(resource schema.GroupResource) resources.CompleteFunc {
	switch resource {
	case corev1.Resource("resourcequotas"):
		return s.quotas.Complete
	case corev1.Resource("secrets"):
		return func(ctx context.Context, v *projection.View, before, after runtime.Object) error {
			secrets := tokens.Secrets{Tokens: s.tokens, Account: s.listers.IndexerOf(&corev1.ServiceAccount{}).GetAt, RootCA: s.rootCA}
			return secrets.Fill(ctx, v, before, after)
		}
	}
	return nil
}

// UID is the uid of a stored object. With it, the lifecycle finds the dependents of a deleted object.
func (s *Server) UID(ctx context.Context, row projection.Row) (types.UID, error) {
	object, err := s.metadataOf(ctx, row)
	if err != nil {
		return "", err
	}
	return object.UID, nil
}

func (s *Server) metadataOf(ctx context.Context, row projection.Row) (*metav1.PartialObjectMetadata, error) {
	plain, err := s.plain(ctx, row)
	if err != nil {
		return nil, err
	}
	return dependents.MetadataOf(row.ContentType, plain)
}

// deletionPage is how many versions are read at once to find an object's deletion. Few versions follow the deletion.
const deletionPage = 10

// Deletion returns the cause to record for the consequences of an object's deletion: the event that began the deletion,
// or the cause that this event names itself. The object's newest event says little, because other users may change an
// object while it is being deleted, and because the object stays until its last finalizer is removed.
//
// The cause is empty if the object is not deleted, or if history no longer says who deleted it: no user is better than
// the wrong user. Without a uid, Deletion takes the uid of the last object of that name. was is false if no object of
// that uid is known under the name.
func (s *Server) Deletion(ctx context.Context, o dependents.Object) (cause eventlog.Cause, was bool, err error) {
	key, uid := s.stores.Key(schema.GroupResource{Group: o.Group, Resource: o.Resource}, o.Namespace, o.Name).RowKey(), o.UID
	var next *projection.Row // the next newer version, if it is a version or the deletion of the same object
search:
	for below := projection.Revision(math.MaxUint64); below > 0; {
		var rows []projection.Row
		rows, below, err = s.config.Cell.Projection.Versions(ctx, key, below, deletionPage, nil)
		if err != nil {
			return eventlog.Cause{}, false, fmt.Errorf("look for the deletion of %s: %w", o, err)
		}
		for i := range rows {
			row := &rows[i]
			if row.Deleted {
				if was {
					break search
				}
				next = row
				continue
			}
			object, err := s.metadataOf(ctx, *row)
			switch {
			case err != nil: // the version cannot be read
				return eventlog.Cause{}, was, nil
			case uid == "":
				uid = object.UID
			case object.UID != uid && was:
				break search
			case object.UID != uid:
				next = nil
				continue
			}
			was = true
			if object.DeletionTimestamp == nil {
				if next != nil {
					cause = next.Author.Causes(next.Revision)
				}
				return cause, true, nil
			}
			if next = row; row.Author.Cause.Revision > 0 { // older versions may be many, or no longer kept
				break search
			}
		}
	}
	if was {
		cause = next.Author.Cause
	}
	return cause, was, nil
}

// AlongsideDeletion returns the writes that go into the same append as the deletion of a stored object. The lifecycle
// uses AlongsideDeletion to delete expired objects without a request. The object must be of a kind that no quota
// measures.
func (s *Server) AlongsideDeletion(ctx context.Context, v *projection.View, row projection.Row) ([]projection.Write, error) {
	plain, err := s.plain(ctx, row)
	if err != nil {
		return nil, err
	}
	change := kubestore.Change{Key: row.ID}
	if object, err := dependents.MetadataOf(row.ContentType, plain); err == nil { // undecodable objects are deleted
		change.Before = object
	}
	return s.alongside(ctx, v, change)
}

func (s *Server) plain(ctx context.Context, row projection.Row) ([]byte, error) {
	return kubestore.Plain(ctx, s.stores.Transformer(schema.GroupResource{Group: row.ID.Group, Resource: row.ID.Resource}), row)
}
