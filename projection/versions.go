package projection

import (
	"context"
	"errors"
	"iter"
	"slices"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/segment"
)

const (
	// visited is how many checkpoints one call of Versions reads at most.
	visited = 16
	// versionBytes is how many bytes of versions one call returns; only the last version may exceed it.
	versionBytes = 4 << 20
	// gapEvents and gapBytes bound one read of archived events to which no checkpoint reaches back. Such events are
	// read from old to new, but needed from new to old.
	gapEvents = 1024
	gapBytes  = versionBytes
	// visitBytes is how many bytes a visit to a checkpoint reports to the function 'looked': about a block.
	visitBytes = 64 << 10
)

// Versions returns the newest versions of a key below a revision, newest first, tombstones included and void events
// left out. It returns about as many as the limit, but may return fewer, or none, before the end. next is the revision
// below which a further call continues; 0 if nothing older is kept. The call holds some MiB, however large the versions
// are.
//
// docs/decisions/the-past.md says how the versions are found. looked is called for each read, as by Archived. It may
// be nil.
func (p *Projection) Versions(ctx context.Context, key string, below Revision, limit int,
	looked func(at Revision, bytes int) bool) (rows []Row, next Revision, err error) {
	v, err := p.Latest(ctx)
	if err != nil {
		return nil, 0, err
	}
	b, err := p.branchOf(ctx, OneKey(key))
	if err != nil {
		return nil, 0, err
	}
	err = v.retry(ctx, func(v *View) error {
		s := versionSearch{view: v, branch: b, key: key, below: below, limit: limit, looked: looked}
		err := s.run(ctx)
		if err == nil && s.below == 0 && b != nil && b.At < below {
			err = s.inherit(ctx)
		}
		rows, next = s.rows, s.below
		return err
	})
	return rows, next, err
}

// versionSearch looks for the versions of a key, from the newest to the oldest.
type versionSearch struct {
	view *View
	// branch says where the key's cluster begins.
	branch *Branch
	key    string
	limit  int
	// looked is the argument of Versions. stopped says that looked has returned false.
	looked  func(at Revision, bytes int) bool
	stopped bool
	rows    []Row
	bytes   int // of the rows
	// below is the revision below which versions are still to be found; 0 at the end.
	below Revision
	// before is the revision of the key's event before the last event found; 0 if the last event found does not name
	// it.
	before Revision
}

func (s *versionSearch) run(ctx context.Context) error {
	if s.below > s.view.Floor() {
		if err := s.takeFrom(ctx, s.view); err != nil || s.enough() {
			return err
		}
		s.below = min(s.below, s.view.Floor()+1)
	}
	kept := max(1, s.view.snap.root.keptFrom(s.key)) // older versions are found from the checkpoint at this revision
	if s.branch != nil {
		kept = max(kept, s.branch.At) // the cluster began later
	}
	for visits := 0; s.below > kept && !s.enough(); {
		found, err := s.linked(ctx)
		if err != nil {
			return err
		}
		if found {
			continue
		}
		if visits == visited {
			return nil
		}
		visits++
		at := s.below
		if err := s.older(ctx); err != nil {
			return err
		}
		s.look(at, visitBytes) // a visit is never cut short: otherwise it could pass over versions
	}
	if s.below <= kept {
		s.below = 0
	}
	return nil
}

// inherit takes the version that the key inherits, after all of its own. What the source had before is the source's.
func (s *versionSearch) inherit(ctx context.Context) error {
	from, err := s.view.inheritance(ctx, s.branch, s.key, s.view.Revision())
	if err != nil {
		return err
	}
	n, found, err := from.newest(ctx, s.key)
	if err != nil || !found {
		return err
	}
	row, err := n.row(&recordDecoder{})
	if err == nil {
		s.rows = append(s.rows, row.Clone())
	}
	return err
}

func (s *versionSearch) enough() bool {
	return s.stopped || len(s.rows) >= s.limit || s.bytes >= versionBytes
}

