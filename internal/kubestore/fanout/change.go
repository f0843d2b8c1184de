package fanout

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog"
)

// Store decodes the objects of an event for the watches of one store. Stores are compared with ==. The decoded objects
// may be shared, so nobody writes to them. An error holds only for this call: the next call may succeed.
type Store interface {
	// ObjectAfter returns the object after the event. For a deletion it returns the deleted object.
	ObjectAfter(ctx context.Context, e *Event) (runtime.Object, error)
	// Prompt says that ObjectAfter is quick and does not wait.
	Prompt(e *Event) bool
	// ObjectBefore returns the object before the event, or nil if there was no object.
	ObjectBefore(ctx context.Context, e *Event) (runtime.Object, error)
	// CachedBefore returns the object of ObjectBefore if that needs no waiting, else nil.
	CachedBefore(e *Event) runtime.Object
	// FieldValue returns the object's value of a field that an Index names.
	FieldValue(field string, o runtime.Object) string
}

// change is an event as the watches of one store see it. Next is the same event for another store: each version of a
// custom resource has a store.
type change struct {
	store Store
	event *Event
	next  *change
	// left is the object before the change, with the change's revision.
	before, after, left object
	// isPrompt is the store's Prompt for the event, set by asked.
	asked    sync.Once
	isPrompt bool
}

func (c *change) prompt() bool {
	c.asked.Do(func() { c.isPrompt = c.store.Prompt(c.event) })
	return c.isPrompt
}

// to returns the change as a watch sees it. Selects is the watch's selection, nil for everything. The returned object
// is nil if the change does not concern the watch.
func (c *change) to(ctx context.Context, selects *storage.SelectionPredicate) (watch.EventType, *object, error) {
	if _, err := c.loadAfter(ctx); err != nil {
		return "", nil, err
	}
	now := c.after.matches(selects)
	switch {
	case !now && c.event.Op != eventlog.Modified:
		return "", nil, nil
	case c.event.Op == eventlog.Deleted:
		return watch.Deleted, &c.after, nil
	case c.event.Op == eventlog.Added:
		return watch.Added, &c.after, nil
	case selects == nil:
		return watch.Modified, &c.after, nil
	}
	before, err := c.before.load(func() (runtime.Object, error) { return c.store.ObjectBefore(ctx, c.event) })
	if err != nil {
		return "", nil, err
	}
	then := before != nil && c.before.matches(selects)
	switch {
	case now && then:
		return watch.Modified, &c.after, nil
	case now:
		return watch.Added, &c.after, nil
	case !then:
		return "", nil, nil
	}
	// The object no longer matches. The client gets its last matching state, at the revision of the change.
	_, err = c.left.load(func() (runtime.Object, error) {
		left := before.DeepCopyObject()
		return left, storage.APIObjectVersioner{}.UpdateObject(left, uint64(c.event.Revision))
	})
	return watch.Deleted, &c.left, err
}

func (c *change) loadAfter(ctx context.Context) (runtime.Object, error) {
	return c.after.load(func() (runtime.Object, error) { return c.store.ObjectAfter(ctx, c.event) })
}
