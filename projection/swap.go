package projection

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/bucket"
)

const (
	// swapAttempts bounds the tries of one swap; the pause before each further try doubles from swapPause.
	swapAttempts = 10
	swapPause    = 5 * time.Millisecond
)

// draft is the next root while it is being made, with data that only its author needs.
type draft struct {
	*root
	// over is the snapshot whose root the draft will replace.
	over *snapshot
	// records are the events of Inline.
	records []*record
	// footers are the footers of the segments that the draft adds.
	footers []footer
	// made are the keys of objects that were written only for this draft.
	made []string
	// voids are the events that the draft found void, traced are the events of traced requests, and bytes is the size
	// of all events that the draft adds. All of these are reported once the draft has won.
	voids, traced []*record
	bytes         int
}

// draft returns a draft that changes nothing yet.
func (s *snapshot) draft() *draft {
	return &draft{root: s.root.clone(), over: s, records: s.records}
}

// swap replaces the newest root by a draft, and returns a view on the outcome. The function 'change' makes the draft
// from a view on the newest root. change returns nil if there is nothing to do. After a failure, swap calls change
// again with the newest view.
func (p *Projection) swap(ctx context.Context, change func(context.Context, *View) (*draft, error)) (*View, error) {
	if err := p.committing.enter(ctx); err != nil {
		return nil, err
	}
	defer p.committing.leave()
	var v *View
	won, err := p.swapRoot(ctx, p.reload, func(ctx context.Context) (next *draft, err error) {
		if v, err = p.gather(ctx); err != nil {
			return nil, err
		}
		return change(ctx, v)
	})
	if err != nil || won == nil {
		return v, err
	}
	if err := p.install(ctx, won, 0); err != nil {
		return nil, err
	}
	return p.view.Load(), nil
}

// swapRoot replaces the root by a draft from the function 'next', and returns the snapshot of the new root. It returns
// nil if next returns nil, because there is nothing to do.
//
// A failed put may still have succeeded, if only its answer was lost. So every further try begins by reading the root,
// and no new draft is made before the last one is decided, even if an earlier call made that draft.
//
// If next fails after it has written objects, next returns the draft with the error. Then swapRoot discards the
// objects, and returns the error: another try would write all objects again. It tries again only if an object was not
// found.
func (p *Projection) swapRoot(ctx context.Context, read func(context.Context) (*snapshot, error), next func(context.Context) (*draft, error)) (won *snapshot, err error) {
	var ours *draft // the last draft of this call
	for attempt := range swapAttempts {
		// The jitter separates projectors that collide.
		if attempt > 0 && eventlog.Pause(ctx, rand.N(swapPause<<min(attempt, 4))) != nil {
			return nil, errors.Join(context.Cause(ctx), err)
		}
		var d *draft
		tried := p.undecided.Load()
		if attempt > 0 || tried != nil {
			won, err = p.decide(ctx, read, tried)
			if won != nil && tried == ours {
				return won, nil
			}
			if won != nil {
				_, err = read(ctx) // for next, which makes the next draft
			}
		}
		if err == nil {
			d, err = next(ctx)
		}
		if err == nil && d == nil {
			return nil, nil
		}
		if err == nil {
			if err = d.check(); err != nil { // each further draft would have the same mistake
				p.discard(ctx, d.made, d.over.root)
				return nil, fmt.Errorf("refuse to write a wrong root: %w", err)
			}
			ours = d
			p.undecided.Store(d)
			if won, err = p.put(ctx, d); err == nil {
				return won, nil
			}
		} else if d != nil && len(d.made) > 0 {
			p.discard(ctx, d.made, d.over.root)
			if !errors.Is(err, bucket.ErrNotFound) {
				return nil, err
			}
		}
		if final(err) {
			return nil, err
		}
		slog.DebugContext(ctx, "the root was not swapped", "attempt", attempt, "error", err)
	}
	return nil, fmt.Errorf("swap the root: %d attempts: %w", swapAttempts, err)
}

