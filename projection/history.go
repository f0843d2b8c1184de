package projection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/logplane/logplane/eventlog"
)

// GetAt returns the live row of the key as of the revision, from wherever the row is still kept. It returns ErrExpired
// if the revision is no longer kept.
func (p *Projection) GetAt(ctx context.Context, key string, at Revision) (Row, bool, error) {
	v, err := p.AsOf(ctx, at)
	if err != nil {
		return Row{}, false, err
	}
	return v.Get(ctx, key, at)
}

// AsOf returns the view that ends with the revision. The view can be read at every revision from its own floor on. If
// the revision is below the floor of the newest view, the view is made of a checkpoint and, if needed, of archived
// events (docs/decisions/the-past.md). Then each read of a range of keys costs one pass over these events, and may fail
// with ErrTooMuch. AsOf fails with ErrExpired if the revision is no longer kept, and with ErrFuture if the revision
// does not come within 3 s.
func (p *Projection) AsOf(ctx context.Context, at Revision) (*View, error) {
	newest, err := p.AtLeast(ctx, at)
	past, err := readOf(ctx, newest, err, func(v *View) (*View, error) { return v.asOf(ctx, at) })
	if err != nil {
		return nil, fmt.Errorf("read revision %d: %w", at, err)
	}
	return past, nil
}

// EndOf is the last revision of the append that contains the revision. All events of an append take effect at once, so
// code that shows a moment shows the end of the moment's append (docs/decisions/the-past.md). EndOf fails as AsOf does.
func (p *Projection) EndOf(ctx context.Context, at Revision) (Revision, error) {
	newest, err := p.AtLeast(ctx, at)
	end, err := readOf(ctx, newest, err, func(v *View) (Revision, error) { return v.endOf(ctx, at) })
	if err != nil {
		return 0, fmt.Errorf("look for the end of the append of revision %d: %w", at, err)
	}
	return end, nil
}

func (v *View) endOf(ctx context.Context, at Revision) (Revision, error) {
	if at > v.Applied() {
		r := v.tail.contains(at)
		if r == nil || r.append == nil {
			return at, nil
		}
		valid, err := v.judge(ctx, r)
		if valid { // a void append has no end to go to, as in a segment
			at = r.append.records[len(r.append.records)-1].Revision
		}
		return at, err
	}
	if at < v.Floor() {
		base, err := v.baseOf(ctx, at)
		if err != nil {
			return 0, err
		}
		if at <= base.root.Applied { // the checkpoint has everything after its floor
			v = v.over(base)
		}
	}
	end := at
	_, _, err := v.eventFrom(ctx, at+1, min(v.Applied(), at+eventlog.MaxBatch), func(e eventlog.Event) bool {
		if e.Revision-indexInBatch(e.Revision, e.RequestID) > end { // another append begins
			return true
		}
		end = e.Revision
		return false
	})
	return end, err
}

// readOf returns the result of a read of a view, and retries the read as View.retry does. If failed is set, there is no
// view, and readOf returns failed.
func readOf[T any](ctx context.Context, v *View, failed error, read func(*View) (T, error)) (got T, err error) {
	if failed != nil {
		return got, failed
	}
	err = v.retry(ctx, func(v *View) error {
		got, err = read(v)
		return err
	})
	return got, err
}

// asOf returns the view that ends with a revision. v must be at least as new as the revision.
func (v *View) asOf(ctx context.Context, at Revision) (*View, error) {
	moment := v.upTo(at)
	if at < v.Floor() {
		base, err := v.baseOf(ctx, at)
		if err != nil {
			return nil, err
		}
		moment = v.over(base).upTo(at)
		moment.past = v.snap
	}
	if v.again != nil {
		moment.again = func(ctx context.Context, _ *View) (*View, error) {
			newest, err := v.again(ctx, v)
			if err != nil {
				return nil, err
			}
			return newest.asOf(ctx, at)
		}
	}
	return moment, nil
}

// upTo returns the view without the events after the revision. The view must have the revision.
func (v *View) upTo(at Revision) *View {
	shorter, t := *v, *v.tail
	t.records, t.at.Revision, shorter.head = t.records[:searchRevision(t.records, at+1)], at, at
	shorter.tail = &t
	return &shorter
}

