package projection

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	randv2 "math/rand/v2"
	"slices"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/segment"
)

const (
	// swapAttempts bounds how often a lost swap is tried again; the pause before doubles from swapPause.
	swapAttempts = 10
	swapPause    = 5 * time.Millisecond
	// spillBytes is how many raw bytes of events go into one pair of segments when a commit has very many.
	spillBytes = 16 << 20
	// quietBarriers is how many revisions without an event are left for a later commit: an idle cell that
	// is read writes no roots.
	quietBarriers = 1000
)

// Commit folds the events after the root's applied revision into a new root, and reports the applied revision
// afterwards. It is no error to lose to another projector. With nothing to add it writes nothing, and a few barriers
// alone count as nothing.
//
// The steps, and what a crash after each of them means:
//
//  1. Catch up (swap). The process may remember an old root. The swap of step 6 finds that out.
//  2. Fold the tail onto the root's inline rows, and mark void events (fold). So far nothing is written.
//  3. If the inline rows are full, write them to two segments, one ordered by key and one by revision (spill). A crash
//     leaves garbage: no root names the segments, and nobody uses their names again.
//  4. If a checkpoint is due, write a copy of the root to be (checkpoint). A crash leaves garbage.
//  5. If the root would hold too many footers, write them to an idx object (put, keepFooters). A crash leaves garbage.
//  6. Swap the root (put). This is the commit point: the root changes as a whole or not at all. If the bucket did not
//     answer, the next attempt reads the root: it is ours if it has our nonce.
//  7. Purge the log up to the revision that the new root permits (purge). A crash before leaves events in the log that
//     nobody needs; the next commit purges them.
func (p *Projection) Commit(ctx context.Context) (applied Revision, err error) {
	for {
		more, goal := false, Revision(0) // more than one commit holds; what this one was asked to apply
		v, err := p.swap(ctx, func(ctx context.Context, v *View) (*root, error) {
			if more = v.tail.bytes >= gatherBytes; goal == 0 {
				goal = v.Revision()
			} else if v.Applied() >= goal { // whoever won did it
				return nil, nil
			}
			return p.fold(ctx, v)
		})
		if err != nil {
			return 0, fmt.Errorf("commit: %w", err)
		}
		if err := p.purge(ctx, v); err != nil {
			return v.Applied(), fmt.Errorf("commit: revision %d is applied, but: %w", v.Applied(), err)
		}
		if !more {
			return v.Applied(), nil
		}
	}
}

// swap replaces the newest root by the one that change makes of it; change returns nil if there is nothing to do. After
// any failure swap reads the root again and calls change again with what it found.
func (p *Projection) swap(ctx context.Context, change func(context.Context, *View) (*root, error)) (*View, error) {
	if err := p.committing.enter(ctx); err != nil {
		return nil, err
	}
	defer p.committing.leave()
	var tried *root // the last root written, by whose nonce an unknown outcome is learned
	var failure error
	for attempt := range swapAttempts {
		if err := pause(ctx, attempt); err != nil {
			return nil, errors.Join(err, failure)
		}
		if attempt > 0 {
			snap, err := p.reload(ctx)
			if err == nil && tried != nil && bytes.Equal(snap.root.Nonce, tried.Nonce) {
				tried.won(ctx)
				return p.view.Load(), nil
			}
			if failure = cmp.Or(err, failure); err != nil {
				continue
			}
		}
		v, err := p.gather(ctx)
		if err == nil {
			var next *root
			if next, err = change(ctx, v); err == nil && next == nil {
				return v, nil
			}
			if err == nil {
				tried = next
				err = p.put(ctx, v.snap, next)
			}
		}
		if err == nil {
			tried.won(ctx)
			return p.view.Load(), nil
		}
		if p.failed() != nil || final(err) {
			return nil, err
		}
		failure = err
		slog.DebugContext(ctx, "the root was not swapped", "attempt", attempt, "error", err)
	}
	return nil, fmt.Errorf("swap the root: %d attempts: %w", swapAttempts, failure)
}

// final reports whether an error will be the same however often a swap is tried.
func final(err error) bool {
	return errors.Is(err, ErrNoRoot) || errors.Is(err, ErrHole) || errors.Is(err, ErrFuture) || errors.Is(err, errOvertaken)
}

// won counts and reports what is certain once the root is the bucket's.
func (r *root) won(ctx context.Context) {
	commits.Inc()
	foldedBytes.Add(float64(r.folded))
	for _, v := range r.voids {
		voidEvents.Inc()
		slog.WarnContext(ctx, "an event is void", "key", v.key, "revision", v.Revision, "base", v.Base,
			"precondition", v.Precondition, "request", v.RequestID)
	}
}

