package projection

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/segment"
)

const (
	// spillBytes is how many raw bytes of bodies one pair of segments gets before a commit begins another pair.
	spillBytes = 16 << 20
	// quietBarriers is how many barriers are worth a commit by themselves. Fewer barriers without another event write
	// no root, so a cell that is only read writes few roots.
	quietBarriers = 1000
	// maxInflation bounds the decompressed inline bodies, which every reader of the root holds, to maxInflation times
	// InlineBytes. Without this bound, bodies that compress to almost nothing would stay inline forever.
	maxInflation = 16
)

// Commit folds the events after the root's applied revision into a new root, and returns the revision that is then
// applied. Losing to another projector is not an error. A commit that has nothing to add writes nothing, and a few
// barriers alone count as nothing.
func (p *Projection) Commit(ctx context.Context) (applied Revision, err error) {
	for more := true; more; {
		var v *View
		if v, more, err = p.commit(ctx, false); err != nil {
			return applied, fmt.Errorf("commit: %w", err)
		}
		applied = v.Applied()

		// 8. Purge the log, as far as the root that is now in the bucket permits. A crash before or during this stage
		//    leaves events in the log that nobody needs. The next Commit purges them.
		if err := p.purge(ctx, v); err != nil {
			return applied, fmt.Errorf("commit: revision %d is applied, but: %w", applied, err)
		}
	}
	return applied, nil
}

// Seal folds all of the log into the root, also a few barriers at the log's end, and returns the log's last revision.
// Another log can then go on after that revision (eventlog.Log.Begin). The caller vouches that all writers have
// stopped. Seal purges nothing.
func (p *Projection) Seal(ctx context.Context) (last Revision, err error) {
	for more := true; more; {
		var v *View
		if v, more, err = p.commit(ctx, true); err != nil {
			return last, fmt.Errorf("fold the whole log: %w", err)
		}
		last = v.Applied()
	}
	return last, nil
}

// Found makes a cell's first root, before its log has events, and says whether it did. If the log has events and the
// bucket has no root, log and bucket do not belong to one cell, and Found fails with ErrNoRoot: otherwise two cells
// would purge that log.
func (p *Projection) Found(ctx context.Context) (made bool, err error) {
	_, err = p.swap(ctx, func(ctx context.Context, v *View) (*draft, error) {
		made = v.snap.etag == ""
		switch {
		case !made:
			return nil, nil
		case len(v.tail.records) > 0:
			return nil, fmt.Errorf("no '%s', and the log has events up to revision %d: %w", p.rootKey(), v.Revision(), ErrNoRoot)
		}
		if err := p.config.Bucket.List(ctx, p.config.Prefix+"/ckpt/", func(bucket.Attributes) error { return errRootLost }); err != nil {
			return nil, fmt.Errorf("no '%s': %w", p.rootKey(), err)
		}
		return v.snap.draft(), nil
	})
	if err != nil {
		return false, fmt.Errorf("make the first root: %w", err)
	}
	return made, nil
}

// commit does stages 1 to 7 of a commit, up to the new root. It leaves the purge, which only projectors may do, to
// Commit. more says that there were too many events for one commit. If all is set, commit also commits a few barriers
// without another event.
//
// Stages 2 to 6 make a draft, which nobody sees before stage 7. If one of them fails, swapRoot begins again with stage
// 1, or discards the objects that were written; Collect deletes the rest. If stage 7 fails, only stage 7 is tried
// again, also by the next commit.
func (p *Projection) commit(ctx context.Context, all bool) (v *View, more bool, err error) {
	goal := Revision(0) // the head when this commit began
	v, err = p.swap(ctx, func(ctx context.Context, v *View) (*draft, error) {
		// 1. Catch up. swap has caught up: v is the newest state that this process knows. The view's root may still be
		//    an old one; stage 7 finds that out.
		goal = cmp.Or(goal, v.tail.at.Revision)
		more = more || v.tail.bytes >= gatherBytes     // goal is below the head if an earlier attempt had too many
		if v.Applied() >= goal || !all && !v.dirty() { // another projector has committed it, or there is nothing to commit
			return nil, nil
		}
		// 7. Replace the root by the draft that stages 2 to 6 make: a conditional PUT, which swap sends (put in
		//    swap.go). This is the commit point. The root is replaced whole or not at all, and only if it is still the
		//    view's root.
		return p.advance(ctx, v)
	})
	return v, more, err
}

// advance makes the draft that contains everything in the view. It returns the draft even if it returns an error.
func (p *Projection) advance(ctx context.Context, v *View) (*draft, error) {
	next := v.snap.draft()

	// 2. Fold the tail onto the root's own records, and find out which events are void. Nothing is written. A crash
	//    here changes neither root nor log.
	records, err := v.foldTail(ctx, next)
	if err != nil {
		return next, err
	}

	// 3. Let time pass: clock, floor and purge point follow the log time of the events, but no further than this
	//    process's clock. Nothing is written, and nothing is purged before stage 8.
	p.age(next.root, time.Now())

	// 4. Spill the records to segments, unless the root can hold them. A crash here leaves segments that no root names.
	if err := p.spill(ctx, next, records); err != nil {
		return next, err
	}
	p.forgetEvents(next.root)

	// 5. Write a checkpoint if one is due: a copy of the draft. A crash here leaves a copy that no root names.
	if err := p.checkpoint(ctx, next); err != nil {
		return next, err
	}

	// 6. Write an index if the root cannot hold the footers of all segments. A crash here leaves an unnamed index.
	return next, p.writeIndex(ctx, next)
}

