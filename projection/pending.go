package projection

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/logplane/logplane/eventlog"
)

// Provisional is below the provisional revisions, which the writes of a Pending have until they are appended.
// Provisional is above the revisions of any log.
const Provisional = Revision(1) << 62

// provisionals counts the provisional revisions, so that none recurs: decoded objects are cached by their revision.
var provisionals atomic.Uint64

// Pending holds the writes that one writer will append in one batch. The writes are made one after another. Each write
// is computed from a view that shows the earlier writes. Nobody else sees that view. A Pending is not safe for
// concurrent use.
type Pending struct {
	base *View
	// view is the base with the writes.
	view *View
	// keys are the keys of the writes, in the order of their first writes.
	keys       []*pendingKey
	byKey      map[string]*pendingKey
	byRevision map[Revision]*pendingKey
}

// pendingKey is the outcome of all writes to one key.
type pendingKey struct {
	last Write
	// record is the key's record in the pending view.
	record *record
	// created says that the base has no such object.
	created bool
	// appended is the revision of the key's event, 0 if there is none.
	appended Revision
}

// Pending begins a batch on the view.
func (v *View) Pending() *Pending {
	shown := *v
	// A newer root may contain events after the base, and nothing would distinguish these events from the base's.
	shown.again = func(context.Context, *View) (*View, error) {
		return nil, fmt.Errorf("read again what a pending batch is computed from: %w", ErrExpired)
	}
	return &Pending{base: v, view: &shown, byKey: map[string]*pendingKey{}, byRevision: map[Revision]*pendingKey{}}
}

// View shows the base with all writes until now.
func (p *Pending) View() *View { return p.view }

// Base is the view from which the batch will be appended.
func (p *Pending) Base() *View { return p.base }

// Len is how many events the batch has.
func (p *Pending) Len() int {
	n := 0
	for _, k := range p.keys {
		if !k.nothing() {
			n++
		}
	}
	return n
}

// nothing says that an object was made and deleted again, so that there is nothing to append.
func (k *pendingKey) nothing() bool { return k.created && k.last.event.Op == eventlog.Deleted }

// Deleted says whether the writes have deleted an object that the base has, without making another object in its place.
func (p *Pending) Deleted(key eventlog.Key) bool {
	k := p.byKey[key.RowKey()]
	return k != nil && !k.created && k.last.event.Op == eventlog.Deleted
}

// Add adds writes to the batch. The writes must have been computed from the pending view. Add returns the provisional
// revision of the last write.
func (p *Pending) Add(requestID string, writes ...Write) (Revision, error) {
	for _, w := range writes {
		if w.view != p.view {
			return 0, fmt.Errorf("add %s to a batch: it was computed from another view", w.event.Key.RowKey())
		}
	}
	shown := *p.view
	shown.tail = p.view.tail.clone()
	for _, w := range writes {
		r := newRecord(eventlog.Event{Write: w.event, Revision: Provisional + Revision(provisionals.Add(1)),
			Time: time.Now(), RequestID: requestID, Epoch: p.base.tail.epoch})
		if r.Op == eventlog.Deleted {
			r.Body = nil // nobody reads it
		}
		k := p.byKey[r.key]
		if k == nil || k.nothing() { // after a create and a delete, a new create is another object
			k = &pendingKey{created: r.Op == eventlog.Added}
			p.byKey[r.key], p.keys = k, append(p.keys, k)
		}
		if k.record != nil && k.record.Op != eventlog.Deleted { // the new record is valid without the old one
			shown.tail.byKey.Delete(k.record)
		}
		k.last, k.record = w, r
		p.byRevision[r.Revision] = k
		shown.tail.byKey.ReplaceOrInsert(r)
		shown.tail.at.Revision = r.Revision
	}
	p.view = &shown
	return shown.Revision(), nil
}

// Rebase makes a newer view the base of the batch, unless a key has changed since the old base: a key that the batch
// writes, or a key that decides about one of the batch's writes. The function 'decides' returns the keys that decide
// about a key. If such a key has changed, Rebase changes nothing, and returns the key of a write that has lost. Errors
// are those of View.EventsOf.
func (p *Pending) Rebase(ctx context.Context, v *View, decides func(eventlog.Key) []Keys) (lost eventlog.Key, err error) {
	deciding := map[Keys]eventlog.Key{}
	for _, k := range p.keys {
		for _, keys := range decides(k.last.event.Key) {
			deciding[keys] = k.last.event.Key
		}
	}
	seen := func(rowKey string) {
		if k := p.byKey[rowKey]; k != nil {
			lost = k.last.event.Key
		}
		for keys, of := range deciding {
			if keys.has(rowKey) {
				lost = of
			}
		}
	}
	if !v.Since(p.base.Revision(), seen) {
		for e, err := range v.EventsOf(ctx, Keys{}, p.base.Revision(), v.Revision()) {
			if err != nil {
				return lost, unread(err)
			}
			seen(e.Key.RowKey())
		}
	}
	if lost == (eventlog.Key{}) {
		p.base = v
	}
	return lost, nil
}

// Append appends all writes in one batch, each key once, with the base and the precondition that the key has in the
// base view. It returns the revision of the last event, 0 if there is nothing to append. Errors are those of
// View.Append, and ErrExpired. Nothing may be added afterwards.
func (p *Pending) Append(ctx context.Context, requestID string) (Revision, error) {
	var writes []Write
	for _, k := range p.keys {
		if k.nothing() {
			continue
		}
		at, err := p.base.State(ctx, k.last.event.Key)
		if err != nil {
			return 0, err
		}
		w := at.Put(k.last.event.ContentType, k.last.event.Body, k.last.event.TTL)
		if k.last.event.Op == eventlog.Deleted {
			w = at.Delete()
		}
		writes = append(writes, w.By(k.last.event.Author))
		k.appended = Revision(len(writes)) // its position in the batch, until the batch is appended
	}
	if len(writes) == 0 {
		return 0, nil
	}
	last, err := p.base.Append(ctx, requestID, writes...)
	if err != nil {
		return 0, err
	}
	for _, k := range p.keys {
		if k.appended > 0 {
			k.appended += last - Revision(len(writes))
		}
	}
	return last, nil
}

// Appended is the revision of the event that Append made of the write with this provisional revision. It is 0 if the
// object was made and deleted again. A revision that is not provisional is returned unchanged.
func (p *Pending) Appended(revision Revision) Revision {
	if k := p.byRevision[revision]; k != nil {
		return k.appended
	}
	return revision
}
