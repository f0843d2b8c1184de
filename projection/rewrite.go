package projection

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/segment"
)

// rewriting makes new objects of those that have versions that are to go, and a root that names these. It remembers
// what it has made, so that it makes it once, however many roots name it and however often the swap is tried.
type rewriting struct {
	p *Projection
	departing
	// generation of the root for which it has written. In a later one, a collector may have taken it for garbage.
	generation  uint64
	segments    map[string]*rewritten
	indexes     map[indexOf]string
	checkpoints map[string]checkpoint
	// versions that were left out, and how many objects were written.
	versions map[Revision]bool
	objects  int
}

// departing says what is to go.
type departing interface {
	// gone says of a version that it goes, near of a segment that it may have such a version.
	gone(key string, rev Revision) bool
	near(s segmentRef, kind segment.Kind) bool
	// whole says of a root that rows go too. Of any other only events go.
	whole(r *root) bool
	// skip says of a checkpoint that it has nothing that is to go.
	skip(c checkpoint) bool
	// names says that no footer may stay of a segment that no root names any more: it has the names of objects.
	names() bool
}

func (p *Projection) rewrite(what departing) *rewriting {
	return &rewriting{p: p, departing: what, versions: map[Revision]bool{}}
}

// indexOf is an idx object, of roots whose rows go, or of others.
type indexOf struct {
	key   string
	whole bool
}

// rewritten is what has become of a segment. It is the same with the same key, and nothing is left if the key is empty.
type rewritten struct {
	ref    segmentRef
	sealed []byte // the footer; nil if the segment is the same
}

// draft makes the next root: it and its checkpoints name nothing that has what is to be forgotten.
func (w *rewriting) draft(ctx context.Context, v *View) (*draft, error) {
	if w.segments == nil || w.generation != v.snap.root.Generation {
		w.generation, w.objects = v.snap.root.Generation, 0
		w.segments, w.indexes, w.checkpoints = map[string]*rewritten{}, map[indexOf]string{}, map[string]checkpoint{}
	}
	// All segments come first: an idx object has footers of those that several roots name.
	if err := w.readSegments(ctx, v.snap); err != nil {
		return nil, err
	}
	for _, c := range v.snap.root.Checkpoints {
		if _, known := w.checkpoints[c.Key]; known || w.skip(c) {
			continue
		}
		snap, err := w.p.pastSnapshot(ctx, c)
		if err != nil {
			return nil, err
		}
		if err := w.readSegments(ctx, snap); err != nil {
			return nil, err
		}
	}
	next := v.snap.draft()
	next.Checkpoints = slices.Clone(next.Checkpoints)
	for i, c := range next.Checkpoints {
		if w.skip(c) {
			continue
		}
		var err error
		if next.Checkpoints[i], err = w.checkpoint(ctx, c); err != nil {
			return nil, err
		}
	}
	changed, err := w.root(ctx, next.root, v.snap)
	if err != nil {
		return nil, err
	}
	if !changed && slices.Equal(next.Checkpoints, v.snap.root.Checkpoints) {
		return nil, nil
	}
	next.records, err = next.inlineRecords()
	return next, err
}

func (w *rewriting) checkpoint(ctx context.Context, c checkpoint) (checkpoint, error) {
	if known, ok := w.checkpoints[c.Key]; ok {
		return known, nil
	}
	s, err := w.p.pastSnapshot(ctx, c)
	if err != nil {
		return c, err
	}
	copied := *s.root
	changed, err := w.root(ctx, &copied, s)
	if err != nil {
		return c, err
	}
	renewed := c
	if changed {
		if renewed, err = w.p.writeCheckpoint(ctx, &copied); err != nil {
			return c, err
		}
		w.objects++
	}
	w.checkpoints[c.Key] = renewed
	return renewed, nil
}

// root changes a copy of a snapshot's root, and reports whether it had to.
func (w *rewriting) root(ctx context.Context, r *root, s *snapshot) (changed bool, err error) {
	whole := w.whole(s.root)
	r.Events = w.refs(r.Events)
	if whole {
		r.Segments = w.refs(r.Segments)
	}
	r.Footers, _ = w.footers(r.Footers, whole)
	if r.Index, err = w.index(ctx, s.index, whole); err != nil {
		return false, err
	}
	if r.EventIndex, err = w.index(ctx, s.eventIndex, whole); err != nil {
		return false, err
	}
	records, dropped := s.records, false
	if whole { // they are rows, too
		records, dropped = w.records(records)
	}
	if dropped {
		if r.Inline, _, err = sealRecords(records); err != nil {
			return false, err
		}
	}
	same := func(a, b segmentRef) bool { return a.Key == b.Key }
	return dropped || r.Index != s.root.Index || r.EventIndex != s.root.EventIndex || !slices.EqualFunc(r.Segments, s.root.Segments, same) || !slices.EqualFunc(r.Events, s.root.Events, same), nil
}