// baseOf is the checkpoint from which a revision below the floor is read: the checkpoint that reaches back to the
// revision, else the checkpoint before the revision, onto which archived events are folded.
func (v *View) baseOf(ctx context.Context, at Revision) (*snapshot, error) {
	r := v.snap.root
	next := r.checkpointAt(at)
	if next < len(r.Checkpoints) {
		reaching, err := v.p.pastSnapshot(ctx, r.Checkpoints[next])
		if err != nil || reaching.root.Floor <= at {
			return reaching, err
		}
	}
	base, err := v.p.newSnapshot(&root{}, "", nil)
	if next > 0 {
		base, err = v.p.pastSnapshot(ctx, r.Checkpoints[next-1])
	}
	if err == nil && r.archiveStart() > base.root.Applied {
		err = fmt.Errorf("the floor is %d, and neither a checkpoint nor archived events cover it: %w", v.Floor(), ErrExpired)
	}
	return base, err
}

// checkpoint returns the view of a checkpoint.
func (v *View) checkpoint(ctx context.Context, c checkpoint) (*View, error) {
	snap, err := v.p.pastSnapshot(ctx, c)
	if err != nil {
		return nil, err
	}
	return v.over(snap), nil
}

// over is the view of a snapshot alone.
func (v *View) over(snap *snapshot) *View {
	alone := viewOf(snap)
	alone.first, alone.asked = v.first, v.asked
	return alone
}

// Of returns the view for callers that read many of the keys one by one: archived events are folded once for all of
// these keys. Only these keys may be read from the result, and only at the view's own revision.
func (v *View) Of(ctx context.Context, keys Keys) (of *View, err error) {
	err = v.at(ctx, keys, v.Revision(), func(v *View) error {
		of = v
		return nil
	})
	return of, err
}

// Folds says that archived events come after the view's snapshot. Then each range of keys that is read costs one pass
// over these events, unless the range's result is cached.
func (v *View) Folds() bool { return v.past != nil && v.folded == nil && v.Revision() > v.Applied() }

// with returns a view that can be read for the keys at a revision: if archived events come after the view's snapshot,
// the result has the archived events of the keys. A retry of the result has these events too.
func (v *View) with(ctx context.Context, keys Keys, at Revision) (*View, error) {
	if err := v.check(at); err != nil || v.past == nil || v.folded != nil {
		return v, err
	}
	if err := v.past.root.pastOf(keys, min(at, v.Applied())); err != nil || at <= v.Applied() {
		return v, err
	}
	id := foldedKeys{Keys{strings.Clone(keys.Start), strings.Clone(keys.End)}, v.Applied(), at, v.past.root.Forgets}
	events, known := v.p.folded.Get(id)
	if !known {
		var err error
		events, err = v.foldArchived(ctx, keys, at)
		if err != nil {
			return nil, err
		}
		v.p.folded.Add(id, "", events, int64(events.bytes))
	}
	whole := *v
	whole.tail, whole.folded = events, &id.Keys
	if v.again != nil {
		whole.again = func(ctx context.Context, _ *View) (*View, error) {
			renewed, err := v.again(ctx, v)
			if err == nil {
				renewed, err = renewed.with(ctx, id.Keys, at)
			}
			return renewed, err
		}
	}
	return &whole, nil
}

// foldShare is the part of the budget that the archived events of one read may take. However small the budget is, a
// read may hold leastFolded bytes, and all events of one key.
const (
	foldShare   = 4
	leastFolded = 64 << 10
)

// foldArchived keeps the newest archived event of each key as of a revision. It keeps copies, because a record that was
// read keeps its whole block in memory.
func (v *View) foldArchived(ctx context.Context, keys Keys, at Revision) (*tail, error) {
	newest, bytes, most := map[string]*record{}, int64(0), max(v.p.config.Budget.Limit()/foldShare, leastFolded)
	var decoder recordDecoder
	var failed error
	after := v.Applied()
	err := v.past.archived(ctx, keys, &after, at, taker{yield: func(e eventlog.Event) bool {
		var r *record
		r, failed = decoder.keyed(newRecord(e).keyEntry())
		if failed != nil {
			return false
		}
		r.append = decided // the event was judged when it was committed
		if before := newest[r.key]; before != nil {
			bytes -= int64(before.size())
		}
		newest[r.key] = r
		bytes += int64(r.size())
		if bytes > most && len(newest) > 1 {
			failed = ErrTooMuch
		}
		return failed == nil
	}})
	if err = cmp.Or(failed, err); err != nil {
		return nil, fmt.Errorf("fold the events from %d to %d: %w", v.Applied(), at, err)
	}
	folded := emptyTail(v.snap.root)
	ascending := func(a, b *record) int { return cmp.Compare(a.Revision, b.Revision) }
	for _, r := range slices.SortedFunc(maps.Values(newest), ascending) {
		folded.add(r)
	}
	folded.at = eventlog.Position{Revision: at}
	return folded, nil
}