// dirty reports whether there is something to commit.
func (v *View) dirty() bool {
	return len(v.tail.records) > 0 || v.tail.at.Revision-v.Applied() >= quietBarriers
}

// foldTail applies the tail to the draft. It returns all records that no segment has: the root's own and the tail's.
func (v *View) foldTail(ctx context.Context, next *draft) ([]*record, error) {
	records := slices.Grow(slices.Clone(v.snap.records), len(v.tail.records))
	for _, r := range v.tail.records {
		folded, err := v.judged(ctx, r)
		if err != nil {
			return nil, fmt.Errorf("fold revision %d: %w", r.Revision, err)
		}
		if folded.void {
			next.voids = append(next.voids, folded)
		}
		if r.Trace != "" {
			next.traced = append(next.traced, r)
		}
		records = appendRun(records, next.Applied, folded)
		next.Applied = r.Revision
		next.bytes += len(r.Body)
	}
	if v.tail.at.Revision > next.Applied {
		barriers := &record{Event: eventlog.Event{Revision: v.tail.at.Revision, Time: time.Unix(0, v.tail.at.Time)}}
		records = appendRun(records, next.Applied, barriers)
	}
	next.Applied, next.AppliedID, next.AppliedTime = v.tail.at.Revision, v.tail.at.RequestID, v.tail.at.Time
	return records, nil
}

// judged returns a copy of a tail record with its validity.
func (v *View) judged(ctx context.Context, r *record) (*record, error) {
	c := *r
	isValid, err := v.judge(ctx, r)
	c.void, c.append = !isValid, nil
	return &c, err
}

// appendRun appends a record that follows the applied revision. The record's span also counts the barriers since that
// revision. Barriers at the end of the list are merged into the record, so that barriers alone never make the list
// longer.
func appendRun(records []*record, applied Revision, r *record) []*record {
	r.span = uint64(r.Revision - applied)
	last := len(records) - 1
	if last >= 0 && records[last].Op == eventlog.Barrier {
		r.span += records[last].span
		records = records[:last]
	}
	return append(records, r)
}

// spill puts the records where readers of the draft find them: inline in the root if they are few, else in segments.
// Very many records go into several pairs of segments, and the last portion may still be inline.
func (p *Projection) spill(ctx context.Context, next *draft, records []*record) error {
	next.Inline, next.records = nil, nil
	for len(records) > 0 {
		n, bodies := 0, 0
		for n < len(records) && bodies <= spillBytes {
			bodies += len(records[n].Body)
			n++
		}
		batch := records[:n]
		records = records[n:]
		file, sum, err := sealRecords(batch)
		if err != nil {
			return err
		}
		if len(records) == 0 && len(file) <= p.config.InlineBytes && bodies <= maxInflation*p.config.InlineBytes {
			next.Inline, next.records = file, batch
			return nil
		}
		if err := p.writeSegments(ctx, next, batch, file, sum); err != nil {
			return err
		}
	}
	return nil
}

// writeSegments writes the records to two segments and lists both in the draft. The caller gives the segment ordered by
// revision as a finished file, and writeRows makes the segment ordered by key.
func (p *Projection) writeSegments(ctx context.Context, next *draft, records []*record, file []byte, sum segment.Summary) error {
	sum.MinRevision = uint64(records[0].Revision) - records[0].span + 1
	events, err := p.create(ctx, "events", 0, file, sum)
	next.made = append(next.made, events.Key)
	if err != nil {
		return err
	}
	written("events", len(file))
	next.Events = append(next.Events[:len(next.Events):len(next.Events)], events)
	next.Spilled = records[len(records)-1].Revision
	return p.writeRows(ctx, next, keyOrdered(records))
}

// writeRows writes key-ordered rows, if there are any, to a segment, and lists that segment in the draft as the newest.
func (p *Projection) writeRows(ctx context.Context, next *draft, rows []*record) error {
	if len(rows) == 0 {
		return nil
	}
	w := segment.NewWriter(segment.Keys)
	for _, r := range rows {
		if err := w.Add(r.keyEntry()); err != nil {
			return err
		}
	}
	file, sum := w.Finish()
	keys, err := p.create(ctx, "seg/0", 0, file, sum)
	next.made = append(next.made, keys.Key)
	if err != nil {
		return err
	}
	written("rows", len(file))
	p.local(next.Forgets).keep(keys.Key, 0, file) // where the next fold reads it
	next.footers = append(next.footers, footerOf(keys, file))
	next.Segments = append([]segmentRef{keys}, next.Segments...) // newest first
	return nil
}

// create writes a segment under a new name. It returns the name even if it returns an error, because the segment may be
// there.
func (p *Projection) create(ctx context.Context, folder string, level uint8, file []byte, sum segment.Summary) (segmentRef, error) {
	ref := segmentRef{
		Key:  p.segmentKey(folder, Revision(sum.MinRevision), Revision(sum.MaxRevision)),
		Size: sum.Size, Footer: sum.Footer, Rows: sum.Rows, MinKey: []byte(sum.MinKey), MaxKey: []byte(sum.MaxKey),
		MinRevision: Revision(sum.MinRevision), MaxRevision: Revision(sum.MaxRevision), Level: level,
	}
	if _, err := p.config.Bucket.Create(ctx, ref.Key, file); err != nil {
		return ref, fmt.Errorf("write segment %s: %w", ref.Key, err)
	}
	return ref, nil
}

func (p *Projection) segmentKey(folder string, first, last Revision) string {
	return fmt.Sprintf("%s/%s/%020d-%020d-%s", p.config.Prefix, folder, first, last, rand.Text())
}
