package projection

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/segment"
)

// Forgotten says what Forget has done.
type Forgotten struct {
	// Versions is how many versions are gone, and Objects how many objects of the bucket were made anew without them.
	Versions, Objects int
	// Floor is the oldest revision that can be read since.
	Floor Revision
	// Collected is how many objects of the bucket were deleted: those that had the versions, and all other garbage.
	Collected int
}

// Forget removes every version of the keys but the newest, if that is live, from the log and the bucket for good. All
// that is kept of anything else stays as it is, and revisions keep their numbers: where an event was, a barrier is.
//
//  1. The log's file is filled, and everything up to there is committed. A crash after this has added barriers.
//  2. The log's events must be older than any stalled writer: Forget waits for as long as settled says (eventlog's
//     MinRetention), unless all writers have stopped.
//  3. Floor and purge point are raised, and the log is purged. A watch or a page that would have to tell of a forgotten
//     version ends with 410. A crash after this has expired what retention would have expired later.
//  4. What has the versions is written anew without them: segments, idx objects, checkpoints. Then the root is swapped
//     for one that names these. A crash before leaves the old root and garbage, a crash after leaves garbage only.
//  5. A barrier tells all who have an older root at hand to read it again. A crash before leaves processes that still
//     read a forgotten version, from memory, until they meet a newer root.
//  6. Everything that no root names is deleted, however young it is.
//
// It ends once all of the bucket was read and has none of the versions. After a crash, call it again. Caches on the
// disks of other processes, subscribers and copies of the bucket are not its business.
func (p *Projection) Forget(ctx context.Context, keys []string, settled time.Duration) (Forgotten, error) {
	done, err := p.forget(ctx, keys, settled)
	if err != nil {
		return done, fmt.Errorf("forget: %w", err)
	}
	return done, nil
}

func (p *Projection) forget(ctx context.Context, keys []string, settled time.Duration) (done Forgotten, err error) {
	filled, err := p.fillLog(ctx)
	if err != nil {
		return done, err
	}
	wait := time.NewTimer(settled)
	defer wait.Stop()
	if err := p.commitUpTo(ctx, filled); err != nil {
		return done, err
	}
	gone, last, err := p.toForget(ctx, keys, filled)
	if err != nil {
		return done, err
	}
	select {
	case <-wait.C:
	case <-ctx.Done():
		return done, ctx.Err()
	}
	if err := p.Retain(ctx, last, filled); err != nil {
		return done, err
	}
	// The last pass finds nothing. One more than two is needed if a compaction of another process came between.
	for range forgetPasses {
		w := &rewriting{p: p, gone: gone, versions: map[Revision]bool{}}
		v, err := p.swap(ctx, w.draft)
		if err != nil {
			return done, err
		}
		if err := p.outdateLog(ctx); err != nil {
			return done, err
		}
		collected, err := p.Collect(ctx, 0)
		if err != nil {
			return done, err
		}
		done.Versions, done.Objects, done.Collected, done.Floor = done.Versions+len(w.versions), done.Objects+w.objects, done.Collected+collected, v.Floor()
		if len(w.versions) == 0 {
			return done, w.heldUnnamed(ctx)
		}
	}
	return done, errors.New("other processes write anew what is forgotten: stop the projectors, and forget it again")
}

// forgetPasses bounds how often Forget reads all of the bucket.
const forgetPasses = 4

// commitUpTo commits until the root has applied the revision, which the log has.
func (p *Projection) commitUpTo(ctx context.Context, upto Revision) error {
	for {
		v, err := p.swap(ctx, func(ctx context.Context, v *View) (*draft, error) {
			if v.Applied() >= upto {
				return nil, nil
			}
			return p.advance(ctx, v)
		})
		if err != nil || v.Applied() >= upto {
			return err
		}
	}
}

// forgotten has by key the last revision that is to go. Void events of a key go up to there too.
type forgotten map[string]Revision

