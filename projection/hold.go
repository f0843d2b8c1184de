package projection

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	// holdTime is how long a hold lasts without a branch. Its branch begins within seconds.
	holdTime = time.Hour
	// mostHolds bounds the holds of a root, which every commit writes whole.
	mostHolds = 10_000
)

// ErrManyHolds says that branches begin at more revisions than a root may hold. The API answers 429.
var ErrManyHolds = fmt.Errorf("branches begin at %d different revisions: delete some, or begin others at the same revision", mostHolds)

func byRevision(a, b mark) int { return cmp.Compare(a.Revision, b.Revision) }

// holds says whether the revision is held. A held revision can be read, also below the floor.
func (r *root) holds(at Revision) bool {
	_, found := slices.BinarySearchFunc(r.Holds, mark{Revision: at}, byRevision)
	return found
}

// hold holds a revision from a time on.
func (r *root) hold(at Revision, since int64) {
	i, found := slices.BinarySearchFunc(r.Holds, mark{Revision: at}, byRevision)
	r.Holds = slices.Clone(r.Holds)
	if !found {
		r.Holds = slices.Insert(r.Holds, i, mark{Revision: at})
	}
	r.Holds[i].Time = max(r.Holds[i].Time, since)
}

// Hold keeps the revisions at which a branch and its sources begin readable for at least half an hour, and then for as
// long as a branch begins there. It must be called before the append that begins the branch: a crash in between leaves
// a hold that ends by itself. Hold fails with ErrExpired if a revision is below the floor and not held.
func (p *Projection) Hold(ctx context.Context, b Branch) error {
	_, err := p.swap(ctx, func(_ context.Context, v *View) (*draft, error) {
		next, now := v.snap.draft(), max(v.snap.root.Clock, time.Now().UnixNano()) // the root's clock may be hours old
		changed := false
		for of := &b; of != nil; of = of.Of {
			if err := v.check(of.At); err != nil {
				return nil, err
			}
			i, found := slices.BinarySearchFunc(next.Holds, mark{Revision: of.At}, byRevision)
			if found && now-next.Holds[i].Time < int64(p.holdTime)/2 {
				continue
			}
			if !found && len(next.Holds) >= mostHolds {
				return nil, ErrManyHolds
			}
			next.hold(of.At, now)
			changed = true
		}
		if !changed {
			return nil, nil
		}
		return next, nil
	})
	if err != nil {
		return fmt.Errorf("hold revision %d: %w", b.At, err)
	}
	return nil
}

// release ends the holds that no branch needs, and makes those again that a branch needs and that can still be made:
// an older root may have come back. It reports whether it changed anything.
func (p *Projection) release(ctx context.Context) (changed bool, err error) {
	_, err = p.swap(ctx, func(ctx context.Context, v *View) (*draft, error) {
		needed := map[Revision]bool{}
		for n, err := range v.beginnings(ctx, v.Revision()) {
			if err != nil {
				return nil, err
			}
			for b := n.Branch; b != nil; b = b.Of {
				needed[b.At] = true
			}
		}
		next := v.snap.draft()
		ended := func(h mark) bool { return !needed[h.Revision] && next.Clock-h.Time > int64(p.holdTime) }
		if changed = slices.ContainsFunc(next.Holds, ended); changed {
			next.Holds = slices.DeleteFunc(slices.Clone(next.Holds), ended)
		}
		for at := range needed {
			if at >= next.Floor && !next.holds(at) {
				next.hold(at, next.Clock)
				changed = true
			}
		}
		if !changed {
			return nil, nil
		}
		return next, nil
	})
	if err != nil {
		return false, fmt.Errorf("end holds: %w", err)
	}
	return changed, nil
}
