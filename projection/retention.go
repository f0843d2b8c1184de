package projection

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// skew is how far the clocks of the log, the bucket and a process may differ without being considered wrong.
const skew = time.Minute

// age moves clock, floor and purge point by log time (invariant 12). Log time that is ahead of this process's clock
// counts as now. A mark (a revision with its log time) keeps the log's time unchanged, so that a revision counts as old
// only if it is old by both clocks.
func (p *Projection) age(next *root, now time.Time) {
	before, logged := next.Clock, next.AppliedTime
	if logged > now.Add(skew).UnixNano() {
		logged = now.UnixNano()
	}
	next.Clock = max(before, logged)
	passed := next.Clock - before
	retention, logRetention := int64(p.config.Retention), int64(p.config.LogRetention)
	longest := max(retention, logRetention)
	if longest > 0 && next.AppliedTime >= next.Clock { // else the log's time went back, and proves nothing
		next.Ring = appendMark(next.Ring, mark{Revision: next.Applied, Time: next.AppliedTime}, next.Clock, longest)
	}
	if retention > 0 {
		next.Horizon = aged(next.Horizon, next.Clock-retention, passed)
		next.Floor = max(next.Floor, newestUpTo(next.Ring, next.Horizon))
	}
	if longest := max(int64(p.config.History), retention); longest > 0 {
		next.Archive = aged(next.Archive, next.Clock-longest, passed)
	}
	if logRetention > 0 {
		next.Purge = max(next.Purge, newestUpTo(next.Ring, next.Clock-logRetention))
	}
}

// aged moves the end of a kept period towards the time that the setting wants, but by at most twice the log time since
// the last root. So a process with a wrong setting expires nothing at once.
func aged(end, wanted, passed int64) int64 {
	if end > 0 {
		wanted = min(wanted, end+2*passed)
	}
	return max(end, wanted)
}

// SetClockBack sets the root's clock back if it is ahead of both the log's clock and this process's clock, and returns
// by how much. While the root's clock is ahead, nothing expires, no checkpoint is made and no garbage is collected.
// Setting the clock back expires nothing. The change is one swap of the root: a crash leaves the old root or the new
// one.
func (p *Projection) SetClockBack(ctx context.Context) (by time.Duration, err error) {
	if err := p.config.Log.Outdate(ctx); err != nil { // every barrier has the log's time
		return 0, err
	}
	_, err = p.swap(ctx, func(_ context.Context, v *View) (*draft, error) {
		next := v.snap.draft()
		if by = next.setBack(v.tail.at.Time, time.Now()); by == 0 {
			return nil, nil
		}
		return next, nil
	})
	return by, err
}

// setBack sets the clock back to the later of the log's time and this process's, and returns by how much. A checkpoint
// with a future time gets the new clock's time. The next commit drops future marks.
func (r *root) setBack(logged int64, now time.Time) time.Duration {
	clock := max(logged, now.UnixNano())
	by := r.Clock - clock
	if by <= 0 {
		return 0
	}
	r.Clock, r.Swept = clock, min(r.Swept, clock)
	r.Horizon, r.Archive = min(r.Horizon, clock-1), min(r.Archive, clock-2) // so no checkpoint of now is before either
	r.Checkpoints = slices.Clone(r.Checkpoints)
	for i := range r.Checkpoints {
		r.Checkpoints[i].Time = min(r.Checkpoints[i].Time, clock)
	}
	return time.Duration(by)
}

// appendMark adds a mark if the last one is old enough. It drops marks with a later time, because such a time was
// wrong; the next mark stands for the revisions of the dropped marks too. It keeps one of the marks that are older than
// twice the retention.
func appendMark(ring []mark, m mark, clock, retention int64) []mark {
	for len(ring) > 0 && ring[len(ring)-1].Time > m.Time {
		ring = ring[:len(ring)-1]
	}
	ring = ring[:len(ring):len(ring)]
	n := len(ring)
	if n == 0 || m.Revision > ring[n-1].Revision && m.Time-ring[n-1].Time >= retention/ringMarks {
		ring = append(ring, m)
	}
	for len(ring) > 1 && ring[1].Time <= clock-2*retention {
		ring = ring[1:]
	}
	return ring
}

// ringMarks is how many marks a retention period has.
const ringMarks = 128

// newestUpTo is the newest revision with a mark at or before the time; 0 if there is none.
func newestUpTo(ring []mark, nanos int64) (rev Revision) {
	for _, m := range ring {
		if m.Time <= nanos {
			rev = m.Revision
		}
	}
	return rev
}

// archiveBase is the revision of the checkpoint onto which the archive's oldest events are folded; 0 if there is none.
func (r *root) archiveBase() (base Revision) {
	if r.Archive >= r.Horizon {
		return 0
	}
	for _, c := range r.Checkpoints {
		if c.Time <= r.Archive {
			base = c.Revision
		}
	}
	return base
}

// forgetEvents drops the event segments below the floor. If there is an archive, it drops only the event segments below
// the archive's base, because later revisions can be folded from there.
func (p *Projection) forgetEvents(next *root) {
	upto := next.Floor
	if p.config.History > 0 || next.Archive < next.Horizon {
		upto = min(upto, next.archiveBase())
	}
	next.dropEvents(upto)
}

// Retain raises the floor and the purge point to the given revisions, regardless of age, and purges the log. Forget and
// tests use it. Neither floor nor purge point goes back, and both must be at or below the applied revision.
//
// The root is swapped first, and then the log is purged. A crash in between leaves events in the log that nobody needs.
// The next commit purges them.
func (p *Projection) Retain(ctx context.Context, floor, purge Revision) error {
	v, err := p.swap(ctx, func(_ context.Context, v *View) (*draft, error) {
		r := v.snap.root
		if floor > r.Applied || purge > r.Applied {
			return nil, fmt.Errorf("floor %d and purge point %d must not be above applied %d: %w", floor, purge, r.Applied, ErrFuture)
		}
		if floor <= r.Floor && purge <= r.Purge {
			return nil, nil
		}
		next := v.snap.draft()
		next.Floor, next.Purge = max(r.Floor, floor), max(r.Purge, purge)
		p.forgetEvents(next.root)
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

// purge removes from the log the events that the root permits to purge.
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

// unixTime is a log time in UTC; 0 becomes the zero time, for none.
func unixTime(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos).UTC()
}
