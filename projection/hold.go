package projection

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// holdTime is how long a hold lasts at least, by log time. A branch begins soon after its hold.
const holdTime = time.Hour

func byRevision(a, b mark) int { return cmp.Compare(a.Revision, b.Revision) }

// holds says whether the revision is held. A held revision can be read, also below the floor.
func (r *root) holds(at Revision) bool {
	_, found := slices.BinarySearchFunc(r.Holds, mark{Revision: at}, byRevision)
	return found
}

// Hold keeps a revision readable for at least an hour, and then for as long as a branch begins at the revision. It must
// be called before the event that begins the branch: a crash in between leaves a hold that ends by itself. Hold fails
// with ErrExpired if the revision is below the floor and not held.
func (p *Projection) Hold(ctx context.Context, at Revision) error {
	_, err := p.swap(ctx, func(_ context.Context, v *View) (*draft, error) {
		if err := v.check(at); err != nil {
			return nil, err
		}
		next := v.snap.draft()
		i, found := slices.BinarySearchFunc(next.Holds, mark{Revision: at}, byRevision)
		next.Holds = slices.Clone(next.Holds)
		if found && next.Clock-next.Holds[i].Time < int64(p.holdTime)/2 {
			return nil, nil
		}
		if !found {
			next.Holds = slices.Insert(next.Holds, i, mark{Revision: at})
		}
		next.Holds[i].Time = next.Clock
		return next, nil
	})
	if err != nil {
		return fmt.Errorf("hold revision %d: %w", at, err)
	}
	return nil
}

// release ends the holds that no branch needs, and reports whether there were any.
func (p *Projection) release(ctx context.Context) (released bool, err error) {
	v, err := p.Latest(ctx)
	if err != nil || len(v.snap.root.Holds) == 0 {
		return false, err
	}
	_, err = p.swap(ctx, func(ctx context.Context, v *View) (*draft, error) {
		needed := map[Revision]bool{}
		start := BranchKey("").RowKey()
		for row, err := range v.Scan(ctx, start, PrefixEnd(start), v.Revision()) {
			if err != nil {
				return nil, err
			}
			b, err := decodeBranch(row)
			if err != nil {
				return nil, err
			}
			for ; b != nil; b = b.Of {
				needed[b.At] = true
			}
		}
		r := v.snap.root
		ended := func(h mark) bool { return !needed[h.Revision] && r.Clock-h.Time > int64(p.holdTime) }
		if released = slices.ContainsFunc(r.Holds, ended); !released {
			return nil, nil
		}
		next := v.snap.draft()
		next.Holds = slices.DeleteFunc(slices.Clone(next.Holds), ended)
		return next, nil
	})
	if err != nil {
		return false, fmt.Errorf("end holds: %w", err)
	}
	return released, nil
}
