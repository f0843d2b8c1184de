package projection

import (
	"context"
	"fmt"
	"slices"

	"github.com/logplane/logplane/projection/segment"
)

const (
	// manyEvents is how many event segments a root lists before neighbours among them are joined, and the oldest half
	// go to a page if there are none to be joined. A small cell goes without either.
	manyEvents = 512
	// joinAtLeast segments make one of at most joinedBytes.
	joinAtLeast = 16
	joinedBytes = 8 << 20
)

// neighbours are event segments to be joined, nil for none. They are of the archive: only requests of the past read it.
func (v *View) neighbours() run {
	if len(v.snap.events) < v.p.manyEvents {
		return nil
	}
	var picked run
	for _, part := range v.snap.events {
		if part.ref.MaxRevision > v.Floor() || len(picked) >= joinAtLeast {
			break
		}
		// It stays as it is, between those before it and after it.
		large := part.ref.Size > joinedBytes/2 || v.p.isBroken(run{part})
		if large || picked.bytes()+part.ref.Size > joinedBytes {
			picked = nil
		}
		if !large {
			picked = append(picked, part)
		}
	}
	if len(picked) < joinAtLeast {
		return nil
	}
	return picked
}

// joinEvents makes one event segment of neighbours, or moves the oldest to a page, and reports whether it did. A
// segment that another projector has joined or collected meanwhile is no error.
func (p *Projection) joinEvents(ctx context.Context) (bool, error) {
	v, err := p.atHand(ctx)
	if err != nil {
		return false, fmt.Errorf("join event segments: %w", err)
	}
	picked := v.neighbours()
	if picked == nil {
		return p.pageEvents(ctx, v)
	}
	return v.compacted(ctx, picked, p.join(ctx, picked))
}

func (p *Projection) join(ctx context.Context, picked run) error {
	writer := segment.NewWriter(segment.Events)
	for _, part := range picked {
		if err := part.copyTo(ctx, writer); err != nil {
			return err
		}
	}
	file, sum := writer.Finish()
	sum.MinRevision = uint64(picked[0].ref.MinRevision)
	_, err := p.swap(ctx, func(ctx context.Context, v *View) (*draft, error) {
		next := v.snap.draft()
		from, end, err := picked.position(next.Events)
		if err != nil {
			return nil, err
		}
		// Under a name of this root's generation: a collector takes older ones for garbage.
		joined, err := p.create(ctx, "events", 0, file, sum)
		next.made = append(next.made, joined.Key)
		if err != nil {
			return next, err
		}
		written("compaction", len(file))
		next.Events = slices.Concat(next.Events[:from], []segmentRef{joined}, next.Events[end:])
		return next, nil
	})
	return err
}

// copyTo writes all entries of the segment.
func (r *part) copyTo(ctx context.Context, w *segment.Writer) error {
	reader, err := r.open(ctx)
	if err != nil {
		return err
	}
	for cursor := reader.Through(nil).Scan("", ""); ; {
		e, ok, err := cursor.Next(ctx)
		if err != nil || !ok {
			return err
		}
		if err := w.Add(e); err != nil {
			return err
		}
	}
}
