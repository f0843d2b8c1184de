package projection

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/segment"
)

const (
	// runsPerLevel is how many runs of one level are merged into one run of the next level.
	runsPerLevel = 8
	// baseLevel is the level of the base.
	baseLevel = 9
	// partBytes is the size at which a part of a run is cut at the next key. A part of 5/4 of this size is cut between
	// two versions of a key. So a compaction holds a bounded number of bytes, and its PUTs are bounded.
	partBytes = 8 << 20
	// baseShare: the runs above the base are merged into the base once they have 1/baseShare of the base's bytes.
	baseShare = 4
	// manyEvents is how many event segments a root lists before neighbours among them are joined, or the oldest half
	// moves to a page.
	manyEvents = 512
	// joinAtLeast is the least number of segments that are joined. joinedBytes is the largest size of the result.
	joinAtLeast = 16
	joinedBytes = 8 << 20
)

// errOvertaken is wrapped when another projector has meanwhile compacted a compaction's inputs or collected the
// compaction's outputs. The objects that the compaction wrote are garbage.
var errOvertaken = errors.New("another projector compacted or collected meanwhile")

// merge is one compaction: adjacent runs become one.
type merge struct {
	inputs []run
	level  uint8
	// events says that the inputs are event segments, whose events are joined into one segment.
	events bool
	// floor and purge say which versions may be dropped: those below the floor and the purge point that were in force
	// when the compaction began.
	floor, purge Revision
	holds        []mark
	// clusters are those that may still be read. The rows of ended branches are dropped below the floor.
	clusters clusters
	// generation and forgets are those of the root.
	generation, forgets uint64
}

// Compact merges runs if there are enough of them, and reports whether it did. It may run during commits, in any number
// of processes. It commits its outcome onto the root that is then in the bucket, if that root still lists the inputs.
// Otherwise the compaction's work is lost, which is not an error. A broken run is an error, but other runs are still
// merged.
func (p *Projection) Compact(ctx context.Context) (bool, error) {
	v, err := p.atHand(ctx)
	if err != nil {
		return false, fmt.Errorf("compact: %w", err)
	}
	m := v.choose()
	if m == nil {
		return false, nil
	}
	done, err := v.compact(ctx, m)
	if err != nil && p.isBroken(slices.Concat(m.inputs...)) { // it was not broken when it was chosen
		var others error
		done, others = p.Compact(ctx)
		err = errors.Join(err, others)
	}
	return done, err
}

// brokenTime is how long compactions avoid a segment that a compaction could not read.
const brokenTime = 10 * time.Minute

// isBroken reports whether one of the parts is broken: lost, or damaged.
func (p *Projection) isBroken(parts run) bool {
	return slices.ContainsFunc(parts, func(r *part) bool {
		found, ok := p.broken.Load(r.ref.Key)
		return ok && time.Since(found.(time.Time)) < brokenTime
	})
}

// atHand is the newest view that this process has. If it is old, the swap finds that out.
func (p *Projection) atHand(ctx context.Context) (*View, error) {
	if v := p.view.Load(); v != nil {
		return v, nil
	}
	return p.gather(ctx)
}

// compact does a compaction, and reports whether it did. Losing to another projector is not an error.
func (v *View) compact(ctx context.Context, m *merge) (bool, error) {
	if !m.events { // events stay, as long as the archive does
		var err error
		if m.clusters, err = v.clusters(ctx); err != nil {
			return false, fmt.Errorf("compact: %w", err)
		}
	}
	out, err := v.p.merge(ctx, m)
	if err == nil {
		err = out.commit(ctx)
	}
	if err != nil && v.p.undecided.Load() == nil {
		v.p.discard(ctx, out.made, v.snap.root)
	}
	if errors.Is(err, bucket.ErrNotFound) { // an input was collected; if the newest root still names it, it is lost
		renewed, again := v.again(ctx, v)
		if again == nil {
			_, _, again = m.position(renewed.snap.root)
		}
		err = cmp.Or(again, err)
	}
	if errors.Is(err, errOvertaken) {
		return false, nil
	}
	if err == nil {
		return true, nil
	}
	for _, r := range slices.Concat(m.inputs...) {
		if (errors.Is(err, bucket.ErrNotFound) || errors.Is(err, ErrDamaged)) && strings.Contains(err.Error(), r.ref.Key) { // errors name their object
			v.p.broken.Store(r.ref.Key, time.Now())
		}
	}
	return false, fmt.Errorf("compact: %w", err)
}

