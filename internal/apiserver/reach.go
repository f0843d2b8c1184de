package apiserver

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// Authorization uses today's rights, but today's namespace may not be the namespace that had the same name in the past.
// So a right inside a namespace covers the past only since that namespace was made, and for custom resources since
// their definition was made. A right in all namespaces covers all of the past.
//
// All code that reads the past asks reachOf. withPast asks about the moment of a path, a store asks about the revision
// of a list, a page or a watch (withinReach), and history asks about each event.

// reach is how far back a right goes. A nil reach goes back to the beginning.
type reach struct {
	server *Server
	// begins are the objects that the right depends on.
	begins []beginning
}

// beginning is an object that may have been deleted and made again under its name. what names the object in messages.
type beginning struct {
	key  eventlog.Key
	what string
}

// everywhere is a question about all namespaces, made from Attributes that ask about one namespace.
type everywhere struct{ authorizer.Attributes }

// GetNamespace implements authorizer.Attributes.
func (everywhere) GetNamespace() string { return "" }

// reachOf returns the reach of the right that allowed a request. It asks only the authorizer, and costs no read.
func (s *Server) reachOf(ctx context.Context, a authorizer.Attributes) (*reach, error) {
	if a.GetNamespace() == "" {
		return nil, nil
	}
	decision, _, err := s.generic.Authorization.Authorizer.Authorize(ctx, everywhere{a})
	switch {
	case decision == authorizer.DecisionAllow:
		return nil, nil
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	}
	r := &reach{s, []beginning{{s.stores.Key(corev1.Resource("namespaces"), "", a.GetNamespace()), "namespace '" + a.GetNamespace() + "'"}}}
	if !customresources.Reserved(a.GetAPIGroup(), a.GetResource()) {
		of := schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()}.String()
		r.begins = append(r.begins, beginning{s.stores.Key(customresources.Resource, "", of), "definition '" + of + "'"})
	}
	return r, nil
}

// beyond says why the right does not cover a revision, "" if the right covers it.
func (r *reach) beyond(ctx context.Context, at eventlog.Revision) (why string, err error) {
	if r == nil {
		return "", nil
	}
	for _, b := range r.begins {
		since, found, err := r.server.since(ctx, b.key, at)
		switch {
		case err != nil:
			return "", kubestore.Answer(ctx, err)
		case !found:
			return fmt.Sprintf("this right is one in namespace '%s' only, and reaches no past of %s, which is not there now: "+
				"ask somebody who has it in all namespaces", r.begins[0].key.Name, b.what), nil
		case at < since:
			return fmt.Sprintf("this right is one in namespace '%s' only, and reaches back to revision %d, since which %s is known to be there: "+
				"name a later moment, or ask somebody who has it in all namespaces", r.begins[0].key.Name, uint64(since), b.what), nil
		}
	}
	return "", nil
}

// covers says whether the right covers a revision.
func (r *reach) covers(ctx context.Context, at eventlog.Revision) (bool, error) {
	why, err := r.beyond(ctx, at)
	return why == "", err
}

// momentReached refuses a request whose right does not cover the request's moment.
func (s *Server) momentReached(ctx context.Context, at eventlog.Revision) error {
	a, why, err := s.beyondRequest(ctx, at)
	if err != nil || why == "" {
		return err
	}
	return responsewriters.ForbiddenStatusError(a, why)
}

// withinReach refuses the revision that a request names if the request's right does not cover that revision. The answer
// says that the revision is no longer kept, because clients know how to go on after such an answer.
func (s *Server) withinReach(ctx context.Context, at eventlog.Revision) error {
	_, why, err := s.beyondRequest(ctx, at)
	if err != nil || why == "" {
		return err
	}
	return apierrors.NewResourceExpired(fmt.Sprintf("revision %d is too old: %s", uint64(at), why))
}

// beyondRequest says why the right that allowed the context's request does not cover a revision.
func (s *Server) beyondRequest(ctx context.Context, at eventlog.Revision) (a authorizer.Attributes, why string, err error) {
	a, err = genericapifilters.GetAuthorizerAttributes(ctx)
	if err != nil || a.GetUser() == nil { // not a request of a client
		return nil, "", nil
	}
	r, err := s.reachOf(ctx, a)
	if err != nil {
		return nil, "", err
	}
	why, err = r.beyond(ctx, at)
	return a, why, err
}

// life says since which revision a key is known to have the same object as now. whole says that the object was made at
// that revision, or that no older version of the object is kept.
type life struct {
	since eventlog.Revision
	whole bool
}

// knownLives is how many lives are remembered.
const knownLives = 1024

// sincePage is how many versions are read at once to find the version that began a life. Few versions follow that
// version.
const sincePage = 10

// since returns a revision since which the key has had the same object as now. If the object was there at the given
// revision, the result is the given revision or an earlier one. Otherwise the result is the revision at which the
// append that made the object began. If the versions that would tell are no longer kept, the result is the revision of
// the oldest version that is known to be of this object. found is false if there is no object now.
//
// If the object has not changed since it was made, like most namespaces, only the object itself is read. Otherwise the
// uid at the given revision decides. Versions are read one by one only if that uid is another object's.
func (s *Server) since(ctx context.Context, key eventlog.Key, at eventlog.Revision) (since eventlog.Revision, found bool, err error) {
	v := s.config.Cell.Projection.Current() // the authorizer has used this view, or an older one
	row, found, err := v.Get(ctx, key.RowKey(), v.Revision())
	switch {
	case err != nil || !found || at >= row.Revision:
		return row.Revision, found, err
	case row.Op == eventlog.Added:
		return row.Began(), true, nil
	}
	known, ok := s.lives.Get(row.Revision)
	if ok && (at >= known.since || known.whole) {
		return known.since, true, nil
	}
	if known, err = s.lifeOf(ctx, row, at); err != nil {
		return 0, false, fmt.Errorf("look for the time when %s was made: %w", key.Path(), err)
	}
	s.lives.Add(row.Revision, known)
	return known.since, true, nil
}

// lifeOf finds the life of the row's object, as far back as a revision.
func (s *Server) lifeOf(ctx context.Context, row projection.Row, at eventlog.Revision) (life, error) {
	then, found, err := s.config.Cell.Projection.GetAt(ctx, row.Key, at)
	if errors.Is(err, projection.ErrExpired) || errors.Is(err, projection.ErrTrimmed) {
		return life{since: row.Revision}, nil
	}
	if err != nil {
		return life{}, err
	}
	if found {
		is, err := s.UID(ctx, row)
		if err != nil {
			return life{}, err
		}
		was, err := s.UID(ctx, then)
		if err != nil {
			return life{}, err
		}
		if was == is {
			return lifeFrom(then), nil
		}
	}
	for oldest := row; ; {
		rows, next, err := s.config.Cell.Projection.Versions(ctx, row.Key, oldest.Revision, sincePage, nil)
		if err != nil {
			return life{}, err
		}
		for _, before := range rows {
			if before.Revision != oldest.Base {
				return life{oldest.Revision, true}, nil
			}
			if oldest = before; oldest.Op == eventlog.Added {
				return lifeFrom(oldest), nil
			}
		}
		if next == 0 {
			return life{oldest.Revision, true}, nil
		}
	}
}

// lifeFrom is the life that follows from the oldest known version. Objects that are made in the same append, such as
// the account of a namespace, may come before the namespace in the log. So the life begins with the append.
func lifeFrom(row projection.Row) life {
	if row.Op == eventlog.Added {
		return life{row.Began(), true}
	}
	return life{since: row.Revision}
}
