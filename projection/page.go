package projection

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sort"
)

const pageMagic = 0x6770_504c // "LPpg", little endian

// page names an object that lists event segments of the archive, so that the root need not list them. The page has the
// revisions from MinRevision on: listed segments that end before MinRevision are no longer kept.
type page struct {
	_                        struct{} `cbor:",toarray"`
	Key                      string
	MinRevision, MaxRevision Revision
}

// pageable are the event segments for the next page: the oldest of the archive, once these are half of the segments
// that a root may list.
func (v *View) pageable() []segmentRef {
	events, many := v.snap.root.Events, max(2, v.p.manyEvents)
	if len(events) < many || events[many/2-1].MaxRevision > v.Floor() {
		return nil
	}
	return events[:many/2]
}

// pageEvents moves the oldest event segments from the root's list to a page, and reports whether it did. A crash before
// the swap leaves a page that no root names.
func (p *Projection) pageEvents(ctx context.Context, v *View) (moved bool, err error) {
	if v.pageable() == nil {
		return false, nil
	}
	_, err = p.swap(ctx, func(ctx context.Context, v *View) (*draft, error) {
		refs := v.pageable()
		if moved = refs != nil; !moved {
			return nil, nil
		}
		next := v.snap.draft()
		pg, err := p.writePage(ctx, refs) // in this root's generation: a collector deletes unnamed pages of older generations
		next.made = append(next.made, pg.Key)
		if err != nil {
			return next, err
		}
		next.Pages = append(slices.Clip(next.Pages), pg)
		next.Events = next.Events[len(refs):]
		return next, nil
	})
	if err != nil {
		return false, fmt.Errorf("page event segments: %w", err)
	}
	return moved, nil
}

// writePage writes a page. It returns the name even if it returns an error.
func (p *Projection) writePage(ctx context.Context, refs []segmentRef) (page, error) {
	pg := page{MinRevision: refs[0].MinRevision, MaxRevision: refs[len(refs)-1].MaxRevision}
	pg.Key = fmt.Sprintf("%s/pages/%020d-%020d-%s", p.config.Prefix, pg.MinRevision, pg.MaxRevision, rand.Text())
	return pg, p.createObject(ctx, "page", pg.Key, encodeFrame(pageMagic, refs))
}

// page returns the segments of a page.
func (p *Projection) page(ctx context.Context, pg page) ([]segmentRef, error) {
	refs, known := p.pages.Get(pg.Key)
	if !known {
		body, _, err := p.config.Bucket.Get(ctx, pg.Key)
		if err == nil {
			err = cmp.Or(decodeFrame(pageMagic, body, &refs), pg.check(refs))
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", pg.Key, err)
		}
		p.pages.Add(pg.Key, "", refs, int64(2*len(body)))
	}
	return refs[firstAfter(refs, pg.MinRevision-1):], nil
}

// paged returns the event segments of a root's pages, as far as these can be read.
func (p *Projection) paged(ctx context.Context, r *root) (all []segmentRef, err error) {
	for _, pg := range r.Pages {
		refs, failed := p.page(ctx, pg)
		all, err = append(all, refs...), errors.Join(err, failed)
	}
	return all, err
}

// check verifies the promises of every page: the page's segments have no hole, and end with the page's last revision.
func (pg *page) check(refs []segmentRef) error {
	if len(refs) == 0 || refs[0].MinRevision > pg.MinRevision || refs[len(refs)-1].MaxRevision != pg.MaxRevision {
		return fmt.Errorf("it is not of the revisions %d to %d: %w", pg.MinRevision, pg.MaxRevision, ErrDamaged)
	}
	return contiguous(refs)
}

// firstAfter is the index of the first event segment that ends after the revision.
func firstAfter(refs []segmentRef, rev Revision) int {
	return sort.Search(len(refs), func(i int) bool { return refs[i].MaxRevision > rev })
}

// contiguous fails if there is a hole between event segments.
func contiguous(refs []segmentRef) error {
	for i := 1; i < len(refs); i++ {
		if refs[i].MinRevision != refs[i-1].MaxRevision+1 {
			return fmt.Errorf("event segments have a hole after %d", refs[i-1].MaxRevision)
		}
	}
	return nil
}

// dropEvents drops the pages and event segments that have nothing after the revision.
func (r *root) dropEvents(upto Revision) {
	for len(r.Pages) > 0 && r.Pages[0].MaxRevision <= upto {
		r.Pages = r.Pages[1:]
	}
	if len(r.Pages) > 0 && r.Pages[0].MinRevision <= upto {
		r.Pages = slices.Clone(r.Pages)
		r.Pages[0].MinRevision = upto + 1
	}
	r.Events = r.Events[firstAfter(r.Events, upto):]
}

// archiveStart is the revision after which all events up to the applied revision are still kept.
func (r *root) archiveStart() Revision {
	switch {
	case len(r.Pages) > 0:
		return r.Pages[0].MinRevision - 1
	case len(r.Events) > 0:
		return r.Events[0].MinRevision - 1
	}
	return r.Spilled
}

// archive yields the event segments that have revisions in (after, upto], oldest first, regardless of the floor.
func (s *snapshot) archive(ctx context.Context, after, upto Revision) iter.Seq2[*part, error] {
	return func(yield func(*part, error) bool) {
		for _, pg := range s.root.Pages {
			if pg.MaxRevision <= after || pg.MinRevision > upto {
				continue
			}
			refs, err := s.p.page(ctx, pg)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, ref := range refs[firstAfter(refs, after):] {
				if ref.MinRevision > upto || !yield(s.archivedPart(ref), nil) {
					return
				}
			}
		}
		for _, part := range s.events {
			if part.ref.MaxRevision > after && part.ref.MinRevision <= upto && !yield(part, nil) {
				return
			}
		}
	}
}

// archivedPart is a segment of a page, as the root names it. It stays open while the budget has room.
func (s *snapshot) archivedPart(ref segmentRef) *part {
	id := archivedID{ref.Key, s.root.Forgets}
	if known, ok := s.p.archived.Get(id); ok {
		return known
	}
	return s.p.archived.Add(id, "", s.root.newPart(s.p, ref), 512+2*ref.Footer)
}

type archivedID struct {
	key     string
	forgets uint64
}
