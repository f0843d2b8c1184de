package kubestore

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
)

// change is an event that every watch of the process shares.
type change struct {
	eventlog.Event
	row string

	mu     sync.Mutex // guards what follows
	judged bool
	void   bool
}

// newChange is a change that the fold has still to judge.
func newChange(e eventlog.Event) *change { return &change{Event: e, row: e.Key.Row()} }

// newPast is a change that Projection.Events has yielded: it is part of the history.
func newPast(e eventlog.Event) *change {
	c := newChange(e)
	c.judged = true
	return c
}

// valid says whether the event is part of the history (invariant 13). The projection is asked once for all watches.
func (c *change) valid(ctx context.Context, p *projection.Projection) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.judged {
		valid, err := p.Valid(ctx, &c.Event)
		if err != nil {
			return false, err
		}
		c.judged, c.void = true, !valid
	}
	return !c.void, nil
}

// before is the live row that the event found.
func before(ctx context.Context, p *projection.Projection, e eventlog.Event) (projection.Row, bool, error) {
	if e.Revision <= 1 {
		return projection.Row{}, false, nil
	}
	v, err := p.AtLeast(ctx, e.Revision-1)
	if err != nil {
		return projection.Row{}, false, err
	}
	return v.Get(ctx, e.Key.Row(), e.Revision-1)
}

// delivery is a change on its way to the watches that it concerns. What they make of it they make once for
// all of them, and it is gone when the last of them has sent it.
type delivery struct {
	*change
	// many says that enough watches get it for an encoding to be worth keeping.
	many bool

	mu       sync.Mutex // guards what follows
	sighting *sighting
}

// sharedFrom is how many watches of one change are many: upstream's figure.
const sharedFrom = 3

// sighting is a delivery as the watches of one store see it. Next is that of another store: the versions of
// a custom resource have one each.
type sighting struct {
	store uint64
	next  *sighting
	// now is the object after the change, then the object before it, and left that one at the change's revision.
	now, then, left facet
}

// seenBy returns the store's sighting.
func (d *delivery) seenBy(s *store) *sighting {
	d.mu.Lock()
	defer d.mu.Unlock()
	for g := d.sighting; g != nil; g = g.next {
		if g.store == s.id {
			return g
		}
	}
	d.sighting = &sighting{store: s.id, next: d.sighting}
	return d.sighting
}

// facet is an object at one revision, decoded and encoded at most once. Nobody writes to it.
type facet struct {
	mu     sync.Mutex // guards what follows
	loaded bool
	object runtime.Object // nil if there was none

	attributed bool
	labels     labels.Set
	fields     fields.Set
	attrsErr   error

	encoded *encodedOnce
}

// load returns the object, nil if there is none. An error is the caller's alone: the bucket or the key service may answer
// the next watch.
func (s *facet) load(load func() (runtime.Object, error)) (runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loaded {
		return s.object, nil
	}
	object, err := load()
	if err != nil {
		return nil, err
	}
	s.loaded, s.object = true, object
	return object, nil
}

// matches is Predicate.Matches of the loaded object. All watches of a store have the same GetAttrs, its
// registry's, which is by far the dearest part.
func (s *facet) matches(p *storage.SelectionPredicate) bool {
	if sharded(p) {
		matched, err := p.Matches(s.object)
		return err == nil && matched
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.attributed {
		s.labels, s.fields, s.attrsErr = p.GetAttrs(s.object)
		s.attributed = true
	}
	return s.attrsErr == nil && p.MatchesObjectAttributes(s.labels, s.fields)
}

// deliverable is the loaded object for a watch: one that is encoded once for all, or a copy.
func (s *facet) deliverable(many bool) runtime.Object {
	if !many {
		return s.object.DeepCopyObject()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.encoded == nil {
		if s.encoded = newEncodedOnce(s.object); s.encoded == nil {
			return s.object.DeepCopyObject()
		}
	}
	return s.encoded
}
