package projection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/logplane/logplane/eventlog"
)

// GetAt returns the live row of the key as of the revision. Below the floor it reads a checkpoint, and the archived
// events of the key after it. It is ErrExpired if nothing covers the revision.
func (p *Projection) GetAt(ctx context.Context, key string, at Revision) (Row, bool, error) {
	v, err := p.past(ctx, at, func(k string) bool { return k == key })
	if err != nil {
		return Row{}, false, err
	}
	return v.Get(ctx, key, at)
}

// past returns a view that can be read at the revision. Below the floor it has only the wanted keys.
func (p *Projection) past(ctx context.Context, at Revision, wanted func(key string) bool) (*View, error) {
	v, err := p.AtLeast(ctx, at)
	if err != nil || at >= v.Floor() {
		return v, err
	}
	var past *View
	err = v.retry(ctx, func(v *View) error {
		past, err = v.rebuild(ctx, at, wanted)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read revision %d: %w", at, err)
	}
	return past, nil
}

// rebuild makes the view of a revision below the floor.
func (v *View) rebuild(ctx context.Context, at Revision, wanted func(key string) bool) (*View, error) {
	r, p := v.snap.root, v.p
	next := r.checkpointAt(at)
	if next < len(r.Checkpoints) { // a later checkpoint may reach back to the revision
		snap, err := p.pastSnapshot(ctx, r.Checkpoints[next])
		if err != nil {
			return nil, err
		}
		if snap.root.Floor <= at {
			return v.over(snap, emptyTail(snap.root)), nil
		}
	}
	base := &root{}
	if next > 0 {
		var err error
		base, err = p.checkpointed(ctx, r.Checkpoints[next-1])
		if err != nil {
			return nil, err
		}
	}
	if v.archiveStart() > base.Applied {
		return nil, fmt.Errorf("the floor is %d, and neither a checkpoint nor archived events cover it: %w", v.Floor(), ErrExpired)
	}
	snap, err := p.newSnapshot(base, "", nil)
	if err != nil {
		return nil, err
	}
	t := emptyTail(base)
	t.epoch = 0 // archived events were judged when they were committed
	var batch []eventlog.Event
	after := base.Applied
	err = v.archived(ctx, &after, at, func(e eventlog.Event) bool {
		if wanted(e.Key.RowKey()) {
			batch = append(batch, e)
			if len(batch) == 1024 {
				t, batch = t.extend(batch), batch[:0]
			}
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	t = t.extend(batch)
	t.last = at
	return v.over(snap, t), nil
}

func (v *View) over(snap *snapshot, t *tail) *View {
	return &View{p: v.p, snap: snap, tail: t, first: v.first, asked: v.asked, proven: true, superseded: make(chan struct{})}
}

// archiveStart is the revision after which all events up to the head are still kept.
func (v *View) archiveStart() Revision {
	events := v.snap.root.Events
	if len(events) > 0 {
		return events[0].MinRevision - 1
	}
	return v.snap.root.Spilled
}

// archived yields the events in (*after, upto], whatever the floor is, and moves after along. It leaves out void events
// and barriers. It is ErrExpired if the range begins below archiveStart.
func (v *View) archived(ctx context.Context, after *Revision, upto Revision, yield func(eventlog.Event) bool) error {
	start := v.archiveStart()
	if *after < start {
		return fmt.Errorf("events after %d are no longer kept, but those after %d: %w", *after, start, ErrExpired)
	}
	for _, part := range v.snap.events {
		if part.ref.MaxRevision <= *after || part.ref.MinRevision > upto {
			continue
		}
		if err := part.events(ctx, Keys{}, after, upto, yield); err != nil {
			return err
		}
	}
	if err := deliver(v.snap.records, Keys{}, after, upto, yield); err != nil {
		return err
	}
	return v.tailEvents(ctx, Keys{}, after, upto, yield)
}

// RevisionAt is the newest revision that the log had at the time, by the log's own clock. It is ErrExpired if nothing
// is kept from so long ago.
func (p *Projection) RevisionAt(ctx context.Context, t time.Time) (Revision, error) {
	v, err := p.Latest(ctx)
	if err != nil {
		return 0, err
	}
	nanos, start := t.UnixNano(), v.archiveStart()
	rev, known := start, start == 0 // before the first event there was nothing
	mark := func(r Revision, at int64) {
		if at <= nanos && r >= start && (!known || r > rev) {
			rev, known = r, true
		}
	}
	for _, m := range v.snap.root.Ring {
		mark(m.Revision, m.Time)
	}
	for _, c := range v.snap.root.Checkpoints {
		mark(c.Revision, c.Time)
	}
	after := rev
	err = v.retry(ctx, func(v *View) error {
		return v.archived(ctx, &after, v.Revision(), func(e eventlog.Event) bool {
			if e.Time.UnixNano() > nanos {
				return false
			}
			rev, known = e.Revision, true
			return true
		})
	})
	if err != nil && !errors.Is(err, errEnough) {
		return 0, fmt.Errorf("look for the revision at %s: %w", t.Format(time.RFC3339), err)
	}
	if !known {
		return 0, fmt.Errorf("nothing is kept from before %s: %w", t.Format(time.RFC3339), ErrExpired)
	}
	return rev, nil
}

// History returns every version of the key that is still kept, newest first, tombstones and void events included. It
// looks into the snapshot, the checkpoints and the archived events.
func (p *Projection) History(ctx context.Context, key string) (rows []Row, err error) {
	v, err := p.Latest(ctx)
	if err != nil {
		return nil, err
	}
	err = v.retry(ctx, func(v *View) error {
		rows, err = v.allHistory(ctx, key)
		return err
	})
	return rows, err
}

func (v *View) allHistory(ctx context.Context, key string) ([]Row, error) {
	rows, err := v.history(ctx, key)
	if err != nil {
		return nil, err
	}
	for _, c := range v.snap.root.Checkpoints {
		snap, err := v.p.pastSnapshot(ctx, c)
		if err != nil {
			return nil, err
		}
		older, err := v.over(snap, emptyTail(snap.root)).history(ctx, key)
		if err != nil {
			return nil, err
		}
		rows = append(rows, older...)
	}
	after := v.archiveStart()
	err = v.archived(ctx, &after, v.Floor(), func(e eventlog.Event) bool {
		if e.Key.RowKey() == key {
			rows = append(rows, newRecord(e).row())
		}
		return true
	})
	slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(b.Revision, a.Revision) })
	return slices.CompactFunc(rows, func(a, b Row) bool { return a.Revision == b.Revision }), err
}
