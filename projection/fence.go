package projection

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/logplane/logplane/eventlog"
)

// FencePlan is the effect that a fence would have on a cell, or has had.
type FencePlan struct {
	// Log has the log's bounds before the fence, and Applied is the snapshot's applied revision.
	Log     eventlog.Bounds
	Applied Revision
	// Lost says why the log's events above Applied cannot be kept: the log does not belong to the snapshot, or no
	// server has the first of these events undamaged (eventlog.ErrNowhere). Lost is nil if these events were folded.
	Lost error
	// To is the first revision after the fence. The next epoch begins with it.
	To Revision
}

// leap begins the next epoch at revision to: everything below that revision has been applied, up to the time nanos. A
// new request id stands for the last applied event. The epoch's number is the revision to, so the number never recurs:
// the next epoch begins above every revision that the log has ever had.
func (r *root) leap(to Revision, nanos int64, id string) {
	r.Epoch = uint64(to)
	r.Applied, r.AppliedTime, r.AppliedID = to-1, nanos, id+rand.Text()
	r.Floor, r.Purge = r.Applied, r.Applied
}

// lastFence is the highest revision to fence at. Many clients keep revisions in 53-bit numbers.
const lastFence = 1 << 53

// PlanFence returns the plan for Fence. If the log and the snapshot belong together, PlanFence first folds the whole
// log into the snapshot. If 'to' is 0, the plan chooses the least revision that is well above any that a client may
// have seen.
func (p *Projection) PlanFence(ctx context.Context, to Revision) (FencePlan, error) {
	plan := FencePlan{To: to}
	_, err := p.Commit(ctx)
	if errors.Is(err, eventlog.ErrDiverged) || errors.Is(err, ErrHole) {
		plan.Lost, err = err, nil
	}
	if errors.Is(err, eventlog.ErrNowhere) { // the events before the damaged one are kept
		plan.Lost = err
		p.givesUp.Store(true)
		_, err = p.Commit(ctx)
	}
	var now *snapshot
	if err == nil {
		now, err = p.rootNow(ctx)
	}
	if err == nil {
		plan.Log, err = p.config.Log.Extent(ctx)
	}
	if err != nil {
		return plan, fmt.Errorf("fence: %w", err)
	}
	plan.Applied = now.root.Applied
	least := max(plan.Log.Head, plan.Applied) + eventlog.FenceGap
	if to == 0 {
		plan.To = least
	}
	if plan.To > lastFence || least > lastFence {
		return plan, fmt.Errorf("fence at %d: it must be at most %d, so that there are revisions left", plan.To, uint64(lastFence))
	}
	if plan.To < least {
		return plan, fmt.Errorf("fence at %d: it must be at least %d, well above the log's head %d and the snapshot's %d", plan.To, least, plan.Log.Head, plan.Applied)
	}
	return plan, nil
}

// Fence carries out the plan. The operator vouches that all writers have stopped (invariant 9). Afterwards this
// Projection, and any other that was opened before, is unusable, because it belongs to the old epoch.
//
//  1. The log is wiped, and begins again at the plan's revision. A crash after this leaves a log that begins above the
//     root. Every process stops with ErrHole, and the operator fences again.
//  2. The root is swapped for one of the next epoch. The new root has applied everything below the plan's revision, as
//     barriers. A commit that stalled before the fence loses its swap.
func (p *Projection) Fence(ctx context.Context, plan FencePlan) error {
	if err := p.fenceLog(ctx, plan.To); err != nil {
		return err
	}
	_, err := p.swapRoot(ctx, p.rootNow, func(ctx context.Context) (*draft, error) {
		newest, err := p.rootNow(ctx)
		if err != nil {
			return nil, err
		}
		if newest.root.Epoch >= uint64(plan.To) || newest.root.Applied != plan.Applied {
			return nil, errFenceRaced
		}
		return newest.fenced(plan)
	})
	if errors.Is(err, errFenceRaced) {
		return fmt.Errorf("fence at %d: %w", plan.To, err)
	}
	if err != nil {
		return fmt.Errorf("fence at %d: the log is fenced, and the root is not: fence again: %w", plan.To, err)
	}
	_ = p.fail(eventlog.ErrFenced)
	return nil
}

// fenced is the draft of the next epoch's root. Barriers up to the plan's revision follow the events without a hole.
func (s *snapshot) fenced(plan FencePlan) (*draft, error) {
	next := s.draft()
	next.setBack(next.AppliedTime, time.Now())
	last := &record{Event: eventlog.Event{Revision: plan.To - 1, Time: time.Unix(0, next.Clock)}}
	next.records = appendRun(slices.Clone(s.records), next.Applied, last)
	next.leap(plan.To, next.Clock, "fence-")
	var err error
	next.Inline, _, err = sealRecords(next.records)
	return next, err
}
