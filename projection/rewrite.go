package projection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/segment"
)

// rewriting rewrites the objects that have departing versions, and makes a root that names the new objects. It makes
// each new object once, however many roots name the object and however often the swap is tried.
type rewriting struct {
	p *Projection
	*departing
	// generation is the generation of the root for which the new objects were written. In a later generation, a
	// collector may take these objects for garbage.
	generation uint64
	// segments maps a segment's key to the segment that replaces it: itself, another, or none if the key is empty.
	segments    map[string]segmentRef
	checkpoints map[string]checkpoint
	pages       map[string]page
	// footers of the segments that were written.
	footers []footer
	// versions are the revisions of the versions that were left out.
	versions map[Revision]bool
	// made are the keys of all objects written since the rewriting began. since is the root at that time.
	made  []string
	since *root
}

// departing says which versions must go: rows before 'upto', and events in (after, upto].
type departing struct {
	after, upto Revision
	// gone says whether a version must go. near says whether a key-ordered segment may have such a version.
	gone func(key string, rev Revision) bool
	near func(s segmentRef) bool
	// rows says that rows of the newest root go too. Then no key that is gone may stay in an idx object.
	rows bool
}

// nearEvents reports whether events from first to last may include a departing version.
func (d *departing) nearEvents(first, last Revision) bool { return first <= d.upto && last > d.after }

func (p *Projection) rewrite(what *departing) *rewriting {
	return &rewriting{p: p, departing: what, versions: map[Revision]bool{}}
}

// draft makes the next root. The root and its checkpoints name no object with a departing version. draft returns nil if
// nothing has to change.
func (w *rewriting) draft(ctx context.Context, v *View) (*draft, error) {
	if w.segments == nil || w.generation != v.snap.root.Generation {
		w.generation, w.footers = v.snap.root.Generation, nil
		w.segments, w.checkpoints, w.pages = map[string]segmentRef{}, map[string]checkpoint{}, map[string]page{}
		w.since = cmp.Or(w.since, v.snap.root)
	}
	next := v.snap.draft()
	next.Checkpoints = slices.Clone(next.Checkpoints)
	for i, c := range next.Checkpoints {
		if c.Revision < w.after {
			continue
		}
		var err error
		if next.Checkpoints[i], err = w.checkpoint(ctx, c); err != nil {
			return nil, err
		}
	}
	changed, err := w.root(ctx, next.root, v.snap, w.rows)
	if err != nil {
		return nil, err
	}
	if !changed && slices.Equal(next.Checkpoints, v.snap.root.Checkpoints) {
		return nil, nil
	}
	if next.records, err = next.inlineRecords(); err != nil {
		return nil, err
	}
	next.footers = w.footers
	if err := w.p.writeIndex(ctx, next); err != nil {
		return nil, err
	}
	return next, nil
}

// passes reports whether a checkpoint or page with this error stays as it is. A lost object stays, since nobody can
// read it. A damaged object stays unless a departing version could survive in it.
func (w *rewriting) passes(err error) bool {
	return errors.Is(err, bucket.ErrNotFound) || !w.rows && cannotRead(err)
}

// ended discards the objects of a rewriting that failed.
func (w *rewriting) ended(ctx context.Context, err error) error {
	if err != nil && w.p.undecided.Load() == nil {
		w.p.discard(ctx, w.made, w.since)
	}
	return err
}

func (w *rewriting) checkpoint(ctx context.Context, c checkpoint) (checkpoint, error) {
	if known, ok := w.checkpoints[c.Key]; ok {
		return known, nil
	}
	s, err := w.p.pastSnapshot(ctx, c)
	if w.passes(err) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	copied := *s.root
	// Only a checkpoint before 'upto' loses rows. A later checkpoint keeps its rows, so that events can be folded onto
	// it. Both name the rewritten event segments: otherwise the bucket would keep each of these segments twice.
	changed, err := w.root(ctx, &copied, s, c.Revision < w.upto)
	if err != nil {
		return c, err
	}
	renewed := c
	if changed {
		renewed, err = w.p.writeCheckpoint(ctx, &copied)
		w.made = append(w.made, renewed.Key)
		if err != nil {
			return c, err
		}
	}
	w.checkpoints[c.Key] = renewed
	return renewed, nil
}