func (w *rewriting) refs(refs []segmentRef) []segmentRef {
	out := make([]segmentRef, 0, len(refs))
	for _, ref := range refs {
		renewed := w.segments[ref.Key].ref
		if renewed.Key != "" {
			renewed.Level = ref.Level
			out = append(out, renewed)
		}
	}
	return out
}

// records replaces what is to go by barriers.
func (w *rewriting) records(records []*record) (out []*record, dropped bool) {
	for _, r := range records {
		if r.Op != eventlog.Barrier && w.gone(r.key, r.Revision) {
			w.versions[r.Revision], dropped = true, true
			r = barrierFor(r)
		}
		out = append(out, r)
	}
	return out, dropped
}

// barrierFor stands for as many revisions as the record did, and says nothing else than when the last of them was.
func barrierFor(r *record) *record {
	return &record{Event: eventlog.Event{Revision: r.Revision, Time: r.Time}, span: r.span}
}

// footers replaces those of segments that were rewritten.
func (w *rewriting) footers(footers []footer, whole bool) (out []footer, changed bool) {
	for _, f := range footers {
		renewed := w.segments[f.Key]
		switch {
		case renewed == nil && !w.names(), !whole && !strings.HasPrefix(f.Key, w.p.config.Prefix+"/events/"):
			out = append(out, f)
		case renewed == nil, renewed.ref.Key == "":
			changed = true
		case renewed.sealed != nil:
			changed = true
			out = append(out, footer{Key: renewed.ref.Key, Sealed: renewed.sealed})
		default:
			out = append(out, f)
		}
	}
	return out, changed
}

// index is the key of the idx object that takes the place of another.
func (w *rewriting) index(ctx context.Context, x *index, whole bool) (string, error) {
	of := indexOf{x.key, whole}
	if renewed, known := w.indexes[of]; known || x.key == "" {
		return renewed, nil
	}
	footers, err := x.read(ctx)
	if err != nil {
		return "", err
	}
	renewed := x.key
	footers, changed := w.footers(footers, whole)
	if changed {
		if renewed, err = w.p.createIndex(ctx, footers); err != nil {
			return "", err
		}
		w.objects++
	}
	w.indexes[of] = renewed
	return renewed, nil
}

// readSegments makes new segments of those that have what is to go.
func (w *rewriting) readSegments(ctx context.Context, s *snapshot) error {
	if err := w.readRun(ctx, s.events, segment.Events); err != nil || !w.whole(s.root) {
		return err
	}
	for _, r := range s.runs {
		if err := w.readRun(ctx, r, segment.Keys); err != nil {
			return err
		}
	}
	return nil
}

func (w *rewriting) readRun(ctx context.Context, r run, kind segment.Kind) error {
	for _, part := range r {
		if w.segments[part.ref.Key] != nil {
			continue
		}
		renewed := &rewritten{ref: part.ref}
		if w.near(part.ref, kind) {
			var err error
			renewed, err = w.segment(ctx, part, kind)
			if err != nil {
				return fmt.Errorf("rewrite segment %s: %w", part.ref.Key, err)
			}
		}
		w.segments[part.ref.Key] = renewed
	}
	return nil
}

func (w *rewriting) segment(ctx context.Context, r *part, kind segment.Kind) (*rewritten, error) {
	reader, err := r.open(ctx)
	if err != nil {
		return nil, err
	}
	writer, dropped := segment.NewWriter(kind), false
	decoder := recordDecoder{}
	for cursor := reader.Through(nil).Scan("", ""); ; {
		e, ok, err := cursor.Next(ctx)
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		key, err := keyOf(kind, e)
		if err != nil {
			return nil, err
		}
		if w.gone(key, Revision(e.Revision)) {
			w.versions[Revision(e.Revision)], dropped = true, true
			if kind == segment.Keys {
				continue
			}
			r, err := decoder.event(e)
			if err != nil {
				return nil, err
			}
			e = barrierFor(r).eventEntry()
		}
		if err := writer.Add(e); err != nil {
			return nil, err
		}
	}
	if !dropped {
		return &rewritten{ref: r.ref}, nil
	}
	file, sum := writer.Finish()
	if sum.Rows == 0 {
		return &rewritten{}, nil
	}
	folder := fmt.Sprintf("seg/%d", r.ref.Level)
	if kind == segment.Events { // the revisions that it covers are the same
		folder, sum.MinRevision, sum.MaxRevision = "events", uint64(r.ref.MinRevision), uint64(r.ref.MaxRevision)
	}
	ref, err := w.p.create(ctx, folder, r.ref.Level, file, sum)
	if err != nil {
		return nil, err
	}
	written("rewriting", len(file))
	w.objects++
	return &rewritten{ref: ref, sealed: footerOf(ref, file).Sealed}, nil
}

// keyOf is the row key of an entry, empty for a barrier.
func keyOf(kind segment.Kind, e segment.Entry) (string, error) {
	if kind == segment.Keys {
		return e.Key, nil
	}
	key, _, err := eventKey(e)
	return key, err
}
