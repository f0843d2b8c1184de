package projection

import (
	"context"
	"fmt"
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
func (v *View) neighbours() *merge {
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
	return &merge{inputs: []run{picked}, events: true, generation: v.snap.root.Generation}
}

// joinEvents makes one event segment of neighbours, or moves the oldest to a page, and reports whether it did.
func (p *Projection) joinEvents(ctx context.Context) (bool, error) {
	v, err := p.atHand(ctx)
	if err != nil {
		return false, fmt.Errorf("join event segments: %w", err)
	}
	if m := v.neighbours(); m != nil {
		return v.compact(ctx, m)
	}
	return p.pageEvents(ctx, v)
}
