package projection

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sort"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/segment"
)

// Keys are the row keys from Start up to End, exclusive; an empty End is unbounded. The zero Keys are all keys.
type Keys struct{ Start, End string }

// OneKey returns the Keys that contain only this key.
func OneKey(key string) Keys { return Keys{key, key + "\x00"} }

// PrefixEnd is the first key after all keys with the prefix, which must not end with the byte 255.
func PrefixEnd(prefix string) string {
	end := []byte(prefix)
	end[len(end)-1]++
	return string(end)
}

func (k Keys) has(key string) bool { return key >= k.Start && (k.End == "" || key < k.End) }

// EventsOf yields every non-void event of the keys in (after, upto] in order. The view must have the revision upto.
// EventsOf fails with ErrExpired when part of the range is below the floor.
func (v *View) EventsOf(ctx context.Context, of Keys, after, upto Revision) iter.Seq2[eventlog.Event, error] {
	return func(yield func(eventlog.Event, error) bool) {
		b, err := v.p.branchOf(ctx, of)
		if err == nil {
			err = b.exists(after)
		}
		if err != nil {
			yield(eventlog.Event{}, err)
			return
		}
		// If a segment was collected, the floor is checked against the last event read. So a reader that was overtaken
		// gets an error, and never a stream with a hole.
		err = v.retry(ctx, func(v *View) error {
			return v.events(ctx, of, &after, upto, taker{yield: func(e eventlog.Event) bool { return yield(e, nil) }})
		})
		if err != nil && err != errEnough {
			yield(eventlog.Event{}, err)
		}
	}
}

// taker receives the events that are read.
type taker struct {
	// yield gets the events of the keys. If it returns false, reading ends.
	yield func(eventlog.Event) bool
	// looked is called for each event that was read, also for events of other keys, with the bytes that the event took.
	// If it returns false, reading ends. It is nil for readers that read everything.
	looked func(at Revision, bytes int) bool
}

// done calls looked for an event that was read. done returns false if reading is to end.
func (t taker) done(at Revision, bytes int) bool { return t.looked == nil || t.looked(at, bytes) }

// events takes the events in (*after, upto] and advances after.
func (v *View) events(ctx context.Context, of Keys, after *Revision, upto Revision, take taker) error {
	if *after >= upto {
		return nil
	}
	if v.past != nil { // a moment below the floor: the root has the events after the checkpoint
		if err := v.past.root.pastOf(of, *after); err != nil {
			return err
		}
		from := v.snap
		if upto > v.Applied() {
			from = v.past
		}
		return from.archived(ctx, of, after, upto, take)
	}
	if *after < v.Floor() {
		return fmt.Errorf("events after %d are below the floor %d: %w", *after, v.Floor(), ErrExpired)
	}
	return v.archived(ctx, of, after, upto, take)
}

// indexBytes bounds the decompressed rows that a partial reader reads to find revisions.
const indexBytes = 4 << 20

// byRows says whether the events of a segment can be found by rows. Rows have all events only above the floor
// (invariant 11).
func (s *snapshot) byRows(events *part) bool { return events.ref.MinRevision > s.root.Floor }

// revisionsOf returns the revisions in (after, upto] of the keys' events in segments above the floor, ascending. It
// returns nil if reading the rows for these revisions would take more than half of the bytes of the event segments. For
// readers that do not read everything (all is false), it also returns nil if the rows would take more than indexBytes.
func (s *snapshot) revisionsOf(ctx context.Context, of Keys, after, upto Revision, all bool) ([]Revision, error) {
	after = max(after, s.root.Floor)
	if of == (Keys{}) || upto <= after+1 {
		return nil, nil
	}
	most, raw := int64(0), int64(0)
	for _, part := range s.events {
		if part.ref.MaxRevision > after && part.ref.MinRevision <= upto && s.byRows(part) {
			most += part.ref.Size
		}
	}
	most /= 2
	var readers []*segment.Reader
	for _, r := range s.runs {
		for _, part := range r.overlapping(of.Start, of.End) {
			if part.ref.MaxRevision <= after || part.ref.MinRevision > upto {
				continue
			}
			reader, err := part.open(ctx)
			if err != nil {
				return nil, err
			}
			sealed, opened := reader.Bytes(of.Start, of.End)
			readers, most, raw = append(readers, reader), most-sealed, raw+opened
			if most < 0 || !all && raw > indexBytes {
				return nil, nil
			}
		}
	}
	revisions := []Revision{}
	for _, reader := range readers {
		for cursor := reader.Scan(of.Start, of.End); ; {
			e, ok, err := cursor.Next(ctx)
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
			rev := Revision(e.Revision)
			if rev > after && rev <= upto && e.Flags&segment.Void == 0 {
				revisions = append(revisions, rev)
			}
		}
	}
	slices.Sort(revisions)
	return revisions, nil
}

