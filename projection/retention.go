package projection

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// age moves clock, floor and purge point by log time (invariant 12).
func (p *Projection) age(next *root) {
	retention, logRetention := int64(p.config.Retention), int64(p.config.LogRetention)
	before := next.Clock
	next.Clock = max(next.Clock, next.AppliedTime)
	longest := max(retention, logRetention)
	if longest > 0 {
		next.Ring = appendMark(next.Ring, mark{Revision: next.Applied, Time: next.Clock}, longest)
	}
	if retention > 0 {
		horizon := next.Clock - retention
		if before > 0 && next.Horizon > 0 {
			// One commit moves the floor by no more than the log time since the last one. So neither a wrong setting
			// nor a leap of the log's clock expires at once what should have been kept.
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

// appendMark adds a mark if the last one is old enough. Of the marks that are older than twice the retention it keeps
// one.
func appendMark(ring []mark, m mark, retention int64) []mark {
	ring = ring[:len(ring):len(ring)]
	n := len(ring)
	if n == 0 || m.Revision > ring[n-1].Revision && m.Time-ring[n-1].Time >= retention/ringMarks {
		ring = append(ring, m)
	}
	for len(ring) > 1 && ring[1].Time <= m.Time-2*retention {
		ring = ring[1:]
	}
	return ring
}

// ringMarks is how many marks a retention has.
const ringMarks = 128

// newestUpTo is the newest marked revision that is as old as the time or older, 0 if there is none.
func newestUpTo(ring []mark, nanos int64) Revision {
	rev := Revision(0)
	for _, m := range ring {
		if m.Time <= nanos {
			rev = cmp.Or(m.Revision, rev)
		}
	}
	return rev
}

// ageArchive moves the archive's end by log time. One commit moves it by no more than twice the log time since the last
// root. So a process with a wrong setting cannot throw a history away, and a shorter setting is reached in the end.
func (p *Projection) ageArchive(next *root, before int64) {
	longest := int64(max(p.config.History, p.config.Retention))
	if longest == 0 {
		return
	}
	end := next.Clock - longest
	if before > 0 && next.Archive > 0 {
		end = min(end, next.Archive+2*(next.Clock-before))
	}
	next.Archive = max(next.Archive, end)
}

// archiveBase is the revision of the checkpoint from which the archive's oldest events are folded, 0 for none.
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

// forgetEvents drops the event segments below the floor. If there is an archive, it drops those below the archive's
// base: everything above can be folded from there.
func (p *Projection) forgetEvents(next *root) {
	upto := next.Floor
	if p.config.History > 0 || next.Archive < next.Horizon {
		upto = min(upto, next.archiveBase())
	}
	next.dropEvents(upto)
}

// dropEvents drops the event segments that have nothing after the revision.
func (r *root) dropEvents(upto Revision) {
	for len(r.Events) > 0 && r.Events[0].MaxRevision <= upto {
		r.Events = r.Events[1:]
	}
}

// Retain raises the floor and the purge point to revisions instead of by age, and purges the log. It lets tests expire
// and purge what they name. Neither mark goes back, and both must be at or below the applied revision.
//
// The root is swapped first, and then the log is purged. A crash between leaves events in the log that nobody needs.
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

// unixTime is a log time as people read it; the zero time stands for none.
func unixTime(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos).UTC()
}
