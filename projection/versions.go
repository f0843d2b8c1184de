package projection

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"

	"github.com/logplane/logplane/eventlog"
)

// visited is how many checkpoints one call of Versions looks into.
const visited = 16

// Versions returns the newest versions of a key below a revision, newest first, tombstones included and void events
// left out. It returns about as many as the limit, and may return fewer, or none, before the end: next is the revision
// below which a further call goes on, 0 if nothing older is kept.
//
// Each event names the one before it, so what has left the snapshot is found event by event. Only what was there before
// an object was made must be looked for, in the checkpoints and in the archived events between them.
func (p *Projection) Versions(ctx context.Context, key string, below Revision, limit int) (rows []Row, next Revision, err error) {
	v, err := p.Latest(ctx)
	if err != nil {
		return nil, 0, err
	}
	err = v.retry(ctx, func(v *View) error {
		s := versionSearch{view: v, key: key, below: below, limit: limit}
		err := s.run(ctx)
		rows, next = s.rows, s.below
		return err
	})
	return rows, next, err
}

// versionSearch looks for the versions of a key, from the newest to the oldest.
type versionSearch struct {
	view  *View
	key   string
	limit int
	rows  []Row
	// below is the revision below which everything is still to be looked for, 0 at the end.
	below Revision
	// before is the event before the last that was found, 0 if that does not name one.
	before Revision
}

func (s *versionSearch) run(ctx context.Context) error {
	if s.below > s.view.Floor() {
		rows, err := s.view.history(ctx, s.key)
		if err != nil {
			return err
		}
		if s.take(rows) {
			return nil
		}
		s.below = min(s.below, s.view.Floor()+1)
	}
	for visits := 0; s.below > 1; {
		found, err := s.linked(ctx)
		if err != nil {
			return err
		}
		if found {
			if len(s.rows) >= s.limit {
				return nil
			}
			continue
		}
		if visits == visited {
			return nil
		}
		visits++
		if err := s.older(ctx); err != nil || len(s.rows) >= s.limit {
			return err
		}
	}
	s.below = 0
	return nil
}

// take takes the rows below s.below, and reports whether there are enough.
func (s *versionSearch) take(rows []Row) bool {
	slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(b.Revision, a.Revision) })
	for _, r := range rows {
		if r.Void || r.Revision >= s.below {
			continue
		}
		if len(s.rows) >= s.limit {
			return true
		}
		s.rows = append(s.rows, r)
		s.below, s.before = r.Revision, r.Base
	}
	return len(s.rows) >= s.limit
}

// linked takes the event before the last one, if that is known and still kept.
func (s *versionSearch) linked(ctx context.Context) (found bool, err error) {
	at := s.before
	s.before = 0
	if at == 0 || at >= s.below {
		return false, nil
	}
	rows, err := s.view.eventAt(ctx, s.key, at)
	if err == nil && len(rows) == 0 {
		rows, err = s.checkpointed(ctx, s.view.snap.root.checkpointAt(at))
		rows = slices.DeleteFunc(rows, func(r Row) bool { return r.Revision != at })
	}
	if err != nil || len(rows) == 0 {
		return false, err
	}
	s.take(rows)
	return true, nil
}

// eventAt returns the key's event at a revision, none if the event is not kept.
func (v *View) eventAt(ctx context.Context, key string, at Revision) ([]Row, error) {
	after := at - 1
	if after < v.archiveStart() {
		return nil, nil
	}
	var rows []Row
	err := v.archived(ctx, Keys{key, key + "\x00"}, &after, at, func(e eventlog.Event) bool {
		rows = append(rows, newRecord(e).row())
		return true
	})
	return rows, err
}

// checkpointed returns what a checkpoint has of the key; there may be none with the index.
func (s *versionSearch) checkpointed(ctx context.Context, index int) ([]Row, error) {
	checkpoints := s.view.snap.root.Checkpoints
	if index < 0 || index >= len(checkpoints) {
		return nil, nil
	}
	snap, err := s.view.p.pastSnapshot(ctx, checkpoints[index])
	if err != nil {
		return nil, err
	}
	return s.view.over(snap, emptyTail(snap.root)).history(ctx, s.key)
}

// older takes what the next checkpoint below has of the key, or the archived events that no checkpoint reaches back to.
// If it finds nothing, it lowers s.below to what remains.
func (s *versionSearch) older(ctx context.Context) error {
	r := s.view.snap.root
	index := r.checkpointAt(s.below - 1)
	if index < len(r.Checkpoints) {
		snap, err := s.view.p.pastSnapshot(ctx, r.Checkpoints[index])
		if err != nil {
			return err
		}
		if snap.root.Floor+1 < s.below {
			rows, err := s.view.over(snap, emptyTail(snap.root)).history(ctx, s.key)
			if err != nil {
				return err
			}
			taken := len(s.rows)
			s.take(rows)
			if len(s.rows) == taken {
				s.below = snap.root.Floor + 1
			}
			return nil
		}
	}
	start := Revision(0)
	if index > 0 {
		start = r.Checkpoints[index-1].Revision
	}
	after := max(start, s.view.archiveStart())
	if after+1 < s.below { // else nothing is kept in between
		var rows []Row
		err := s.view.archived(ctx, Keys{s.key, s.key + "\x00"}, &after, s.below-1, func(e eventlog.Event) bool {
			rows = append(rows, newRecord(e).row())
			return true
		})
		if err != nil {
			return err
		}
		taken := len(s.rows)
		s.take(rows)
		if len(s.rows) > taken {
			return nil
		}
	}
	s.below = start + 1
	return nil
}

// Archived yields every event of the keys in (after, upto] that is not void, in order, wherever it is still kept: below
// the floor, too. It is ErrExpired if the range begins below what is kept, and fails if upto is above the head.
func (p *Projection) Archived(ctx context.Context, of Keys, after, upto Revision) iter.Seq2[eventlog.Event, error] {
	return func(yield func(eventlog.Event, error) bool) {
		v, err := p.AtLeast(ctx, upto)
		if err == nil {
			err = v.retry(ctx, func(v *View) error {
				return v.archived(ctx, of, &after, upto, func(e eventlog.Event) bool { return yield(e, nil) })
			})
		}
		if err != nil && !errors.Is(err, errEnough) {
			yield(eventlog.Event{}, err)
		}
	}
}

// ArchivedFrom is the revision after which Archived has all events.
func (p *Projection) ArchivedFrom(ctx context.Context) (Revision, error) {
	v, err := p.Latest(ctx)
	if err != nil {
		return 0, err
	}
	return v.archiveStart(), nil
}