// events takes the segment's events of the keys in (*after, upto], and advances after. If revisions is given, it reads
// and decodes only the blocks that have these revisions.
func (r *part) events(ctx context.Context, of Keys, revisions []Revision, after *Revision, upto Revision, take taker) error {
	last, given := min(r.ref.MaxRevision, upto), revisions != nil
	if *after >= last { // an earlier segment has advanced 'after' so far
		return nil
	}
	search := func(rev Revision) int {
		return sort.Search(len(revisions), func(i int) bool { return revisions[i] > rev })
	}
	revisions = revisions[search(*after):]
	revisions = revisions[:search(last)]
	if given && len(revisions) == 0 {
		return follows(last, uint64(last-r.ref.MinRevision)+1, after)
	}
	reader, err := r.open(ctx)
	if err != nil {
		return err
	}
	from := *after + 1
	if given {
		from = revisions[0]
	}
	cursor, decoder := reader.Scan(segment.EventKey(uint64(from)), segment.EventKey(uint64(last)+1)), recordDecoder{}
	for !given || len(revisions) > 0 {
		if given {
			cursor.Skip(segment.EventKey(uint64(revisions[0]) - 1))
		}
		e, ok, err := cursor.Next(ctx)
		if err != nil || !ok && !given {
			return err
		}
		rev := Revision(e.Revision)
		if given && (!ok || rev != revisions[0]) {
			return fmt.Errorf("read segment %s: a row is of revision %d, which has no event there: %w", r.ref.Key, revisions[0], segment.ErrCorrupt)
		}
		key, span, err := eventKey(e)
		if err != nil {
			return fmt.Errorf("read segment %s: %w", r.ref.Key, err)
		}
		if given { // the revisions in between are not asked for
			span, revisions = uint64(rev-r.ref.MinRevision)+1, revisions[1:]
		}
		if err := follows(rev, span, after); err != nil {
			return err
		}
		if key != "" && e.Flags&segment.Void == 0 && of.has(key) {
			rec, err := decoder.event(e)
			if err != nil {
				return fmt.Errorf("read segment %s: %w", r.ref.Key, err)
			}
			if !take.yield(rec.Event) {
				return errEnough
			}
		}
		if !take.done(rev, len(e.Value)) {
			return errEnough
		}
	}
	return follows(last, uint64(last-r.ref.MinRevision)+1, after)
}

// deliver takes records, which must follow the revision 'after' without a hole.
func deliver(records []*record, of Keys, after *Revision, upto Revision, take taker) error {
	if *after >= upto {
		return nil
	}
	for _, r := range records[searchRevision(records, *after+1):] {
		if r.Revision > upto {
			return nil
		}
		if err := follows(r.Revision, r.span, after); err != nil {
			return err
		}
		if r.Op != eventlog.Barrier && !r.void && of.has(r.key) && !take.yield(r.Event) || !take.done(r.Revision, 0) {
			return errEnough
		}
	}
	return nil
}

// follows advances 'after' to a record that spans this many revisions. It fails if there is a hole before the record.
func follows(rev Revision, span uint64, after *Revision) error {
	if rev-Revision(span) > *after {
		return fmt.Errorf("read events: a hole between revisions %d and %d", *after, rev)
	}
	*after = rev
	return nil
}

func (v *View) tailEvents(ctx context.Context, of Keys, after *Revision, upto Revision, take taker) error {
	for _, r := range v.tailAfter(*after) {
		if r.Revision > upto {
			return nil
		}
		void := !of.has(r.key)
		if !void {
			judged, err := v.judged(ctx, r)
			if err != nil {
				return err
			}
			void = judged.void
		}
		*after = r.Revision
		if !void && !take.yield(r.Event) || !take.done(r.Revision, 0) {
			return errEnough
		}
	}
	return nil
}
