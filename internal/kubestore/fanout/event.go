package fanout

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
)

// Event is an event of the log, shared by all watches of the process.
type Event struct {
	eventlog.Event
	// RowKey is Key.RowKey(), computed once.
	RowKey string

	mu     sync.Mutex // guards the fields below
	judged bool
	void   bool
}

// newEvent returns an event whose validity is not yet known.
func newEvent(rowKey string, e eventlog.Event) *Event { return &Event{Event: e, RowKey: rowKey} }

// NewPast returns an event that Projection.Events has yielded, and that is therefore not void.
func NewPast(e eventlog.Event) *Event {
	past := newEvent(e.Key.RowKey(), e)
	past.judged = true
	return past
}

// Valid says whether the event is not void (invariant 13). It asks the projection once for all watches.
func (e *Event) Valid(ctx context.Context, p *projection.Projection) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.judged {
		valid, err := p.Valid(ctx, &e.Event)
		if err != nil {
			return false, err
		}
		e.judged, e.void = true, !valid
	}
	return !e.void, nil
}

// judge finds out, if it can do so without waiting, whether the event is void. It returns whether the event's validity
// is known.
func (e *Event) judge(v *projection.View) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.judged && v != nil {
		valid, known := v.ValidNow(&e.Event, e.RowKey)
		e.judged, e.void = known, known && !valid
	}
	return e.judged
}

// Delivery is an event on its way to the subscriptions that it concerns, or a bookmark on its way to one subscription.
type Delivery struct {
	// Event is nil in a bookmark.
	Event *Event
	// Bookmark is the revision of a bookmark: every event up to it was delivered before.
	Bookmark eventlog.Revision
	// many says that enough watches get the event for an encoding to be worth keeping.
	many bool
	// prompt says that the event's objects can be decoded quickly and without waiting.
	prompt bool

	mu      sync.Mutex // guards the fields below
	changes *change    // of each store
}

// sharedFrom is how many watches of one event count as many. It is upstream's number.
const sharedFrom = 3

// promptBytes is the largest event that watches may decode in the feed's own goroutine. Decoding an event of that size
// takes some 0.3 ms.
const promptBytes = 64 << 10

// size is about how much memory the delivery holds while it waits. It is 0 for a nil delivery and for a bookmark.
func (d *Delivery) size() int64 {
	if d == nil || d.Event == nil {
		return 0
	}
	return d.Event.size()
}

// NewDelivery returns a delivery of an event.
func NewDelivery(e *Event) *Delivery { return &Delivery{Event: e} }

// For returns the event as a watch of the store sees it. Selects is the watch's selection, nil for everything. Found is
// false if the event does not concern the watch. If an update makes the object match the selection, or no longer match
// it, the watch gets ADDED or DELETED.
func (d *Delivery) For(ctx context.Context, s Store, selects *storage.SelectionPredicate) (_ watch.Event, found bool, err error) {
	t, o, err := d.change(s).to(ctx, selects)
	if o == nil || err != nil {
		return watch.Event{}, false, err
	}
	return watch.Event{Type: t, Object: o.sendable(d.many)}, true, nil
}

// Prompt says that, for a watch of the store without a selection, For is quick and does not wait.
func (d *Delivery) Prompt(s Store) bool { return d.change(s).prompt() }

// change returns the delivery as the store sees it.
func (d *Delivery) change(s Store) *change {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := d.changes; c != nil; c = c.next {
		if c.store == s {
			return c
		}
	}
	d.changes = &change{store: s, event: d.Event, next: d.changes}
	return d.changes
}