// foldedKeys identifies a tail that was folded from the archived events in (base, at]. The events change when an object
// is forgotten, so forgets is part of the identity.
type foldedKeys struct {
	Keys
	base, at Revision
	forgets  uint64
}

// Nearest returns two revisions that AsOf certainly can read: the newest one below the given revision, 0 if there is
// none, and the oldest one at or above the given revision.
func (p *Projection) Nearest(ctx context.Context, at Revision) (older, newer Revision, err error) {
	v, err := p.Latest(ctx)
	if err != nil {
		return 0, 0, err
	}
	return v.nearest(ctx, at)
}

func (v *View) nearest(ctx context.Context, at Revision) (older, newer Revision, err error) {
	err = v.retry(ctx, func(v *View) error {
		r := v.snap.root
		next := r.checkpointAt(at)
		older, newer = 0, max(v.Floor(), at)
		if next > 0 {
			older = r.Checkpoints[next-1].Revision
		}
		if next < len(r.Checkpoints) {
			copied, err := v.p.checkpointed(ctx, r.Checkpoints[next])
			if err != nil {
				return err
			}
			newer = min(newer, max(copied.Floor, at))
		}
		return nil
	})
	return older, newer, err
}

// archiveStart is the revision after which all events up to the head are still kept.
func (v *View) archiveStart() Revision { return v.snap.root.archiveStart() }

// archived takes the events of the keys in (*after, upto], regardless of the floor, and advances after. It leaves out
// void events, barriers, and events that a rule has trimmed. It fails with ErrExpired if a range begins below
// archiveStart.
func (s *snapshot) archived(ctx context.Context, of Keys, after *Revision, upto Revision, take taker) error {
	if *after >= upto {
		return nil
	}
	if len(s.root.Trimmed) > 0 { // trimmed events may still be inline, or in a new segment
		all := take.yield
		take.yield = func(e eventlog.Event) bool { return e.Revision <= s.root.keptFrom(e.Key.RowKey()) || all(e) }
	}
	start := s.root.archiveStart()
	if *after < start {
		return fmt.Errorf("events after %d are no longer kept, but those after %d: %w", *after, start, ErrExpired)
	}
	revisions, err := s.revisionsOf(ctx, of, *after, upto, take.looked == nil)
	if err != nil {
		return err
	}
	for part, err := range s.archive(ctx, *after, upto) {
		if err != nil {
			return err
		}
		known := revisions
		if !s.byRows(part) {
			known = nil
		}
		if err := part.events(ctx, of, known, after, upto, take); err != nil {
			return err
		}
	}
	return deliver(s.records, of, after, upto, take)
}

// archived takes the snapshot's events, and then the tail's.
func (v *View) archived(ctx context.Context, of Keys, after *Revision, upto Revision, take taker) error {
	if err := v.snap.archived(ctx, of, after, upto, take); err != nil || *after >= upto {
		return err
	}
	return v.tailEvents(ctx, of, after, upto, take)
}

// RevisionAt is the newest revision that the log had at the time: no event up to it is later than the time. An event's
// time is ignored if this process's clock, or the known times of the revisions around the event, rule the time out.
// RevisionAt fails with ErrExpired if nothing is kept from so long ago.
func (p *Projection) RevisionAt(ctx context.Context, t time.Time) (Revision, error) {
	v, err := p.Latest(ctx)
	return readOf(ctx, v, err, func(v *View) (Revision, error) { return v.revisionAt(ctx, t) })
}

// inOrder is how many revisions are read one by one. A larger range is bisected: each step looks at one event.
const inOrder = 1024

func (v *View) revisionAt(ctx context.Context, t time.Time) (Revision, error) {
	nanos, start, latest := logTime(t), v.archiveStart(), time.Now().Add(skew).UnixNano()
	low, known := mark{Revision: start}, false // known: an event or mark is at or before the time
	beyond := mark{Revision: v.Revision() + 1, Time: latest}
	for _, m := range v.snap.root.marks(latest) {
		if m.Time > nanos && m.Revision < beyond.Revision {
			beyond = m
		} else if m.Time <= nanos && m.Revision >= low.Revision {
			low, known = m, true
		}
	}
	next := beyond.Revision // the first revision after the time
	for rev, end := low.Revision, next; rev+1 < end; {
		from, halve := rev+1, end-rev > inOrder
		if halve {
			from = rev + (end-rev)/2
		}
		e, found, err := v.eventFrom(ctx, from, end-1, func(e eventlog.Event) bool {
			at := e.Time.UnixNano()
			timed := at >= low.Time && at <= beyond.Time
			known = known || timed && at <= nanos
			return timed && (halve || at > nanos)
		})
		switch {
		case err != nil:
			return 0, fmt.Errorf("look for the revision at %s: %w", t.Format(time.RFC3339), err)
		case !found:
			end = from
		case e.Time.UnixNano() > nanos:
			end, next = from, e.Revision
		default:
			rev = e.Revision
		}
	}
	switch {
	case known, start == 0 && next > v.Revision():
		return next - 1, nil
	case start == 0: // before the first event there was nothing
		return 0, nil
	}
	return 0, fmt.Errorf("nothing is kept from before %s: %w", t.Format(time.RFC3339), ErrExpired)
}