// choose picks the next compaction of a view's snapshot; nil if there is none.
func (v *View) choose() *merge {
	upper, base := splitBase(v.snap.runs)
	m := &merge{floor: v.Floor(), holds: v.snap.root.Holds, generation: v.snap.root.Generation, forgets: v.snap.root.Forgets}
	// A tombstone must outlive its event. As long as the log has the event, writers must know that the event is the
	// key's last one.
	if v.first > 0 {
		m.purge = min(v.snap.root.Purge, v.first-1)
	}
	upperBytes := slices.Concat(upper...).bytes()
	whole := !v.p.isBroken(slices.Concat(v.snap.runs...))
	for first, r := range upper {
		same := upper[first:]
		other := slices.IndexFunc(same, func(s run) bool { return s.level() != r.level() || !whole && v.p.isBroken(s) })
		if other >= 0 {
			same = same[:other]
		}
		if len(same) < runsPerLevel {
			continue
		}
		switch {
		case whole && (upperBytes*baseShare >= base.bytes() || r.level()+1 == baseLevel):
			m.inputs, m.level = v.snap.runs, baseLevel
		case r.level()+1 == baseLevel:
			continue
		default:
			m.inputs, m.level = same, r.level()+1
		}
		return m
	}
	return nil
}

// neighbours picks adjacent event segments to be joined; nil if there are none. Event segments belong to the archive,
// which only requests of the past read.
func (v *View) neighbours() *merge {
	if len(v.snap.events) < v.p.manyEvents {
		return nil
	}
	var picked run
	for _, part := range v.snap.events {
		if part.ref.MaxRevision > v.Floor() || len(picked) >= joinAtLeast {
			break
		}
		// A large or broken segment stays as it is, between its neighbours.
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

// splitBase splits off the base, which is always the last run. base is nil if there is none.
func splitBase(runs []run) (upper []run, base run) {
	last := len(runs) - 1
	if last < 0 || runs[last].level() != baseLevel {
		return runs, nil
	}
	return runs[:last], runs[last]
}

func (r run) level() uint8 { return r[0].ref.level() }

func (r run) bytes() (n int64) {
	for _, s := range r {
		n += s.ref.Size
	}
	return n
}

// merge writes the outputs. A part of the base stays as it is if no newer version lies between its keys. merge returns
// the output so far even if it returns an error.
func (p *Projection) merge(ctx context.Context, m *merge) (*output, error) {
	out := &output{p: p, merge: m}
	upper, base := splitBase(m.inputs)
	var heads []*head
	all := slices.Concat(upper...).bytes()
	for _, r := range upper {
		h, err := headOf(ctx, r, all)
		if err != nil {
			return out, err
		}
		heads = append(heads, h)
	}
	// The base's parts divide the keys into ranges; parts that share a key are in one range. Without a base there is
	// one range.
	for {
		below, end := base, ""
		for i := 1; i < len(base) && end == ""; i++ {
			if !bytes.Equal(base[i-1].ref.MaxKey, base[i].ref.MinKey) {
				below, end = base[:i], string(base[i].ref.MinKey)
			}
		}
		base = base[len(below):]
		if err := out.mergeRange(ctx, heads, below, end); err != nil {
			return out, err
		}
		if end == "" {
			break
		}
	}
	err := out.cut(ctx)
	out.refs = oneRun(out.refs)
	return out, err
}

// output collects the segments that a compaction writes.
type output struct {
	p      *Projection
	merge  *merge
	writer *segment.Writer
	last   string // the key of the last version written
	refs   []segmentRef
	// footers of the segments that were written.
	footers []footer
	// made are the keys of all objects that were written.
	made []string
}

// mergeRange merges the versions of the runs and of some parts of the base, up to the key end, exclusive. It copies the
// entries' values unchanged. The runs continue from range to range, because a large base has many parts.
func (o *output) mergeRange(ctx context.Context, upper []*head, below run, end string) error {
	touched := slices.ContainsFunc(upper, func(h *head) bool { return h.before(end) }) || slices.ContainsFunc(below, o.merge.hasEnded)
	if !touched && len(below) > 0 {
		if err := o.cut(ctx); err != nil {
			return err
		}
		for _, part := range below {
			o.refs = append(o.refs, part.ref)
		}
		return nil
	}
	heads := upper
	if len(below) > 0 {
		h, err := headOf(ctx, below, 0)
		if err != nil {
			return err
		}
		heads = append(slices.Clone(upper), h)
	}
	key, newer, ended := "", nowhere, false
	for {
		h := least(heads, end)
		if h == nil {
			return nil
		}
		if h.current.key != key {
			key, newer, ended = h.current.key, nowhere, o.merge.clusters.ended(h.current.key)
		}
		if o.merge.survives(&h.current, &newer) && (!ended || h.current.revision > o.merge.floor) {
			if err := o.add(ctx, h.current.entry); err != nil {
				return err
			}
		}
		if err := h.advance(ctx); err != nil {
			return err
		}
	}
}

// headOf is the head of a run, at the run's first version. ofAll is the size of all runs that are read together with
// this run; 0 if the run is read alone.
func headOf(ctx context.Context, r run, ofAll int64) (*head, error) {
	h := &head{at: ^Revision(0), source: &runSource{parts: r, bytes: r.bytes(), ofAll: ofAll, through: past}}
	return h, h.advance(ctx)
}

// before reports whether the next version is of a key before the end; an empty end is unbounded.
func (h *head) before(end string) bool { return h.ok && (end == "" || h.current.key < end) }

// least is the head with the newest version of the least key before the end; nil if there is none. Versions are taken
// one at a time, because a key may have any number of versions.
func least(heads []*head, end string) (found *head) {
	for _, h := range heads {
		if !h.before(end) {
			continue
		}
		if found == nil || h.current.key < found.current.key || h.current.key == found.current.key && h.current.revision > found.current.revision {
			found = h
		}
	}
	return found
}

// hasEnded says whether a part begins or ends with rows of a branch that nobody can read any more. Such rows between
// others are dropped once something else is merged into their part.
func (m *merge) hasEnded(p *part) bool {
	return m.clusters.ended(string(p.ref.MinKey)) || m.clusters.ended(string(p.ref.MaxKey))
}

// survives gets the versions of a key, newest first, and says whether the next version is kept (invariant 11). newer is
// the revision of the version before. A version is kept if it is the newest one at a revision that can be read: at a
// hold, at the floor, or above. A tombstone is dropped if nothing lies below it and the log no longer has its event.
// But above a hold it is kept: it may hide a version that the hold keeps, or one that its key inherits, since a branch
// holds the revision at which it begins. A void row is kept while the log has its event.
func (m *merge) survives(n *version, newer *Revision) bool {
	switch {
	case m.events:
		return true
	case n.flags&segment.Void != 0:
		return n.revision > m.purge
	}
	above := *newer
	*newer = n.revision
	i, _ := slices.BinarySearchFunc(m.holds, mark{Revision: n.revision}, byRevision)
	held := i < len(m.holds) && m.holds[i].Revision < above
	if above <= m.floor && !held {
		return false
	}
	return !n.dead() || m.level != baseLevel || n.revision > min(m.purge, m.floor) || len(m.holds) > 0 && m.holds[0].Revision < n.revision
}

// add writes a version.
func (o *output) add(ctx context.Context, e segment.Entry) error {
	if o.writer != nil && !o.merge.events { // neighbours has bounded the events already
		most := o.p.partBytes
		if o.last == e.Key {
			most += most / 4
		}
		if o.writer.Len() >= most {
			if err := o.cut(ctx); err != nil {
				return err
			}
		}
	}
	if o.writer == nil && o.merge.events {
		o.writer = segment.NewWriter(segment.Events)
	} else if o.writer == nil {
		o.writer = segment.NewWriter(segment.Keys)
	}
	o.last = e.Key
	return o.writer.Add(e)
}

func (m *merge) folder() string {
	if m.events {
		return "events"
	}
	return fmt.Sprintf("seg/%d", m.level)
}

// cut ends the current segment.
func (o *output) cut(ctx context.Context) error {
	if o.writer == nil {
		return nil
	}
	file, sum := o.writer.Finish()
	o.writer = nil
	if o.merge.events {
		sum.MinRevision = uint64(o.merge.inputs[0][0].ref.MinRevision) // barriers before its first event belong to it
	}
	ref, err := o.p.create(ctx, o.merge.folder(), o.merge.level, file, sum)
	o.made = append(o.made, ref.Key)
	if err != nil {
		return err
	}
	written("compaction", len(file))
	if !o.merge.events {
		o.p.local(o.merge.forgets).keep(ref.Key, 0, file)
	}
	o.refs = append(o.refs, ref)
	o.footers = append(o.footers, footerOf(ref, file))
	return nil
}

// list is where a root names the inputs.
func (m *merge) list(r *root) *[]segmentRef {
	if m.events {
		return &r.Events
	}
	return &r.Segments
}

// position is where the root names the inputs: from (inclusive) to end (exclusive). It fails with errOvertaken unless
// the root names all inputs next to each other.
func (m *merge) position(r *root) (from, end int, err error) {
	inputs, refs := slices.Concat(m.inputs...), *m.list(r)
	from = slices.IndexFunc(refs, func(s segmentRef) bool { return s.Key == inputs[0].ref.Key })
	end = from + len(inputs)
	same := func(p *part, s segmentRef) bool { return p.ref.Key == s.Key }
	if from < 0 || end > len(refs) || !slices.EqualFunc(inputs, refs[from:end], same) {
		return 0, 0, errOvertaken
	}
	return from, end, nil
}

// commit swaps the root for one that has the outputs in place of the inputs. The other stages of a commit (commit.go)
// have nothing to do here: no event is folded, and time does not pass.
func (o *output) commit(ctx context.Context) error {
	_, err := o.p.swap(ctx, func(ctx context.Context, v *View) (*draft, error) {
		next := v.snap.draft()
		from, end, err := o.merge.position(next.root)
		if err != nil {
			return nil, err
		}
		if next.Generation != o.merge.generation {
			if err := o.renew(ctx, next.Generation); err != nil {
				return nil, err
			}
		}
		list := o.merge.list(next.root)
		*list = slices.Concat((*list)[:from], o.refs, (*list)[end:])
		next.footers = o.footers
		if err := o.p.writeIndex(ctx, next); err != nil {
			return nil, err
		}
		return next, nil
	})
	return err
}

// renew writes the outputs again, one at a time, in a newer generation: a collector may have taken the old outputs for
// garbage, and does not know the new names.
func (o *output) renew(ctx context.Context, generation uint64) error {
	for i := range o.footers {
		old := o.footers[i].Key
		at := slices.IndexFunc(o.refs, func(s segmentRef) bool { return s.Key == old })
		body, err := o.p.config.Bucket.GetRange(ctx, old, 0, o.refs[at].Size)
		if errors.Is(err, bucket.ErrNotFound) {
			return errOvertaken
		}
		if err != nil {
			return fmt.Errorf("read %s again: %w", old, err)
		}
		ref := o.refs[at]
		ref.Key = o.p.segmentKey(o.merge.folder(), ref.MinRevision, ref.MaxRevision)
		o.made = append(o.made, ref.Key)
		if _, err := o.p.config.Bucket.Create(ctx, ref.Key, body); err != nil {
			return fmt.Errorf("write %s again: %w", ref.Key, err)
		}
		written("renewal", len(body))
		o.refs[at], o.footers[i].Key = ref, ref.Key
	}
	o.merge.generation = generation
	return nil
}
