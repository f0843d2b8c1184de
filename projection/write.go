package projection

import (
	"context"
	"fmt"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/segment"
)

// State is what one view knows of a key: what a write replaces, and what the write must expect of the log. Only a view
// makes a State, in one read. So base, precondition, head and epoch of a write never come from two views.
type State struct {
	view *View
	key  eventlog.Key
	row  Row
	live bool
	// expected is the revision of the key's last event if the log still has that event, else 0. The event may be void
	// or a deletion, so this is not always the row's revision.
	expected Revision
}

// State reads the key at the view's revision. It returns ErrExpired if the floor has passed that revision since; then
// the caller needs a newer view.
func (v *View) State(ctx context.Context, key eventlog.Key) (State, error) {
	s := State{view: v, key: key}
	rowKey, at := key.RowKey(), v.Revision()
	err := v.at(ctx, OneKey(rowKey), at, func(v *View) (err error) {
		below := func(skip segment.Flags) (version, bool, error) {
			return v.snap.newest(ctx, rowKey, min(at, v.Applied()), skip)
		}
		valid := func() (version, bool, error) { return below(segment.Void) }
		var newest version
		chain := v.tail.chain(rowKey, v.Applied(), at)
		if len(chain) > 0 {
			s.expected = chain[0].Revision
			newest, s.live, err = v.fold(ctx, chain, valid)
		} else {
			newest, s.live, err = below(0)
			s.expected = newest.revision
			if err == nil && newest.flags&segment.Void != 0 {
				newest, s.live, err = valid()
			}
		}
		s.live = s.live && !newest.dead()
		if err == nil && s.live {
			s.row, err = newest.row(&recordDecoder{})
		}
		return err
	})
	if s.expected < v.first {
		s.expected = 0
	}
	return s, err
}

// Row is the key's live row; false if there is none.
func (s *State) Row() (Row, bool) { return s.row, s.live }

// Write is an event that is not appended yet. Only a State makes a Write.
type Write struct {
	view  *View
	event eventlog.Write
}

// Put is the write that gives the key a value: it makes a new object, or replaces the live row. ttl is in seconds, 0
// for ever.
func (s *State) Put(contentType string, body []byte, ttl uint32) Write {
	w := eventlog.Write{Key: s.key, Op: eventlog.Added, Precondition: s.expected, ContentType: contentType, Body: body, TTL: ttl}
	if s.live {
		w.Op, w.Base = eventlog.Modified, s.row.Revision
	}
	return Write{s.view, w}
}

// Delete is the write that deletes the live row. There must be one.
func (s *State) Delete() Write {
	return Write{s.view, eventlog.Write{Key: s.key, Op: eventlog.Deleted, Base: s.row.Revision, Precondition: s.expected,
		ContentType: s.row.ContentType, Body: s.row.Value}}
}

// By returns the same write with this author.
func (w Write) By(author eventlog.Author) Write {
	w.event.Author = author
	return w
}

// oldest is the age from which a view may no longer be used to append. Events stay in the log far longer
// (eventlog.MinRetention). So if another write of a key came after the view, the log still has it when the append
// arrives. If the log did not, JetStream would take the key for one without events.
const oldest = 10 * time.Second

// Append appends the writes in one batch, and returns the revision of the last one. All of them must be of this view.
// Append returns ErrConflict if the view is older than 10 s, or if the log was reconnected since the view was proven
// (invariant 9). Other errors are those of eventlog.Log.Append, and ErrBehind, after which nothing was written.
//
// Once a process has learned that its cell was fenced, it acknowledges no write, whichever of its requests learned it.
// The event may be in the log, but it is void (invariant 9).
func (v *View) Append(ctx context.Context, requestID string, writes ...Write) (Revision, error) {
	events := make([]eventlog.Write, len(writes))
	for i, w := range writes {
		if w.view != v {
			return 0, fmt.Errorf("append %s: it was computed from another view", w.event.Key.RowKey())
		}
		events[i] = w.event
	}
	if err := v.mayWrite(ctx); err != nil { // it may wait
		return 0, err
	}
	if age := v.Age(); age > oldest || v.Revision() >= v.first && v.proven != v.p.config.Log.Connection() {
		return 0, fmt.Errorf("append from a view that is %s old or of another connection: %w", age, eventlog.ErrConflict)
	}
	ctx, cancel := context.WithDeadline(ctx, v.asked.Add(oldest)) // Log.Append checks it again right before publishing
	defer cancel()
	if err := v.p.failed(); err != nil {
		return 0, err
	}
	rev, err := v.p.config.Log.Append(ctx, eventlog.Basis{Head: v.Revision(), Epoch: v.tail.epoch}, requestID, events...)
	if err == nil {
		err = v.p.failed()
	}
	if err != nil {
		return 0, v.p.fail(err)
	}
	return rev, nil
}