func (f forgotten) has(key string, rev Revision) bool { return rev <= f[key] }

// overlap reports whether one of the keys may be in a key-ordered segment.
func (f forgotten) overlap(s segmentRef) bool {
	for key := range f {
		if key >= string(s.MinKey) && key <= string(s.MaxKey) {
			return true
		}
	}
	return false
}

// toForget says up to where each key's versions are to go, and which was the last event of any of them, 0 if none is
// known. Of a live object the newest version stays. Of any other key everything goes that is not after the given
// revision.
func (p *Projection) toForget(ctx context.Context, keys []string, upto Revision) (gone forgotten, last Revision, err error) {
	v, err := p.AtLeast(ctx, upto)
	if err != nil {
		return nil, 0, err
	}
	gone = forgotten{}
	err = v.retry(ctx, func(v *View) error {
		for _, key := range keys {
			n, found, err := v.newest(ctx, key, upto)
			if err != nil {
				return err
			}
			gone[key] = upto
			if found && !n.dead() {
				gone[key] = n.revision - 1
			}
			if found {
				last = max(last, n.revision)
			}
		}
		return nil
	})
	return gone, last, err
}

// rewriting makes new objects of those that have what is to be forgotten. It remembers what it has made, so that it
// makes it once, however many roots name it and however often the swap is tried.
type rewriting struct {
	p    *Projection
	gone forgotten
	// generation of the root for which it has written. In a later one, a collector may have taken it for garbage.
	generation  uint64
	segments    map[string]*rewritten
	indexes     map[string]string
	checkpoints map[string]checkpoint
	// versions that were left out, and how many objects were written.
	versions map[Revision]bool
	objects  int
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
		w.segments, w.indexes, w.checkpoints = map[string]*rewritten{}, map[string]string{}, map[string]checkpoint{}
	}
	// All segments come first: an idx object has footers of those that several roots name.
	snaps := []*snapshot{v.snap}
	for _, c := range v.snap.root.Checkpoints {
		snap, err := w.p.pastSnapshot(ctx, c)
		if err != nil {
			return nil, err
		}
		snaps = append(snaps, snap)
	}
	for _, s := range snaps {
		if err := w.readSegments(ctx, s); err != nil {
			return nil, err
		}
	}
	next := v.snap.draft()
	for i, c := range next.Checkpoints {
		renewed, err := w.checkpoint(ctx, c, snaps[i+1])
		if err != nil {
			return nil, err
		}
		if renewed != c {
			next.Checkpoints = slices.Clone(next.Checkpoints)
			next.Checkpoints[i] = renewed
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

func (w *rewriting) checkpoint(ctx context.Context, c checkpoint, s *snapshot) (checkpoint, error) {
	if known, ok := w.checkpoints[c.Key]; ok {
		return known, nil
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
	r.Segments, r.Events = w.refs(r.Segments), w.refs(r.Events)
	r.Footers, _ = w.footers(r.Footers)
	r.Index, err = w.index(ctx, s.index)
	if err != nil {
		return false, err
	}
	records, dropped := w.records(s.records)
	if dropped {
		if r.Inline, _, err = sealRecords(records); err != nil {
			return false, err
		}
	}
	same := func(a, b segmentRef) bool { return a.Key == b.Key }
	return dropped || r.Index != s.root.Index || !slices.EqualFunc(r.Segments, s.root.Segments, same) || !slices.EqualFunc(r.Events, s.root.Events, same), nil
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
		if r.Op != eventlog.Barrier && w.gone.has(r.key, r.Revision) {
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

// footers replaces those of segments that were rewritten. Those of segments that no root names are left out: nobody has
// looked into them.
func (w *rewriting) footers(footers []footer) (out []footer, changed bool) {
	for _, f := range footers {
		renewed := w.segments[f.Key]
		switch {
		case renewed == nil || renewed.ref.Key == "":
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
func (w *rewriting) index(ctx context.Context, x *index) (string, error) {
	if renewed, known := w.indexes[x.key]; known || x.key == "" {
		return renewed, nil
	}
	footers, err := x.read(ctx)
	if err != nil {
		return "", err
	}
	renewed := x.key
	footers, changed := w.footers(footers)
	if changed {
		if renewed, err = w.p.createIndex(ctx, footers); err != nil {
			return "", err
		}
		w.objects++
	}
	w.indexes[x.key] = renewed
	return renewed, nil
}

// readSegments makes new segments of those that have what is to go.
func (w *rewriting) readSegments(ctx context.Context, s *snapshot) error {
	for _, r := range append(slices.Clone(s.runs), s.events) {
		for _, part := range r {
			if w.segments[part.ref.Key] != nil {
				continue
			}
			renewed, err := w.segment(ctx, part)
			if err != nil {
				return fmt.Errorf("rewrite segment %s: %w", part.ref.Key, err)
			}
			w.segments[part.ref.Key] = renewed
		}
	}
	return nil
}

func (w *rewriting) segment(ctx context.Context, r *part) (*rewritten, error) {
	same := &rewritten{ref: r.ref}
	reader, err := r.open(ctx)
	if err != nil {
		return nil, err
	}
	kind := reader.Summary().Kind
	if kind == segment.Keys && !w.gone.overlap(r.ref) {
		return same, nil
	}
	writer, dropped := segment.NewWriter(kind), false
	decoder := recordDecoder{}
	for cursor := reader.Uncached().Scan("", ""); ; {
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
		if w.gone.has(key, Revision(e.Revision)) {
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
		return same, nil
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
	written("forget", len(file))
	w.objects++
	return &rewritten{ref: ref, sealed: slices.Clone(file[sum.Size-sum.Footer:])}, nil
}

// heldUnnamed fails if an object that no root names has what was to be forgotten. Others may be at work: what they have
// begun to write before the root was swapped is garbage once they notice.
func (w *rewriting) heldUnnamed(ctx context.Context) error {
	names, err := w.p.garbage(ctx, 0)
	if err != nil {
		return err
	}
	for _, name := range names {
		body, _, err := w.p.config.Bucket.Get(ctx, name)
		if errors.Is(err, bucket.ErrNotFound) {
			continue
		}
		held := false
		if err == nil {
			held, err = w.holds(ctx, name, body)
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if held {
			return fmt.Errorf("%s, of work that another process has begun before, still has a forgotten version: forget it again when that process is done, in some minutes", name)
		}
	}
	return nil
}

// holds reports whether an object of the bucket has what is to go. An idx object has no versions.
func (w *rewriting) holds(ctx context.Context, name string, body []byte) (bool, error) {
	switch {
	case strings.HasPrefix(name, w.p.config.Prefix+"/idx/"):
		return false, nil
	case strings.HasPrefix(name, w.p.config.Prefix+"/ckpt/"):
		r, err := decodeRoot(body)
		if err != nil {
			return false, err
		}
		records, err := r.inlineRecords()
		return slices.ContainsFunc(records, func(r *record) bool { return w.gone.has(r.key, r.Revision) }), err
	}
	reader, err := segment.OpenBytes(name, body)
	if err != nil {
		return false, err
	}
	for cursor := reader.Scan("", ""); ; {
		e, ok, err := cursor.Next(ctx)
		if err != nil || !ok {
			return false, err
		}
		key, err := keyOf(reader.Summary().Kind, e)
		if err != nil || w.gone.has(key, Revision(e.Revision)) {
			return err == nil, err
		}
	}
}

// keyOf is the row key of an entry, empty for a barrier.
func keyOf(kind segment.Kind, e segment.Entry) (string, error) {
	if kind == segment.Keys {
		return e.Key, nil
	}
	key, _, err := eventKey(e)
	return key, err
}
