package projection

import (
	"context"
	"fmt"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/segment"
)

// Verify reads the root and every byte of every segment that it names, and reports what is wrong: damage, rows out of
// order or out of the range the root gives, holes between events, and rows that the events contradict. It
// returns how many objects it read; err is set only if the root cannot be read. Reporting goes on until
// everything was seen.
func (p *Projection) Verify(ctx context.Context, report func(problem error)) (objects int, err error) {
	s, err := p.readRoot(ctx)
	if err != nil {
		return 0, err
	}
	for _, r := range s.runs {
		for _, part := range r {
			objects++
			if err := part.verify(ctx, nil); err != nil {
				report(err)
			}
		}
	}
	c := &checkedEvents{snap: s, last: s.root.Floor, report: report}
	for _, part := range s.events {
		objects++
		if err := part.verify(ctx, func(e segment.Entry) error { return c.entry(ctx, e) }); err != nil {
			report(err)
			c.last = max(c.last, part.ref.MaxRevision) // said once
		}
	}
	for _, r := range s.records {
		c.record(ctx, r)
	}
	if c.last != s.root.Applied {
		report(fmt.Errorf("events end at %d, not at the applied revision %d", c.last, s.root.Applied))
	}
	return objects, nil
}

// verify checks one segment.
func (r *part) verify(ctx context.Context, each func(segment.Entry) error) error {
	reader, err := r.openWith(ctx, nil)
	if err != nil {
		return err
	}
	if err := reader.Verify(ctx); err != nil {
		return err
	}
	sum := reader.Summary()
	if Revision(sum.MinRevision) < r.ref.MinRevision || Revision(sum.MaxRevision) > r.ref.MaxRevision {
		return fmt.Errorf("segment %s has revisions %d to %d, the root says %d to %d", r.ref.Key, sum.MinRevision, sum.MaxRevision, r.ref.MinRevision, r.ref.MaxRevision)
	}
	var decoder recordDecoder
	for cursor := reader.Scan("", ""); ; {
		e, ok, err := cursor.Next(ctx)
		if err != nil || !ok {
			return err
		}
		if each != nil {
			err = each(e)
		} else {
			_, err = decoder.keyed(e)
		}
		if err != nil {
			return fmt.Errorf("segment %s: %w", r.ref.Key, err)
		}
	}
}

// checkedEvents follows the events from the floor on.
type checkedEvents struct {
	snap    *snapshot
	last    Revision
	decoder recordDecoder
	report  func(error)
}

func (c *checkedEvents) entry(ctx context.Context, e segment.Entry) error {
	r, err := c.decoder.event(e)
	if err == nil {
		c.record(ctx, r)
	}
	return err
}

// record checks that an event follows the one before, and that the snapshot has its row.
func (c *checkedEvents) record(ctx context.Context, r *record) {
	if r.Revision <= c.last {
		return // the first segment may begin below the floor
	}
	if r.Revision-Revision(r.span) > c.last {
		c.report(fmt.Errorf("events have a hole between revisions %d and %d", c.last, r.Revision))
	}
	c.last = r.Revision
	if r.Op == eventlog.Barrier || r.void {
		return
	}
	row, ok, err := c.snap.newest(ctx, r.key, r.Revision, segment.Void)
	switch {
	case err != nil:
		c.report(err)
	case !ok || row.revision != r.Revision || row.flags != r.flags():
		c.report(fmt.Errorf("the event at revision %d has no row of %q", r.Revision, r.key))
	}
}
