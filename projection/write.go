package projection

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/segment"
)

// State is the state of a key in one view: the row that a write replaces, and the revision that the write must expect
// in the log. Only a view makes a State, so that both come from the same view (docs/decisions/one-view.md).
type State struct {
	view *View
	key  eventlog.Key
	row  Row
	live bool
	// inherits is the revision that the key inherits.
	inherits Revision
	// expected is the revision of the key's last event if the log still has that event, else 0. The event may be void
	// or a deletion, so this is not always the row's revision.
	expected Revision
}

// State reads the key at the view's revision. It returns ErrExpired if the floor has passed that revision since; then
// the caller needs a newer view.
func (v *View) State(ctx context.Context, key eventlog.Key) (State, error) {
	var b *Branch
	if IsBranch(key.Cluster) {
		var err error
		if b, err = v.p.branchOf(ctx, OneKey(key.RowKey())); err != nil {
			return State{}, err
		}
	}
	return v.StateIn(ctx, b, key)
}

// StateIn is State for a key of a branch that begins in the same append as the write.
func (v *View) StateIn(ctx context.Context, b *Branch, key eventlog.Key) (State, error) {
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
		if err == nil && b != nil {
			newest, err = s.inherit(ctx, v, b, newest)
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

// inherit finds out what the key inherits. Each of the key's own versions says it. If there is none, inherit returns
// the version that the key inherits.
func (s *State) inherit(ctx context.Context, v *View, b *Branch, newest version) (_ version, err error) {
	if s.live { // there is a version, perhaps a tombstone
		s.inherits, err = newest.inherits(&recordDecoder{})
		return newest, err
	}
	rowKey := s.key.RowKey()
	from, err := v.inheritance(ctx, b, rowKey, v.Revision())
	if err != nil {
		return version{}, err
	}
	newest, s.live, err = from.newest(ctx, rowKey)
	s.inherits = newest.revision
	return newest, err
}

// Row is the key's live row; false if there is none.
func (s *State) Row() (Row, bool) { return s.row, s.live }

// Write is an event that is not appended yet. Only a State makes a Write.
type Write struct {
	view  *View
	event eventlog.Write
}

// Put is the write that gives the key a value: it makes a new object, or replaces the live row. ttl is in seconds; 0
// means that the object does not expire.
func (s *State) Put(contentType string, body []byte, ttl uint32) Write {
	w := eventlog.Write{Key: s.key, Op: eventlog.Added, Precondition: s.expected, Inherits: s.inherits, ContentType: contentType, Body: body, TTL: ttl}
	if s.live {
		w.Op, w.Base = eventlog.Modified, s.row.Revision
	}
	return Write{s.view, w}
}

// Delete is the write that deletes the live row. There must be one.
func (s *State) Delete() Write {
	return Write{s.view, eventlog.Write{Key: s.key, Op: eventlog.Deleted, Base: s.row.Revision, Precondition: s.expected, Inherits: s.inherits,
		ContentType: s.row.ContentType, Body: s.row.Value}}
}

// Author is the author of the write.
func (w Write) Author() eventlog.Author { return w.event.Author }

// By returns the same write with this author.
func (w Write) By(author eventlog.Author) Write {
	w.event.Author = author
	return w
}

// oldest is the age from which a view may no longer be used to append. Events stay in the log far longer
// (eventlog.MinRetention), so when the append arrives, the log still has each write that came after the view.
const oldest = 10 * time.Second

// Append appends the writes in one batch, and returns the revision of the last one. All writes must come from States of
// this view. Append returns ErrConflict if the view is older than 10 s, or if the log was reconnected since the view
// was proven (invariant 9). Other errors are those of eventlog.Log.Append, and ErrBehind, after which nothing was
// written.
//
// Once a process has learned that its cell was fenced, it acknowledges no write, whichever of its requests learned of
// the fence. The event of such a write may be in the log, but is void (invariant 9).
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
	ctx, cancel := context.WithDeadline(ctx, v.asked.Add(oldest)) // Log.Append checks the deadline again right before publishing
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

const (
	// relieveShare: a process whose tail takes 1/relieveShare of its budget commits by itself. A tail of that size
	// means that the projector is down, or does not keep up.
	relieveShare = 4
	// relieveTime bounds how long relieve delays the request that calls it. After a failure no request tries again for
	// sparePause.
	relieveTime = 5 * time.Second
	sparePause  = 5 * time.Second
)

// pressed returns ErrBehind if the tail has outgrown its budget: nothing may be written until a commit has succeeded.
func (v *View) pressed() error {
	if v.tail.bytes > v.p.config.TailBytes {
		return fmt.Errorf("the snapshot is %d MiB behind the log: %w", v.tail.bytes>>20, ErrBehind)
	}
	return nil
}

// mayWrite returns ErrBehind if the tail has outgrown its budget and stays so. While another request is shortening the
// tail, mayWrite waits for that request. So a writer that is faster than the commits is slowed down, and is refused
// only if the commits fail or take too long.
func (v *View) mayWrite(ctx context.Context) error {
	if v.pressed() == nil {
		return nil
	}
	patient, cancel := context.WithTimeout(ctx, relieveTime)
	defer cancel()
	if v.p.relieving.enter(patient) == nil {
		v.p.relieving.leave()
	}
	return v.p.view.Load().pressed()
}

// pressing reports that the tail has the greatest length that readers should have to read. Then the next commit should
// not wait.
func (v *View) pressing() bool {
	return len(v.tail.records) >= behindEvents || v.tail.bytes >= behindBytes
}

// relieve shortens a tail that has grown too long, within the request that notices its length. That may be a GET.
// relieve reads the root again, as another process may have committed. If the tail is still too long, relieve commits
// once. It purges nothing, because processes that serve requests may not purge (eventlog.Roles).
//
// One request of the process at a time shortens the tail, for relieveTime at most. The other requests continue with the
// views that they have. After a failure the request continues with its own view too.
func (p *Projection) relieve(ctx context.Context, v *View) *View {
	limit := p.config.TailBytes / relieveShare
	if p.config.ReadOnly || v.tail.bytes <= limit || !p.mayAskBucket() {
		return v
	}
	select {
	case p.relieving <- struct{}{}:
		defer p.relieving.leave()
	default:
		return v
	}
	ctx, cancel := context.WithTimeout(ctx, relieveTime-discardTime)
	defer cancel()
	_, err := p.reload(ctx)
	if err == nil && p.view.Load().tail.bytes > limit {
		relieved.Inc()
		_, _, err = p.commit(ctx, false)
	}
	if err != nil && !errors.Is(err, eventlog.ErrDiverged) {
		p.spareBucket()
		slog.WarnContext(ctx, "the tail is long, and committing it failed", "bytes", v.tail.bytes, "error", err)
	}
	return p.view.Load()
}

// mayAskBucket reports whether a request may ask the bucket for something that it does not need. After such a request
// to the bucket has failed, no request may ask for a while.
func (p *Projection) mayAskBucket() bool { return time.Now().UnixNano() >= p.sparing.Load() }

func (p *Projection) spareBucket() { p.sparing.Store(time.Now().Add(sparePause).UnixNano()) }