// pause waits before another attempt, with jitter so that projectors that collide part.
func pause(ctx context.Context, attempt int) error {
	if attempt == 0 {
		return ctx.Err()
	}
	limit := swapPause << min(attempt, 4)
	select {
	case <-time.After(randv2.N(limit)):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// put writes the next root over the snapshot's, and on success publishes it.
func (p *Projection) put(ctx context.Context, previous *snapshot, next *root) error {
	if err := p.keepFooters(ctx, previous, next); err != nil {
		return err
	}
	if err := next.check(); err != nil {
		return fmt.Errorf("refuse to write a wrong root: %w", err)
	}
	body, err := encodeRoot(next)
	if err != nil {
		return err
	}
	var etag string
	if previous.etag == "" {
		etag, err = p.config.Bucket.Create(ctx, p.rootKey(), body)
	} else {
		etag, err = p.config.Bucket.Replace(ctx, p.rootKey(), body, previous.etag)
	}
	if err != nil {
		return fmt.Errorf("write the root: %w", err)
	}
	written("root", len(body))
	snap, err := p.newSnapshot(next, etag, previous)
	if err != nil {
		return err
	}
	return p.install(snap)
}

// fold makes the root that has the view's tail applied.
func (p *Projection) fold(ctx context.Context, v *View) (*root, error) {
	if !v.dirty() {
		return nil, nil
	}
	next := v.snap.root.clone()
	records, raw := slices.Clone(v.snap.records), 0
	for _, r := range v.tail.records {
		folded, err := v.judged(ctx, r)
		if err != nil {
			return nil, fmt.Errorf("fold revision %d: %w", r.Revision, err)
		}
		if folded.void {
			next.voids = append(next.voids, folded)
		}
		records, next.folded = appendRun(records, next.Applied, folded), next.folded+len(r.Body)
		next.Applied = r.Revision
		if raw += len(r.Body); raw > spillBytes {
			if err := p.spill(ctx, next, records); err != nil {
				return nil, err
			}
			records, raw = nil, 0
		}
	}
	if last := v.tail.last; last > next.Applied {
		barriers := &record{Event: eventlog.Event{Revision: last, Time: time.Unix(0, v.tail.lastTime)}}
		records = appendRun(records, next.Applied, barriers)
	}
	next.Applied, next.AppliedID, next.AppliedTime = v.tail.last, v.tail.lastID, v.tail.lastTime
	p.age(next)
	if err := p.place(ctx, next, records); err != nil {
		return nil, err
	}
	p.forgetEvents(next)
	return next, p.checkpoint(ctx, next)
}

// dirty reports whether there is something to commit.
func (v *View) dirty() bool {
	return len(v.tail.records) > 0 || v.Revision()-v.Applied() >= quietBarriers
}

// judged returns a copy of a tail record with its validity.
func (v *View) judged(ctx context.Context, r *record) (*record, error) {
	c := *r
	isValid, err := v.valid(ctx, &r.Event, r.key)
	c.void = !isValid
	return &c, err
}

// appendRun appends a record that follows the applied revision; barriers between belong to it. A run of barriers
// at the end of what is there is joined to it, so that barriers alone never make the rows grow.
func appendRun(records []*record, applied Revision, r *record) []*record {
	r.span = uint64(r.Revision - applied)
	if n := len(records); n > 0 && records[n-1].Op == eventlog.Barrier {
		r.span += records[n-1].span
		records = records[:n-1]
	}
	return append(records, r)
}

// maxInflation is how many times larger than InlineBytes the bodies may be that are inline. Every process that reads the root
// holds them, and every commit writes them again: without a bound, bodies that compress to nothing would stay for good.
const maxInflation = 16

// place puts the records inline, or into segments if they are too many.
func (p *Projection) place(ctx context.Context, next *root, records []*record) error {
	bodies := 0
	for _, r := range records {
		bodies += len(r.Body)
	}
	if bodies > maxInflation*p.config.InlineBytes {
		return p.spill(ctx, next, records)
	}
	inline, _, err := sealRecords(records)
	if err != nil {
		return err
	}
	if len(inline) > p.config.InlineBytes {
		return p.spill(ctx, next, records)
	}
	next.Inline, next.records = inline, records
	return nil
}

// spill writes the records up to next.Applied as segments and lists them in the root.
func (p *Projection) spill(ctx context.Context, next *root, records []*record) error {
	file, sum, err := sealRecords(records)
	if err != nil {
		return err
	}
	sum.MinRevision = uint64(records[0].Revision) - records[0].span + 1
	events, err := p.create(ctx, "events", 0, file, sum)
	if err != nil {
		return err
	}
	written("events", len(file))
	next.Events = append(next.Events[:len(next.Events):len(next.Events)], events)
	next.Spilled, next.Inline, next.records = records[len(records)-1].Revision, nil, nil
	rows := keyOrdered(records)
	if len(rows) == 0 {
		return nil
	}
	w := segment.NewWriter(segment.Keys)
	for _, r := range rows {
		if err := w.Add(r.keyEntry()); err != nil {
			return err
		}
	}
	file, sum = w.Finish()
	keys, err := p.create(ctx, "seg/0", 0, file, sum)
	if err != nil {
		return err
	}
	next.written = append(next.written, footer{Key: keys.Key, Sealed: slices.Clone(file[sum.Size-sum.Footer:])})
	written("rows", len(file))
	next.Segments = append([]segmentRef{keys}, next.Segments...) // newest first
	return nil
}

// create writes a segment under a name that was never used before.
func (p *Projection) create(ctx context.Context, folder string, level uint8, file []byte, sum segment.Summary) (segmentRef, error) {
	ref := segmentRef{
		Key:  p.segmentKey(folder, Revision(sum.MinRevision), Revision(sum.MaxRevision)),
		Size: sum.Size, Footer: sum.Footer, Rows: sum.Rows, MinKey: []byte(sum.MinKey), MaxKey: []byte(sum.MaxKey),
		MinRevision: Revision(sum.MinRevision), MaxRevision: Revision(sum.MaxRevision), Level: level,
	}
	if _, err := p.config.Bucket.Create(ctx, ref.Key, file); err != nil {
		return segmentRef{}, fmt.Errorf("write segment %s: %w", ref.Key, err)
	}
	if p.folder != nil && folder != "events" { // the next fold looks into it
		p.folder.keep(ref.Key, 0, file)
	}
	return ref, nil
}

func (p *Projection) segmentKey(folder string, first, last Revision) string {
	return fmt.Sprintf("%s/%s/%020d-%020d-%s", p.config.Prefix, folder, first, last, rand.Text())
}

// age moves clock, floor and purge point by log time (invariant 12).
func (p *Projection) age(next *root) {
	retention, logRetention := int64(p.config.Retention), int64(p.config.LogRetention)
	before := next.Clock
	next.Clock = max(next.Clock, next.AppliedTime)
	if longest := max(retention, logRetention); longest > 0 {
		next.Ring = appendMark(next.Ring, mark{Revision: next.Applied, Time: next.Clock}, longest)
	}
	if retention > 0 {
		horizon := next.Clock - retention
		if before > 0 && next.Horizon > 0 {
			// One commit moves the floor by no more than the log time since the last: a wrong setting or a
			// leap of the log's clock cannot expire what a right one would have kept.
			horizon = min(horizon, next.Horizon+next.Clock-before)
		}
		next.Horizon = max(next.Horizon, horizon)
		next.Floor = max(next.Floor, newestUpTo(next.Ring, next.Horizon))
	}
	p.ageArchive(next, before)
	if logRetention > 0 {
		next.Purge = max(next.Purge, newestUpTo(next.Ring, next.Clock-logRetention))
	}
}

// appendMark adds a mark if the last one is old enough, and forgets all but one of those that are older than
// retention.
func appendMark(ring []mark, m mark, retention int64) []mark {
	ring = ring[:len(ring):len(ring)]
	if n := len(ring); n == 0 || m.Revision > ring[n-1].Revision && m.Time-ring[n-1].Time >= retention/ringMarks {
		ring = append(ring, m)
	}
	for len(ring) > 1 && ring[1].Time <= m.Time-2*retention {
		ring = ring[1:]
	}
	return ring
}

// ringMarks is how many marks a retention has.
const ringMarks = 128

// newestUpTo is the newest marked revision with at most the time, 0 if there is none.
func newestUpTo(ring []mark, nanos int64) Revision {
	rev := Revision(0)
	for _, m := range ring {
		if m.Time <= nanos {
			rev = cmp.Or(m.Revision, rev)
		}
	}
	return rev
}

// Retain raises the floor and the purge point at an operator's or a test's word, by log revision instead of age, and
// purges the log. Neither goes back; both must be at or below the applied revision. First the root says
// so, then the log is purged: a crash between leaves events in the log that nobody needs, and the next
// commit purges them.
func (p *Projection) Retain(ctx context.Context, floor, purge Revision) error {
	v, err := p.swap(ctx, func(_ context.Context, v *View) (*root, error) {
		r := v.snap.root
		if floor > r.Applied || purge > r.Applied {
			return nil, fmt.Errorf("floor %d and purge point %d must not be above applied %d: %w", floor, purge, r.Applied, ErrFuture)
		}
		if floor <= r.Floor && purge <= r.Purge {
			return nil, nil
		}
		next := r.clone()
		next.Floor, next.Purge = max(r.Floor, floor), max(r.Purge, purge)
		p.forgetEvents(next)
		return next, nil
	})
	if err == nil {
		err = p.purge(ctx, v)
	}
	if err != nil {
		return fmt.Errorf("retain from %d, purge up to %d: %w", floor, purge, err)
	}
	return nil
}

// purge removes from the log what the root permits to be purged.
func (p *Projection) purge(ctx context.Context, v *View) error {
	upto := v.snap.root.Purge
	if upto == 0 || v.first > upto {
		return nil
	}
	if err := p.purgeLog(ctx, upto); err != nil {
		return fmt.Errorf("purge the log up to revision %d: %w", upto, err)
	}
	return nil
}