// look reports a read to the function 'looked'.
func (s *versionSearch) look(at Revision, bytes int) {
	if s.looked != nil && !s.looked(at, bytes) {
		s.stopped = true
	}
}

// take takes a copy of the next row. Rows that lie far apart would otherwise each keep a whole block in memory.
func (s *versionSearch) take(r Row) {
	s.rows = append(s.rows, r.Clone())
	s.bytes += len(r.Value)
	s.below, s.before = r.Revision, r.Base
	s.look(r.Revision, len(r.Value))
}

// takeFrom takes the versions that this view alone has below s.below, until there are enough. It ends with the newest
// version at or below the view's floor, because older ones may be incomplete.
func (s *versionSearch) takeFrom(ctx context.Context, v *View) error {
	if s.enough() {
		return nil
	}
	for row, err := range v.versions(ctx, s.key, s.below, segment.Void) {
		if err != nil {
			return err
		}
		s.take(row)
		if s.enough() || row.Revision <= v.Floor() {
			break
		}
	}
	return nil
}

// versions yields the versions of the key that this view alone has below a revision, newest first. It leaves out
// versions with one of the flags in skip. A key may have very many versions, so versions reads only as the caller
// consumes them.
func (v *View) versions(ctx context.Context, key string, below Revision, skip segment.Flags) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		upto := min(below-1, v.Revision())
		for _, r := range v.tail.chain(key, v.Applied(), upto) {
			judged, err := v.judged(ctx, r)
			if err != nil {
				yield(Row{}, err)
				return
			}
			if judged.flags()&skip == 0 && !yield(judged.row(), nil) {
				return
			}
		}
		heads := []*head{{at: upto, skip: skip, source: newInlineSource(v.snap.inline, key, key+"\x00")}}
		for _, r := range v.snap.runs {
			parts := slices.Clone(r.overlapping(key, key+"\x00"))
			parts = slices.DeleteFunc(parts, func(p *part) bool { return p.ref.MinRevision > upto })
			if len(parts) > 0 {
				heads = append(heads, &head{at: upto, skip: skip, source: &runSource{parts: parts, start: key, end: key + "\x00"}})
			}
		}
		err := firstOfAll(ctx, heads)
		var decoder recordDecoder
		for _, h := range heads { // newest first, as in merged
			for err == nil && h.ok {
				var row Row
				if row, err = h.current.row(&decoder); err == nil {
					if !yield(row, nil) {
						return
					}
					err = h.advance(ctx)
				}
			}
		}
		if err != nil {
			yield(Row{}, err)
		}
	}
}

// linked takes the event before the last one, if it is known and still kept.
func (s *versionSearch) linked(ctx context.Context) (found bool, err error) {
	at := s.before
	s.before = 0
	if at == 0 || at >= s.below {
		return false, nil
	}
	row, found, err := s.view.eventAt(ctx, s.key, at)
	if err == nil && !found {
		row, found, err = s.checkpointed(ctx, at)
	}
	if found && err == nil {
		s.take(row)
	}
	return found, err
}

// EventAt returns the version that the key's event at a revision made, a tombstone for a deletion; false if the event
// is no longer kept. It reads one event, where GetAt below the floor may have to read many.
func (p *Projection) EventAt(ctx context.Context, key string, at Revision) (row Row, found bool, err error) {
	v, err := p.AtLeast(ctx, at)
	if err != nil {
		return Row{}, false, err
	}
	err = v.retry(ctx, func(v *View) error {
		row, found, err = v.eventAt(ctx, key, at)
		return err
	})
	return row, found, err
}

// eventAt returns the key's event at a revision, if it is kept.
func (v *View) eventAt(ctx context.Context, key string, at Revision) (row Row, found bool, err error) {
	after := at - 1
	if after < v.archiveStart() {
		return Row{}, false, nil
	}
	err = v.archived(ctx, OneKey(key), &after, at, taker{yield: func(e eventlog.Event) bool {
		row, found = newRecord(e).row(), true
		return true
	}})
	return row, found, err
}

