package projection

import (
	"context"
	"fmt"
	"iter"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/segment"
)

// Keys are the row keys from Start up to End, without End; an empty End is unbounded. The zero Keys are all.
type Keys struct{ Start, End string }

// PrefixEnd is the first key after all keys with the prefix, which must not end with the byte 255.
func PrefixEnd(prefix string) string {
	end := []byte(prefix)
	end[len(end)-1]++
	return string(end)
}

func (k Keys) has(key string) bool { return key >= k.Start && (k.End == "" || key < k.End) }

// Events yields every non-void event in (after, upto] in order, from event segments and then the log. It fails with
// ErrExpired when part of the range is below the floor.
func (p *Projection) Events(ctx context.Context, after, upto Revision) iter.Seq2[eventlog.Event, error] {
	return p.EventsOf(ctx, Keys{}, after, upto)
}

// EventsOf is Events of some keys only. The others are passed over without being decoded.
func (p *Projection) EventsOf(ctx context.Context, of Keys, after, upto Revision) iter.Seq2[eventlog.Event, error] {
	return func(yield func(eventlog.Event, error) bool) {
		v, err := p.AtLeast(ctx, upto)
		if err == nil {
			for e, err := range v.EventsOf(ctx, of, after, upto) {
				if !yield(e, err) {
					return
				}
			}
			return
		}
		yield(eventlog.Event{}, err)
	}
}

// EventsOf is Projection.EventsOf up to a revision that the view has.
func (v *View) EventsOf(ctx context.Context, of Keys, after, upto Revision) iter.Seq2[eventlog.Event, error] {
	return func(yield func(eventlog.Event, error) bool) {
		// When a segment was collected, the floor is checked against the last event read: a reader that was overtaken
		// is told, and never given a stream with a hole.
		err := v.retry(ctx, func(v *View) error {
			return v.events(ctx, of, &after, upto, func(e eventlog.Event) bool { return yield(e, nil) })
		})
		if err != nil && err != errEnough {
			yield(eventlog.Event{}, err)
		}
	}
}

// events yields the events in (*after, upto] and moves after along.
func (v *View) events(ctx context.Context, of Keys, after *Revision, upto Revision, yield func(eventlog.Event) bool) error {
	if *after < v.Floor() {
		return fmt.Errorf("events after %d are below the floor %d: %w", *after, v.Floor(), ErrExpired)
	}
	for _, r := range v.snap.events {
		if r.ref.MaxRevision <= *after || r.ref.MinRevision > upto {
			continue
		}
		if err := r.events(ctx, of, after, upto, yield); err != nil {
			return err
		}
	}
	if err := deliver(v.snap.records, of, after, upto, yield); err != nil {
		return err
	}
	return v.tailEvents(ctx, of, after, upto, yield)
}

func (r *part) events(ctx context.Context, of Keys, after *Revision, upto Revision, yield func(eventlog.Event) bool) error {
	reader, err := r.open(ctx)
	if err != nil {
		return err
	}
	cursor, decoder := reader.Scan(segment.EventKey(uint64(*after)+1), segment.EventKey(uint64(upto)+1)), recordDecoder{}
	for {
		e, ok, err := cursor.Next(ctx)
		if err != nil || !ok {
			return err
		}
		key, span, err := eventKey(e)
		if err != nil {
			return fmt.Errorf("read segment %s: %w", r.ref.Key, err)
		}
		if err := follows(Revision(e.Revision), span, after); err != nil {
			return err
		}
		if key == "" || e.Flags&segment.Void != 0 || !of.has(key) {
			continue
		}
		rec, err := decoder.event(e)
		if err != nil {
			return fmt.Errorf("read segment %s: %w", r.ref.Key, err)
		}
		if !yield(rec.Event) {
			return errEnough
		}
	}
}

// deliver yields records that must follow the revision without a hole.
func deliver(records []*record, of Keys, after *Revision, upto Revision, yield func(eventlog.Event) bool) error {
	for _, r := range records[searchRevision(records, *after+1):] {
		if r.Revision > upto {
			return nil
		}
		if err := follows(r.Revision, r.span, after); err != nil {
			return err
		}
		if r.Op != eventlog.Barrier && !r.void && of.has(r.key) && !yield(r.Event) {
			return errEnough
		}
	}
	return nil
}

// follows moves after along to a record that stands for that many revisions, and must follow without a hole.
func follows(rev Revision, span uint64, after *Revision) error {
	if rev-Revision(span) > *after {
		return fmt.Errorf("read events: a hole between revisions %d and %d", *after, rev)
	}
	*after = rev
	return nil
}

func (v *View) tailEvents(ctx context.Context, of Keys, after *Revision, upto Revision, yield func(eventlog.Event) bool) error {
	records := v.tail.records
	for _, r := range records[searchRevision(records, max(*after, v.Applied())+1):] {
		if r.Revision > upto {
			return nil
		}
		if !of.has(r.key) {
			*after = r.Revision
			continue
		}
		judged, err := v.judged(ctx, r)
		if err != nil {
			return err
		}
		*after = r.Revision
		if !judged.void && !yield(r.Event) {
			return errEnough
		}
	}
	return nil
}