// decide reads the root, and finds out whether a draft whose put failed has won, if there is such a draft. The draft
// has won if the root has its nonce. If the root is still the one that the draft was made over, an earlier put may
// still arrive, so decide puts the same draft again. With any other root the draft has lost, and decide returns nil.
func (p *Projection) decide(ctx context.Context, read func(context.Context) (*snapshot, error), tried *draft) (won *snapshot, err error) {
	now, err := read(ctx)
	switch {
	case err != nil || tried == nil:
		return nil, err
	case bytes.Equal(now.root.Nonce, tried.Nonce):
		p.undecided.Store(nil)
		tried.report(ctx, p.config.Tracer)
		return now, nil
	case now.etag == tried.over.etag:
		return p.put(ctx, tried)
	}
	p.undecided.Store(nil)
	p.discard(ctx, tried.made, tried.over.root)
	return nil, nil
}

// discardTime is how long discarding may take for a caller whose time is up.
const discardTime = time.Second

// discard deletes objects of a failed draft, because they may have data that was forgotten meanwhile. None of these
// objects was made before 'since' was the newest root. After a crash or a failure such objects stay until garbage is
// collected. An object that a root names stays, because the swap may have won. The caller must not pass objects that an
// undecided draft names.
func (p *Projection) discard(ctx context.Context, made []string, since *root) {
	if len(made) == 0 {
		return
	}
	if ctx.Err() != nil {
		own, cancel := context.WithTimeout(context.WithoutCancel(ctx), discardTime)
		defer cancel()
		ctx = own
	}
	now, err := p.rootNow(ctx)
	if err == nil {
		_, err = p.deleteUnnamed(ctx, now.root, made, since.Checkpoints)
	}
	if err != nil {
		slog.WarnContext(ctx, "what was written in vain stays until garbage is collected", "objects", len(made), "error", err)
	}
}

// final reports whether a swap would fail with this error however often it is tried.
func final(err error) bool {
	all := []error{eventlog.ErrDiverged, eventlog.ErrNowhere, ErrNoRoot, ErrHole, ErrFuture, errCellExists, errOvertaken, errFenceRaced, errRootLost, ErrManyHolds}
	return slices.ContainsFunc(all, func(last error) bool { return errors.Is(err, last) })
}

// put replaces the root by the draft, if the root is still the one that the draft was made over.
func (p *Projection) put(ctx context.Context, d *draft) (*snapshot, error) {
	body := encodeRoot(d.root)
	var etag string
	var err error
	if d.over.etag == "" {
		etag, err = p.config.Bucket.Create(ctx, p.rootKey(), body)
	} else {
		etag, err = p.config.Bucket.Replace(ctx, p.rootKey(), body, d.over.etag)
	}
	if err != nil {
		return nil, fmt.Errorf("write the root: %w", err)
	}
	written("root", len(body))
	p.undecided.Store(nil)
	d.report(ctx, p.config.Tracer)
	return p.snapshotOf(d.root, d.records, slices.Concat(d.Footers, d.footers), etag, d.over), nil
}

// report counts and logs the draft's events, once the draft is the root. A span shows how long an event has waited.
func (d *draft) report(ctx context.Context, tracer trace.Tracer) {
	commits.Inc()
	foldedBytes.Add(float64(d.bytes))
	for _, v := range d.voids {
		voidEvents.Inc()
		slog.WarnContext(ctx, "an event is void", "key", v.key, "revision", v.Revision, "base", v.Base,
			"precondition", v.Precondition, "request", v.RequestID)
	}
	if tracer == nil {
		return
	}
	for _, r := range d.traced {
		if ctx, sampled := r.Traced(ctx); sampled {
			_, span := tracer.Start(ctx, "commit", trace.WithTimestamp(r.Time),
				trace.WithAttributes(attribute.Int64("logplane.revision", int64(r.Revision)), attribute.Int64("logplane.applied", int64(d.Applied))))
			span.End()
		}
	}
}
