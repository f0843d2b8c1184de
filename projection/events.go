package projection

import (
	"context"
	"fmt"
	"iter"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/segment"
)

// Events yields every non-void event in (after, upto] in order, from event segments and then the log.
// It fails with ErrExpired when part of the range is below the floor.
func (p *Projection) Events(ctx context.Context, after, upto Revision) iter.Seq2[eventlog.Event, error] {
	return func(yield func(eventlog.Event, error) bool) {
		v, err := p.AtLeast(ctx, upto)
		if err == nil {
			// When a segment was collected, the floor is checked against the last event delivered: a reader that was
			// overtaken is told, and never given a stream with a hole.
			err = v.retry(ctx, func(v *View) error {
				return v.events(ctx, &after, upto, func(e eventlog.Event) bool { return yield(e, nil) })
			})
		}
		if err != nil && err != errEnough {
			yield(eventlog.Event{}, err)
		}
	}
}

// events yields the events in (*after, upto] and moves after along.
func (v *View) events(ctx context.Context, after *Revision, upto Revision, yield func(eventlog.Event) bool) error {
	if *after < v.Floor() {
		return fmt.Errorf("events after %d are below the floor %d: %w", *after, v.Floor(), ErrExpired)
	}
	for _, r := range v.snap.events {
		if r.ref.MaxRevision <= *after || r.ref.MinRevision > upto {
			continue
		}
		if err := r.events(ctx, after, upto, yield); err != nil {
			return err
		}
	}
	if err := deliver(v.snap.records, after, upto, yield); err != nil {
		return err
	}
	return v.tailEvents(ctx, after, upto, yield)
}

func (r *part) events(ctx context.Context, after *Revision, upto Revision, yield func(eventlog.Event) bool) error {
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
		rec, err := decoder.event(e)
		if err != nil {
			return fmt.Errorf("read segment %s: %w", r.ref.Key, err)
		}
		if err := deliver([]*record{rec}, after, upto, yield); err != nil {
			return err
		}
	}
}

// deliver yields records that must follow the revision without a hole.
func deliver(records []*record, after *Revision, upto Revision, yield func(eventlog.Event) bool) error {
	for _, r := range records[searchRevision(records, *after+1):] {
		if r.Revision > upto {
			return nil
		}
		if r.Revision-Revision(r.span) > *after {
			return fmt.Errorf("read events: a hole between revisions %d and %d", *after, r.Revision)
		}
		*after = r.Revision
		if r.Op != eventlog.Barrier && !r.void && !yield(r.Event) {
			return errEnough
		}
	}
	return nil
}

func (v *View) tailEvents(ctx context.Context, after *Revision, upto Revision, yield func(eventlog.Event) bool) error {
	records := v.tail.records
	for _, r := range records[searchRevision(records, max(*after, v.Applied())+1):] {
		if r.Revision > upto {
			return nil
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
