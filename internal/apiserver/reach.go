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

// Rights are today's, and today's namespace may be another one than that which had its name before. So a right that
// comes from inside a namespace reaches back to when that namespace was made, and for custom resources to when their
// definition was. A right in all namespaces reaches everything.
//
// Whoever reads what is not of now asks reachOf: withPast about the moment of a path, a store about the revision of a
// list, a page or a watch (withinReach), and history about each event.

// reach is how far back a right goes. A nil one goes back to the beginning.
type reach struct {
	server *Server
	// begins are the objects of which the right is, and what each is called.
	begins []beginning
}

// beginning is an object that may have been made again under its name.
type beginning struct {
	key  eventlog.Key
	what string
}

// everywhere is a question about one namespace, asked about all.
type everywhere struct{ authorizer.Attributes }

// GetNamespace implements authorizer.Attributes.
func (everywhere) GetNamespace() string { return "" }

// reachOf returns the reach of the right by which something was allowed. That is asked of the authorizer alone, and
// costs no read.
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

// beyond says why the right does not reach a revision, "" if it does.
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

// covers says whether the right reaches a revision.
func (r *reach) covers(ctx context.Context, at eventlog.Revision) (bool, error) {
	why, err := r.beyond(ctx, at)
	return why == "", err
}

// momentReached refuses a request of a moment that its right does not reach.
func (s *Server) momentReached(ctx context.Context, at eventlog.Revision) error {
	a, why, err := s.beyondRequest(ctx, at)
	if err != nil || why == "" {
		return err
	}
	return responsewriters.ForbiddenStatusError(a, why)
}

// withinReach refuses the revision that a request names as one that is no longer kept, which clients know how to go on
// from.
func (s *Server) withinReach(ctx context.Context, at eventlog.Revision) error {
	_, why, err := s.beyondRequest(ctx, at)
	if err != nil || why == "" {
		return err
	}
	return apierrors.NewResourceExpired(fmt.Sprintf("revision %d is too old: %s", uint64(at), why))
}

// beyondRequest says why the right by which the context's request was allowed does not reach a revision.
func (s *Server) beyondRequest(ctx context.Context, at eventlog.Revision) (a authorizer.Attributes, why string, err error) {
	a, err = genericapifilters.GetAuthorizerAttributes(ctx)
	if err != nil || a.GetUser() == nil { // no client's
		return nil, "", nil
	}
	r, err := s.reachOf(ctx, a)
	if err != nil {
		return nil, "", err
	}
	why, err = r.beyond(ctx, at)
	return a, why, err
}

// life is from which revision on an object is known to be the one that it is now. Whole says that it was made then, or
// that no older version of it is kept.
type life struct {
	since eventlog.Revision
	whole bool
}

// knownLives is how many lives are remembered.
const knownLives = 1024

// sincePage is how many versions are read at once to find the one with which a life began. Few were written since.
const sincePage = 10

// since returns a revision from which on the object of a key is the one that it is now: at or before the given revision
// if it was there then, and else that with which the append began that made it. What is no longer kept proves nothing,
// so then it is that of the oldest version that is known to be of the object. Found is false for an object that is not
// there now.
//
// An object that has not changed since it was made, as most namespaces, costs nothing but itself. Of another one, the
// uid that it had at the revision decides. Only one that was made later is looked for, version by version.
func (s *Server) since(ctx context.Context, key eventlog.Key, at eventlog.Revision) (since eventlog.Revision, found bool, err error) {
	v := s.config.Cell.Projection.Current() // from which the authorizer has decided, or a newer one
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

// lifeOf looks for the life of what a row is, as far back as a revision.
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

// lifeFrom is the life that is known by a version. What was made with an object at once, such as the account of a
// namespace, comes before it in the log.
func lifeFrom(row projection.Row) life {
	if row.Op == eventlog.Added {
		return life{row.Began(), true}
	}
	return life{since: row.Revision}
}