// marks are the revisions whose times the root knows, in any order, without times later than latest.
func (r *root) marks(latest int64) []mark {
	marks := slices.Clone(r.Ring)
	if r.AppliedTime == r.Clock {
		marks = append(marks, mark{Revision: r.Applied, Time: r.Clock})
	}
	for _, c := range r.Checkpoints {
		marks = append(marks, mark{Revision: c.Revision, Time: c.Time})
	}
	return slices.DeleteFunc(marks, func(m mark) bool { return m.Time == 0 || m.Time > latest })
}

// logTime is a time as the log's clock counts it. A time outside the range of int64 nanoseconds is before or after
// everything.
func logTime(t time.Time) int64 {
	switch {
	case t.Before(time.Unix(0, 0)):
		return -1
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	}
	return t.UnixNano()
}

// TimeOf is the log's time of the newest event up to a revision, limited by the known times of the revisions around it
// (marks). TimeOf is the zero time if nothing is known.
func (p *Projection) TimeOf(ctx context.Context, at Revision) (time.Time, error) {
	v, err := p.AtLeast(ctx, at)
	nanos, err := readOf(ctx, v, err, func(v *View) (int64, error) { return v.timeOf(ctx, at) })
	if err != nil {
		return time.Time{}, fmt.Errorf("look for the time of revision %d: %w", at, err)
	}
	return unixTime(nanos), nil
}

func (v *View) timeOf(ctx context.Context, at Revision) (nanos int64, err error) {
	least, most := int64(0), time.Now().Add(skew).UnixNano()
	for _, m := range v.snap.root.marks(most) {
		if m.Revision <= at {
			least = max(least, m.Time)
		} else {
			most = min(most, m.Time)
		}
	}
	start := v.archiveStart()
	for width, end := Revision(16), at; end > start && nanos == 0; width *= 16 {
		from := max(start, end-min(end, width))
		_, _, err := v.eventFrom(ctx, from+1, end, func(e eventlog.Event) bool {
			nanos = e.Time.UnixNano()
			return false
		})
		if err != nil {
			return 0, err
		}
		end = from
	}
	return min(max(nanos, least), most), nil
}

// eventFrom returns the first event in [from, upto] that is not void and is wanted.
func (v *View) eventFrom(ctx context.Context, from, upto Revision, wanted func(eventlog.Event) bool) (first eventlog.Event, found bool, err error) {
	after := from - 1
	err = v.archived(ctx, Keys{}, &after, upto, taker{yield: func(e eventlog.Event) bool {
		first, found = e, wanted(e)
		return !found
	}})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return first, found, err
}

// History returns every version of the key that is still kept, newest first, tombstones and void events included. It
// looks into the snapshot, the checkpoints and the archived events.
func (p *Projection) History(ctx context.Context, key string) ([]Row, error) {
	v, err := p.Latest(ctx)
	return readOf(ctx, v, err, func(v *View) ([]Row, error) { return v.allHistory(ctx, key) })
}

func (v *View) allHistory(ctx context.Context, key string) (rows []Row, err error) {
	of := v
	for i := 0; ; i++ {
		for row, err := range of.versions(ctx, key, of.Revision()+1, 0) {
			if err != nil {
				return nil, err
			}
			rows = append(rows, row)
		}
		if i == len(v.snap.root.Checkpoints) {
			break
		}
		if of, err = v.checkpoint(ctx, v.snap.root.Checkpoints[i]); err != nil {
			return nil, err
		}
	}
	after := v.archiveStart()
	err = v.archived(ctx, OneKey(key), &after, v.Floor(), taker{yield: func(e eventlog.Event) bool {
		rows = append(rows, newRecord(e).row())
		return true
	}})
	slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(b.Revision, a.Revision) })
	return slices.CompactFunc(rows, func(a, b Row) bool { return a.Revision == b.Revision }), err
}