// root changes a copy of a snapshot's root, and reports whether there was something to change.
func (w *rewriting) root(ctx context.Context, r *root, s *snapshot, rows bool) (changed bool, err error) {
	r.Pages = slices.Clone(r.Pages)
	for i := range r.Pages {
		if r.Pages[i], err = w.page(ctx, s, r.Pages[i]); err != nil {
			return false, err
		}
	}
	r.Events, err = w.refs(ctx, s, r.Events, segment.Events)
	if err != nil {
		return false, err
	}
	if rows {
		r.Segments = nil
		for _, refs := range s.root.runs() {
			refs, err := w.refs(ctx, s, refs, segment.Keys)
			if err != nil {
				return false, err
			}
			r.Segments = append(r.Segments, oneRun(refs)...)
		}
		records := slices.Clone(s.records)
		for i, r := range records {
			var goes bool
			records[i], goes = w.without(r)
			changed = changed || goes
		}
		if changed {
			if r.Inline, _, err = sealRecords(records); err != nil {
				return false, err
			}
		}
	}
	if w.rows { // an idx object has names of objects; footers of event segments have none
		kept, err := s.index.all(ctx)
		if err != nil {
			return false, err
		}
		for key := range kept {
			if w.segments[key].Key != key {
				r.Index = ""
			}
		}
	}
	named := r.names()
	r.Footers = slices.DeleteFunc(slices.Clone(r.Footers), func(f footer) bool { return !named[f.Key] })
	return changed || !slices.Equal(r.Pages, s.root.Pages) || r.Index != s.root.Index ||
		!slices.EqualFunc(r.Segments, s.root.Segments, sameSegment) || !slices.EqualFunc(r.Events, s.root.Events, sameSegment), nil
}

// page returns the page that replaces a page.
func (w *rewriting) page(ctx context.Context, s *snapshot, pg page) (page, error) {
	if !w.nearEvents(pg.MinRevision, pg.MaxRevision) {
		return pg, nil
	}
	renewed, known := w.pages[pg.Key]
	if !known {
		listed, err := w.p.page(ctx, pg)
		if w.passes(err) {
			return pg, nil
		}
		if err != nil {
			return pg, err
		}
		refs, err := w.refs(ctx, s, listed, segment.Events)
		if err != nil {
			return pg, err
		}
		if renewed = pg; !slices.EqualFunc(refs, listed, sameSegment) {
			renewed, err = w.p.writePage(ctx, refs)
			w.made = append(w.made, renewed.Key)
			if err != nil {
				return pg, err
			}
		}
		w.pages[pg.Key] = renewed
	}
	renewed.MinRevision = pg.MinRevision
	return renewed, nil
}

func sameSegment(a, b segmentRef) bool { return a.Key == b.Key }

// without returns the record. If the record must go, without returns a barrier for as many revisions. The barrier has
// nothing but the record's time.
func (w *rewriting) without(r *record) (_ *record, goes bool) {
	if !w.gone(r.key, r.Revision) {
		return r, false
	}
	w.versions[r.Revision] = true
	return &record{Event: eventlog.Event{Revision: r.Revision, Time: r.Time}, span: r.span}, true
}

// refs returns the segments that replace the given ones. It rewrites the segments that have a departing version.
func (w *rewriting) refs(ctx context.Context, s *snapshot, refs []segmentRef, kind segment.Kind) (out []segmentRef, err error) {
	for _, ref := range refs {
		renewed, known := w.segments[ref.Key]
		if !known {
			renewed = ref
			events := kind == segment.Events
			if events && w.nearEvents(ref.MinRevision, ref.MaxRevision) || !events && w.near(ref) {
				if renewed, err = w.segment(ctx, s.root.newPart(w.p, ref), kind); err != nil {
					return nil, fmt.Errorf("rewrite segment %s: %w", ref.Key, err)
				}
			}
			w.segments[ref.Key] = renewed
		}
		if renewed.Key != "" {
			out = append(out, renewed)
		}
	}
	return out, nil
}

// segment writes a segment without its departing versions. It returns the same segment if there are none.
func (w *rewriting) segment(ctx context.Context, r *part, kind segment.Kind) (segmentRef, error) {
	reader, err := r.open(ctx)
	if err != nil {
		return segmentRef{}, err
	}
	writer, dropped := segment.NewWriter(kind), false
	for record, err := range recordsOf(ctx, reader.Through(nil)) {
		if err != nil {
			return segmentRef{}, err
		}
		kept, goes := w.without(record)
		dropped = dropped || goes
		switch {
		case kind == segment.Events:
			err = writer.Add(kept.eventEntry())
		case !goes:
			err = writer.Add(kept.keyEntry())
		}
		if err != nil {
			return segmentRef{}, err
		}
	}
	if !dropped {
		return r.ref, nil
	}
	file, sum := writer.Finish()
	if sum.Rows == 0 {
		return segmentRef{}, nil
	}
	folder := fmt.Sprintf("seg/%d", r.ref.level())
	if kind == segment.Events { // the segment still covers the same revisions
		folder, sum.MinRevision, sum.MaxRevision = "events", uint64(r.ref.MinRevision), uint64(r.ref.MaxRevision)
	}
	ref, err := w.p.create(ctx, folder, r.ref.Level, file, sum)
	w.made = append(w.made, ref.Key)
	if err != nil {
		return segmentRef{}, err
	}
	written("rewriting", len(file))
	w.footers = append(w.footers, footerOf(ref, file))
	return ref, nil
}
