package projection

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/logplane/logplane/eventlog"
)

// Run is the projector. It follows the log and commits what was added: once every cadence at most, or at once if so
// much was added that readers would have a long tail to read. An idle cell costs no request. Run returns when ctx ends,
// or with eventlog.ErrDiverged, which is final.
//
// Killed at any point, it leaves either the old root or the new one. What else it wrote is garbage.
func (p *Projection) Run(ctx context.Context, cadence time.Duration) error {
	applied, err := p.commitSurely(ctx, cadence)
	if err != nil {
		return err
	}
	dirty, pressing := make(chan struct{}, 1), make(chan struct{}, 1)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.watchLog(ctx, cadence, applied, dirty, pressing) })
	committed := make(chan struct{}, 1)
	group.Go(func() error { return p.commitWhenDirty(ctx, cadence, dirty, pressing, committed) })
	group.Go(func() error { return p.tend(ctx, committed) })
	if err := group.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// watchLog marks the projection dirty. A barrier alone does not: a commit causes a barrier on a replicated log, which
// would cause a commit. If the log was purged and the root cannot be read, it is a commit that tries again.
func (p *Projection) watchLog(ctx context.Context, cadence time.Duration, after Revision, dirty, pressing chan<- struct{}) error {
	for {
		err := p.Follow(ctx, after, func(v *View) error {
			if v.dirty() {
				markDirty(dirty)
			}
			if v.pressing() {
				markDirty(pressing)
			}
			return nil
		})
		if !errors.Is(err, eventlog.ErrPurged) {
			return err
		}
		after, err = p.commitSurely(ctx, cadence)
		if err != nil {
			return err
		}
	}
}

// commitSurely commits, and tries again as long as the bucket does not take it. Readers go on meanwhile. An error that
// it returns is final.
func (p *Projection) commitSurely(ctx context.Context, cadence time.Duration) (Revision, error) {
	pace := time.NewTicker(max(cadence, time.Second))
	defer pace.Stop()
	for {
		applied, err := p.Commit(ctx)
		if err == nil || ctx.Err() != nil || p.failed() != nil || final(err) {
			return applied, err
		}
		slog.Error("commit failed, trying again", "error", err)
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-pace.C:
		}
	}
}

func (p *Projection) commitWhenDirty(ctx context.Context, cadence time.Duration, dirty, pressing, committed chan struct{}) error {
	pace := time.NewTicker(cadence)
	defer pace.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-dirty:
		}
		hurry := pressing
		if _, err := p.Commit(ctx); errors.Is(err, eventlog.ErrDiverged) {
			return err
		} else if err != nil && ctx.Err() == nil {
			slog.Error("commit failed, trying again", "error", err)
			markDirty(dirty)
			hurry = nil // not tried again at once, since it failed
		}
		select {
		case <-pressing: // it was said of what is committed now
		default:
		}
		if p.view.Load().pressing() {
			markDirty(pressing)
		}
		markDirty(committed)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-hurry:
		case <-pace.C:
		}
	}
}

// tend compacts and collects after commits, beside the next ones. What fails is tried again after the next commit.
func (p *Projection) tend(ctx context.Context, committed <-chan struct{}) error {
	var swept time.Time
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-committed:
		}
		more, err := true, error(nil)
		for more && err == nil {
			more, err = p.Compact(ctx)
		}
		if err == nil {
			_, err = p.Trim(ctx)
		}
		if err == nil && time.Since(swept) > p.config.Grace && p.sweepable() {
			swept = time.Now()
			_, err = p.Collect(ctx, p.config.Grace)
		}
		if errors.Is(err, eventlog.ErrDiverged) {
			return err
		}
		if err != nil && ctx.Err() == nil {
			slog.Error("tending the bucket failed, trying again after the next commit", "error", err)
		}
	}
}

// Once does what Run does, for a function that a timer calls: it commits, merges segments once if that is due, trims
// the past, and collects garbage if a grace period has passed. merged says that it was due, and that there may be
// more to merge.
func (p *Projection) Once(ctx context.Context) (applied Revision, merged bool, err error) {
	if applied, err = p.Commit(ctx); err != nil {
		return applied, false, err
	}
	if merged, err = p.Compact(ctx); err == nil {
		_, err = p.Trim(ctx)
	}
	if err == nil && p.sweepable() {
		_, err = p.Collect(ctx, p.config.Grace)
	}
	return applied, merged, err
}

// sweepable reports whether the last collection, by any projector, is a grace period of log time ago. More often, a
// long compaction might never finish.
func (p *Projection) sweepable() bool {
	r := p.view.Load().snap.root
	return r.Clock-r.Swept >= int64(p.config.Grace)
}

func markDirty(dirty chan<- struct{}) {
	select {
	case dirty <- struct{}{}:
	default:
	}
}