// checkpointed returns the key's version at a revision, if the checkpoint at or above the revision has it.
func (s *versionSearch) checkpointed(ctx context.Context, at Revision) (Row, bool, error) {
	checkpoints := s.view.snap.root.Checkpoints
	index := s.view.snap.root.checkpointAt(at)
	if index == len(checkpoints) {
		return Row{}, false, nil
	}
	past, err := s.view.checkpoint(ctx, checkpoints[index])
	if err != nil {
		return Row{}, false, err
	}
	for row, err := range past.versions(ctx, s.key, at+1, segment.Void) {
		return row, row.Revision == at, err
	}
	return Row{}, false, nil
}

// older takes the key's versions of the next older checkpoint, or the archived events to which no checkpoint reaches
// back. If it finds nothing, it lowers s.below to the range that remains.
func (s *versionSearch) older(ctx context.Context) error {
	r := s.view.snap.root
	index := r.checkpointAt(s.below - 1)
	if index < len(r.Checkpoints) {
		past, err := s.view.checkpoint(ctx, r.Checkpoints[index])
		if err != nil {
			return err
		}
		if past.Floor() < s.below {
			taken, above := len(s.rows), past.Floor()+1 < s.below
			err := s.takeFrom(ctx, past)
			if err != nil || len(s.rows) > taken {
				return err
			}
			s.below = past.Floor() + 1
			if above {
				return nil
			}
		}
	}
	start := Revision(0)
	if index > 0 {
		start = r.Checkpoints[index-1].Revision
	}
	after := max(start, s.view.archiveStart())
	if after+1 >= s.below { // nothing is kept in between
		s.below = start + 1
		return nil
	}
	return s.gap(ctx, max(after, s.below-1-min(s.below-1, gapEvents)))
}

// gap takes the archived events after a revision. If these are too many to read, it takes only the newest.
func (s *versionSearch) gap(ctx context.Context, after Revision) error {
	var last []Row // the last events, at most as many as are wanted
	size, read, from := s.bytes, 0, after
	err := s.view.archived(ctx, OneKey(s.key), &from, s.below-1, taker{func(e eventlog.Event) bool {
		last = append(last, newRecord(e).row().Clone())
		size += len(e.Body)
		for len(last) > 1 && (len(last) > s.limit-len(s.rows) || size-len(last[0].Value) >= versionBytes) {
			size -= len(last[0].Value)
			last = slices.Delete(last, 0, 1)
		}
		return true
	}, func(at Revision, bytes int) bool {
		s.look(at, bytes)
		read += bytes
		return read < gapBytes || after+1 == s.below-1
	}})
	if errors.Is(err, errEnough) {
		return s.gap(ctx, after+(s.below-after)/2)
	}
	if err != nil {
		return err
	}
	for _, row := range slices.Backward(last) {
		s.take(row)
	}
	if len(last) == 0 {
		s.below = after + 1
	}
	return nil
}

// Archived yields every non-void event of the keys in (after, upto], in order, wherever it is still kept, also below
// the floor. Before a range in which a rule has trimmed events, it yields ErrTrimmed without an event, and continues.
// It fails with ErrExpired if the range begins before all kept events. It also fails if upto is above the head.
//
// looked may be nil. Otherwise it is called for each event that was read, also for events of other keys, with the bytes
// that the event took. If looked returns false, Archived ends; it has then yielded everything up to that event.
func (p *Projection) Archived(ctx context.Context, of Keys, after, upto Revision,
	looked func(at Revision, bytes int) bool) iter.Seq2[eventlog.Event, error] {
	return func(yield func(eventlog.Event, error) bool) {
		said := map[trim]bool{}
		v, err := p.AtLeast(ctx, upto)
		if err == nil {
			err = v.retry(ctx, func(v *View) error {
				for _, t := range v.snap.root.Trimmed {
					if after < t.Revision && overlaps(t.Prefix, of) && !said[t] {
						said[t] = true
						if !yield(eventlog.Event{}, t.missing()) {
							return errEnough
						}
					}
				}
				return v.archived(ctx, of, &after, upto, taker{func(e eventlog.Event) bool { return yield(e, nil) }, looked})
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
