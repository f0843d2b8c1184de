package projection

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/segment"
)

// version is one version of a key, wherever it was found.
type version struct {
	key      string
	revision Revision
	// cluster is set if the version was inherited from another cluster. Then key is the key that inherits it.
	cluster string
	flags   segment.Flags
	// record is set if the version was found in the tail or inline, else entry.
	record *record
	entry  segment.Entry
	// unwanted says that the version is in a block that a selection excludes.
	unwanted bool
}

func versionOf(r *record) version {
	return version{key: r.key, revision: r.Revision, flags: r.flags(), record: r}
}

func entryVersion(e segment.Entry) version {
	return version{key: e.Key, revision: Revision(e.Revision), flags: e.Flags, entry: e}
}

func (v *version) dead() bool { return v.flags&segment.Tombstone != 0 }

func (v *version) row(d *recordDecoder) (row Row, err error) {
	if v.record == nil {
		row, err = d.row(v.entry)
	} else {
		row = v.record.row()
	}
	if v.cluster != "" {
		row.Key, row.Origin, row.ID.Cluster = v.key, row.Key, v.cluster
	}
	return row, err
}

// inherits is the revision that the version's key inherits, 0 for none.
func (v *version) inherits(d *recordDecoder) (Revision, error) {
	if v.record != nil {
		return v.record.Inherits, nil
	}
	r, err := d.brief(v.entry)
	if err != nil {
		return 0, err
	}
	return r.Inherits, nil
}

// valid is the fold's rule for one event (invariant 13). epoch is the epoch of the root. live is the key's live
// revision before the event's append, 0 for none; before a key's first event it is the revision that the key inherits.
// The rule must never change: a change would change the meaning of old events.
func valid(e *eventlog.Event, epoch uint64, live Revision) bool {
	if e.Epoch < epoch { // written across a fence (invariant 9)
		return false
	}
	switch e.Op {
	case eventlog.Added:
		return e.Base == 0 && live == 0
	case eventlog.Modified, eventlog.Deleted:
		// If the base is the precondition, the log has enforced the base.
		return e.Base != 0 && (e.Base == e.Precondition || e.Base == live)
	default:
		return false
	}
}

// nowhere is a revision that no key ever has as its live revision.
const nowhere = ^Revision(0)

// certain reports that an event is valid whatever the state before the event is. Most events are certain, and cost no
// lookup.
func certain(e *eventlog.Event, epoch uint64) bool { return valid(e, epoch, nowhere) }

// hopeless reports that an event is void whatever the state before the event is: the event would be void even over its
// own base.
func hopeless(e *eventlog.Event, epoch uint64) bool { return !valid(e, epoch, e.Base) }

// appended is an append of several events, with one verdict: the append is valid only if each of its events is valid
// (invariant 13).
type appended struct {
	records []*record
	// verdict is computed when it is first needed. Concurrent callers compute the same verdict, because it depends only
	// on earlier events.
	verdict atomic.Pointer[bool]
}

// decided is the append of records that are already known to be valid.
var decided = func() *appended {
	a, valid := new(appended), true
	a.verdict.Store(&valid)
	return a
}()

// judge reports whether a record of the tail is valid. It looks up the state before the append only if the record's
// validity depends on that state.
func (v *View) judge(ctx context.Context, r *record) (bool, error) {
	if r.append == nil {
		return v.allValid(ctx, []*record{r})
	}
	if known := r.append.verdict.Load(); known != nil {
		return *known, nil
	}
	valid, err := v.allValid(ctx, r.append.records)
	if err == nil {
		r.append.verdict.Store(&valid)
	}
	return valid, err
}

// allValid reports whether all events of an append are valid.
func (v *View) allValid(ctx context.Context, records []*record) (bool, error) {
	epoch := v.tail.epoch
	if slices.ContainsFunc(records, func(r *record) bool { return hopeless(&r.Event, epoch) }) {
		return false, nil
	}
	for _, r := range records {
		if certain(&r.Event, epoch) {
			continue
		}
		below, found, err := v.newest(ctx, r.key, records[0].Revision-1)
		if err != nil || !valid(&r.Event, epoch, live(r, below, found)) {
			return false, err
		}
	}
	return true, nil
}

// live is the key's live revision before a record, 0 for none. Without a version of its own, the key has what it
// inherits. The record itself says what that is, so the fold never reads another cluster.
func live(r *record, newest version, found bool) Revision {
	switch {
	case !found:
		return r.Inherits
	case newest.dead():
		return 0
	}
	return newest.revision
}

// Valid tells callers that read the log themselves whether an event is part of the history (invariant 13).
func (p *Projection) Valid(ctx context.Context, e *eventlog.Event) (bool, error) {
	v, err := p.AtLeast(ctx, 0) // any view knows the epoch
	if err != nil {
		return false, err
	}
	if e.Before == 0 && e.Left == 0 && certain(e, v.tail.epoch) {
		return true, nil
	}
	if v, err = p.AtLeast(ctx, e.Revision); err != nil {
		return false, err
	}
	return v.valid(ctx, e, e.Key.RowKey())
}

// ValidNow is Projection.Valid for callers that must not wait. known is false if the bucket or a local disk would have
// to be read. The view must have the event.
func (v *View) ValidNow(e *eventlog.Event, rowKey string) (isValid, known bool) {
	isValid, err := v.valid(ended, e, rowKey)
	return isValid, err == nil
}

// ended is the context for reads from memory only: a read that asks the bucket or a local disk fails at once.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// valid is Projection.Valid for an event that the view has. Above the floor the snapshot has every valid version
// (invariant 11).
func (v *View) valid(ctx context.Context, e *eventlog.Event, key string) (found bool, err error) {
	if r := v.tail.contains(e.Revision); r != nil && e.Revision > v.Applied() {
		return v.judge(ctx, r)
	}
	err = v.at(ctx, OneKey(key), e.Revision-1, func(v *View) error {
		var n version
		n, found, err = v.snap.newest(ctx, key, e.Revision, segment.Void)
		found = found && n.revision == e.Revision
		return err
	})
	return found, err
}

// fold folds a key's events of the tail, newest first, over the version below them. It returns the newest version,
// tombstones included. It calls below unless one of the events is valid whatever the state below is.
func (v *View) fold(ctx context.Context, chain []*record, below func() (version, bool, error)) (newest version, found bool, err error) {
	uncertain := chain
	for i, r := range chain {
		found = certain(&r.Event, v.tail.epoch)
		if r.append != nil {
			if found, err = v.judge(ctx, r); err != nil {
				return version{}, false, err
			}
		}
		if found {
			newest, uncertain = versionOf(r), chain[:i]
			break
		}
	}
	if !found {
		if newest, found, err = below(); err != nil {
			return version{}, false, err
		}
	}
	for _, r := range slices.Backward(uncertain) { // every append of several events among them is void
		if r.append == nil && valid(&r.Event, v.tail.epoch, live(r, newest, found)) {
			newest, found = versionOf(r), true
		}
	}
	return newest, found, nil
}
