package projection

import (
	"context"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/segment"
)

// version is one version of a key, wherever it was found.
type version struct {
	key      string
	revision Revision
	flags    segment.Flags
	// record is set if the version was found in the tail or inline, else entry.
	record *record
	entry  segment.Entry
}

func versionOf(r *record) version {
	return version{key: r.key, revision: r.Revision, flags: r.flags(), record: r}
}

func entryVersion(e segment.Entry) version {
	return version{key: e.Key, revision: Revision(e.Revision), flags: e.Flags, entry: e}
}

func (v *version) dead() bool { return v.flags&segment.Tombstone != 0 }

func (v *version) row(d *recordDecoder) (Row, error) {
	if v.record == nil {
		return d.row(v.entry)
	}
	return v.record.row(), nil
}

// valid is the fold's rule (invariant 13), and the same for tails, commits, watches and subscribers. epoch is the
// root's. live is the key's live revision before the event, 0 for none. The rule must never change: that would change
// what old events mean.
func valid(e *eventlog.Event, epoch uint64, live Revision) bool {
	if e.Epoch < epoch { // written across a fence (invariant 9)
		return false
	}
	switch e.Op {
	case eventlog.Added:
		return e.Base == 0 && live == 0
	case eventlog.Modified, eventlog.Deleted:
		// If the base is the precondition, the log has enforced it.
		return e.Base != 0 && (e.Base == e.Precondition || e.Base == live)
	default:
		return false
	}
}

// nowhere is no key's live revision.
const nowhere = ^Revision(0)

// certain reports that an event is valid whatever the state before it. Most events are, and cost no lookup.
func certain(e *eventlog.Event, epoch uint64) bool { return valid(e, epoch, nowhere) }

// hopeless reports that an event is void whatever the state before it: it would be void even over its own base.
func hopeless(e *eventlog.Event, epoch uint64) bool { return !valid(e, epoch, e.Base) }

// Valid reports whether an event of the log is part of the history (invariant 13), for those who read the log
// themselves. The state before the event is looked up only if it decides.
func (p *Projection) Valid(ctx context.Context, e *eventlog.Event) (bool, error) {
	v, err := p.AtLeast(ctx, 0) // any view knows the epoch
	if err != nil {
		return false, err
	}
	epoch := v.tail.epoch
	if certain(e, epoch) || hopeless(e, epoch) {
		return certain(e, epoch), nil
	}
	v, err = p.AtLeast(ctx, e.Revision-1)
	if err != nil {
		return false, err
	}
	return v.valid(ctx, e, e.Key.RowKey())
}

// ValidNow is Projection.Valid for who must not wait. It is not known if the bucket or a local disk would have to be
// read. The view must have the event.
func (v *View) ValidNow(e *eventlog.Event, rowKey string) (isValid, known bool) {
	isValid, err := v.valid(ended, e, rowKey)
	return isValid, err == nil
}

// ended is for reads of what is in memory: whatever asks the bucket, or reads a local disk, fails at once.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// valid is Projection.Valid for an event at most one revision above the view.
func (v *View) valid(ctx context.Context, e *eventlog.Event, key string) (bool, error) {
	epoch := v.tail.epoch
	if certain(e, epoch) || hopeless(e, epoch) {
		return certain(e, epoch), nil
	}
	below, found, err := v.newest(ctx, key, e.Revision-1)
	if err != nil {
		return false, err
	}
	live := below.revision
	if !found || below.dead() {
		live = 0
	}
	return valid(e, epoch, live), nil
}

// fold returns the newest version of a key at the end of its chain, as foldOver does.
func (t *tail) fold(chain []*record, below func() (version, bool, error)) (version, bool, error) {
	if t.moment > 0 && len(chain) > 0 {
		return versionOf(chain[0]), true, nil
	}
	return foldOver(chain, t.epoch, below)
}

// foldOver folds a key's events, newest first, over what is below them. It returns the newest version, tombstones
// included. below is called only if no event of the chain is certain.
func foldOver(chain []*record, epoch uint64, below func() (version, bool, error)) (version, bool, error) {
	anchor := 0
	for anchor < len(chain) && !certain(&chain[anchor].Event, epoch) {
		anchor++
	}
	var newest version
	found := anchor < len(chain)
	if found {
		newest = versionOf(chain[anchor])
	} else {
		var err error
		newest, found, err = below()
		if err != nil {
			return version{}, false, err
		}
	}
	for i := anchor - 1; i >= 0; i-- {
		live := newest.revision
		if !found || newest.dead() {
			live = 0
		}
		if valid(&chain[i].Event, epoch, live) {
			newest, found = versionOf(chain[i]), true
		}
	}
	return newest, found, nil
}
