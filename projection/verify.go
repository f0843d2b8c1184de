package projection

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/segment"
)

// Verified says how much a verification has read.
type Verified struct {
	// Objects is how many objects of the bucket were read completely, the root and checkpoints included.
	Objects int
	// Rows counts the rows of key-ordered segments, Events counts the events of event segments, and LogEvents counts
	// the log's events that were compared.
	Rows, Events, LogEvents uint64
	// Orphans are objects that no root or checkpoint names: garbage, or objects of a commit in flight. Foreign are
	// objects that Logplane does not write.
	Orphans, Foreign int
	OrphanBytes      int64
}

// Verify reads the root, the checkpoints, and every byte of every segment that they name, and reports every problem:
//
//   - damage,
//   - rows out of order, or outside the range that the root gives,
//   - a bloom filter that lacks a key of its segment,
//   - holes between events,
//   - rows, events and log that contradict each other.
//
// Verify continues until it has seen everything. err is set only if the root cannot be read, or the bucket cannot be
// listed. Other processes may commit and collect meanwhile.
func (p *Projection) Verify(ctx context.Context, report func(problem error)) (Verified, error) {
	for try := 1; ; try++ {
		v := &verification{p: p}
		if err := v.run(ctx); err != nil {
			return v.Verified, fmt.Errorf("verify: %w", err)
		}
		// A collection or purge during the pass looks like a loss. There is a loss only if the root did not change, or
		// after three tries.
		if len(v.problems) == 0 || try == 3 || !v.overtaken(ctx) {
			for _, problem := range v.problems {
				report(problem)
			}
			return v.Verified, nil
		}
	}
}

// verification is one pass over a root and all objects that the root names.
type verification struct {
	Verified
	p     *Projection
	root  *root
	etag  string
	named map[string]bool
	// lost are the damaged segments that checkpoints name and the root does not.
	lost map[string]bool
	// footers are the footers that are kept outside of their segments.
	footers  map[string][]byte
	problems []error
	// unread: some object could not be read, so an apparent contradiction proves nothing.
	unread bool
	// clusters are those whose rows the root needs.
	clusters clusters
	// rows and events are ascending by revision once all of them are read.
	rows, events []fact
}

// fact is one row or event, reduced to the fields that are compared. All facts of a cell are in memory at once, 32
// bytes each.
type fact struct {
	revision Revision
	// key, head and body are hashes: of the row key, of everything but the body, and of the body.
	key, head uint64
	body      uint32
	flags     segment.Flags
	// trimmed: a rule may have trimmed the event. ended: the row may have been dropped, with an ended branch.
	trimmed, ended bool
}

func (v *verification) factOf(r *record) fact {
	return fact{trimmed: r.Revision <= v.root.keptFrom(r.key), ended: v.clusters.ended(r.key), revision: r.Revision, flags: r.flags(), key: xxhash.Sum64String(r.key),
		head: xxhash.Sum64(appendRecord(appendString(nil, r.key), r, nil)), body: uint32(xxhash.Sum64(r.Body))}
}

// same compares two sources of one event. Rows of tombstones and void events have no body.
func (f *fact) same(other *fact) bool {
	return f.head == other.head && (f.flags|other.flags != 0 || f.body == other.body)
}

func (v *verification) report(format string, args ...any) {
	v.problems = append(v.problems, fmt.Errorf(format, args...))
}

func (v *verification) overtaken(ctx context.Context) bool {
	_, etag, err := v.p.config.Bucket.Get(ctx, v.p.rootKey())
	return err == nil && etag != v.etag
}

func (v *verification) run(ctx context.Context) error {
	snap, err := v.p.rootNow(ctx)
	if err != nil {
		return err
	}
	if snap.etag == "" {
		return fmt.Errorf("no '%s': %w", v.p.rootKey(), ErrNoRoot)
	}
	v.read(ctx, snap)
	if !v.unread && v.p.config.Log != nil {
		if err := v.compareLog(ctx); err != nil {
			v.report("the log: %w", err)
		}
	}
	if !v.unread {
		v.compareFloor()
	}
	return v.list(ctx)
}

// read reads all objects that a snapshot names, and checks that they are one history.
func (v *verification) read(ctx context.Context, snap *snapshot) {
	v.root, v.etag, v.named, v.lost = snap.root, snap.etag, snap.root.names(), map[string]bool{}
	var err error
	if v.clusters, err = viewOf(snap).clusters(ctx); err != nil {
		v.unread = true
		v.report("%w", err)
	}
	v.Objects++
	v.readFooters(ctx)
	v.rows = make([]fact, 0, countRows(v.root.Segments)+uint64(len(snap.records)))
	for _, refs := range v.root.runs() {
		last := new(record)
		for _, ref := range refs {
			v.segment(ctx, ref, segment.Keys, func(r *record) {
				if last.key > r.key || last.key == r.key && last.Revision <= r.Revision {
					v.report("segment %s does not follow the one before it in its run", ref.Key)
				}
				last = r
				v.rows = append(v.rows, v.factOf(r))
			})
		}
	}
	last := Revision(0) // before the first event
	follow := func(r *record) {
		before := r.Revision - Revision(r.span)
		if !v.unread && before != last && (last > 0 || before > v.root.Floor) {
			v.report("events have a hole between revisions %d and %d", last, before+1)
		}
		last = r.Revision
		if r.Op != eventlog.Barrier {
			v.events = append(v.events, v.factOf(r))
		}
	}
	v.p.pages.Clear() // so that pages are read from the bucket
	paged, err := v.p.paged(ctx, v.root)
	if err != nil {
		v.unread = true
		v.report("%w", err)
	}
	v.Objects += len(v.root.Pages)
	v.events = make([]fact, 0, countRows(paged)+countRows(v.root.Events)+uint64(len(snap.records)))
	for _, ref := range append(paged, v.root.Events...) {
		v.named[ref.Key] = true
		v.segment(ctx, ref, segment.Events, follow)
	}
	for _, r := range snap.records {
		follow(r)
		if r.Op != eventlog.Barrier {
			v.rows = append(v.rows, v.factOf(r))
		}
	}
	v.Rows, v.Events = uint64(len(v.rows)), uint64(len(v.events))
	for _, c := range v.root.Checkpoints {
		v.checkpoint(ctx, c)
	}
	if !v.unread {
		if last != v.root.Applied && v.root.Applied > v.root.Floor {
			v.report("events end at %d, not at the applied revision %d", last, v.root.Applied)
		}
		v.compareRows()
	}
}

// countRows is how many rows the segments have.
func countRows(refs []segmentRef) (n uint64) {
	for _, ref := range refs {
		n += ref.Rows
	}
	return n
}

// checkpoint reads a checkpoint, and the objects that it pins, unless these were read already.
func (v *verification) checkpoint(ctx context.Context, c checkpoint) {
	v.Objects++
	v.named[c.Key] = true
	copied, err := v.p.checkpointed(ctx, c)
	if err == nil {
		_, err = copied.inlineRecords()
	}
	if err != nil {
		v.report("%w", err)
		return
	}
	v.named[copied.Index] = true
	pinned := func(refs []segmentRef, kind segment.Kind) {
		for _, ref := range refs {
			if !v.named[ref.Key] {
				v.named[ref.Key] = true
				before := len(v.problems)
				v.segment(ctx, ref, kind, func(*record) {})
				v.lost[ref.Key] = len(v.problems) > before
			}
			if v.lost[ref.Key] {
				v.report("checkpoint %s names segment %s, which the root does not: '--drop-checkpoint %s' lets go of it", c.Key, ref.Key, c.Key)
			}
		}
	}
	pinned(copied.Segments, segment.Keys)
	pinned(copied.Events, segment.Events)
}

func (v *verification) readFooters(ctx context.Context) {
	footers := v.root.Footers
	if v.root.Index != "" {
		body, _, err := v.p.config.Bucket.Get(ctx, v.root.Index)
		if err == nil {
			footers, err = decodeIndex(body)
			footers = append(footers, v.root.Footers...)
		}
		if err != nil {
			v.report("read %s: %w", v.root.Index, err)
		}
	}
	v.footers = bySegment(footers)
}

// segment reads one segment completely and passes its records to each.
func (v *verification) segment(ctx context.Context, ref segmentRef, kind segment.Kind, each func(*record)) {
	v.Objects++
	if err := v.readSegment(ctx, ref, kind, each); err != nil {
		v.unread = true
		v.report("segment %s: %w", ref.Key, err)
	}
}

func (v *verification) readSegment(ctx context.Context, ref segmentRef, kind segment.Kind, each func(*record)) error {
	body, _, err := v.p.config.Bucket.Get(ctx, ref.Key)
	if err != nil {
		return err
	}
	reader, err := segment.OpenBytes(ref.Key, body)
	if err != nil {
		return err
	}
	sum := reader.Summary()
	if err := ref.matches(sum); err != nil {
		return err
	}
	if sum.Kind != kind || Revision(sum.MinRevision) < ref.MinRevision || Revision(sum.MaxRevision) > ref.MaxRevision {
		return fmt.Errorf("it is of kind %d with revisions %d to %d, the root says %d with %d to %d", sum.Kind, sum.MinRevision, sum.MaxRevision, kind, ref.MinRevision, ref.MaxRevision)
	}
	if kept, ok := v.footers[ref.Key]; ok && !bytes.Equal(kept, reader.Footer()) {
		v.report("the kept footer of segment %s is not its own", ref.Key)
	}
	if err := reader.Verify(ctx); err != nil {
		return err
	}
	for r, err := range recordsOf(ctx, reader) {
		if err != nil {
			return err
		}
		each(r)
	}
	return nil
}

// compareRows checks that rows and events are one history: above the floor each row has its event, and vice versa.
func (v *verification) compareRows() {
	slices.SortFunc(v.rows, func(a, b fact) int { return cmp.Compare(a.revision, b.revision) })
	first := Revision(0) // the oldest revision with an event
	if len(v.events) > 0 {
		first = v.events[0].revision
	}
	for i := range v.rows {
		r := &v.rows[i]
		if i > 0 && v.rows[i-1].revision == r.revision {
			v.report("revision %d has two rows", r.revision)
		}
		e := find(v.events, r.revision)
		switch {
		case e == nil && !r.trimmed && (r.revision > v.root.Floor || first > 0 && r.revision > first):
			v.report("the row at revision %d has no event", r.revision)
		case e != nil && (!e.same(r) || e.flags != r.flags):
			v.report("row and event at revision %d differ", r.revision)
		}
	}
	for i := range v.events {
		e := &v.events[i]
		if e.flags&segment.Void == 0 && e.revision > v.root.Floor && find(v.rows, e.revision) == nil {
			v.report("the event at revision %d has no row", e.revision)
		}
	}
}

// compareFloor checks that each key's last archived event at or below the floor has a row, unless the event is a
// deletion. It sorts the events by key, in place, since they are many.
func (v *verification) compareFloor() {
	slices.SortFunc(v.events, func(a, b fact) int { return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(b.revision, a.revision)) })
	var newest *fact // event of the key at or below the floor
	for i := range v.events {
		e := &v.events[i]
		if newest != nil && newest.key == e.key || e.flags&segment.Void != 0 || e.revision > v.root.Floor {
			continue
		}
		newest = e
		if e.flags&segment.Tombstone == 0 && !e.ended && find(v.rows, e.revision) == nil {
			v.report("the event at revision %d, its key's last at the floor, has no row", e.revision)
		}
	}
}

func find(facts []fact, rev Revision) *fact {
	i, ok := slices.BinarySearchFunc(facts, rev, func(f fact, rev Revision) int { return cmp.Compare(f.revision, rev) })
	if !ok {
		return nil
	}
	return &facts[i]
}

// compareLog checks that snapshot and log agree where the log still has the snapshot's revisions.
func (v *verification) compareLog(ctx context.Context) error {
	bounds, err := v.p.config.Log.Head(ctx)
	switch {
	case err != nil:
		return err
	case bounds.Head < v.root.Applied:
		return fmt.Errorf("its head is %d, below the applied revision %d: %w", bounds.Head, v.root.Applied, eventlog.ErrDiverged)
	case bounds.First > v.root.Applied+1:
		return fmt.Errorf("it begins at %d, above the applied revision %d: %w", bounds.First, v.root.Applied, ErrHole)
	}
	after := max(bounds.First-1, min(v.root.Floor, v.root.archiveStart()))
	if after >= v.root.Applied {
		return nil
	}
	return v.p.config.Log.Tail(ctx, after, v.root.Applied, func(e eventlog.Event) error {
		if e.Op != eventlog.Barrier {
			v.LogEvents++
		}
		if e.Revision == v.root.Applied {
			if err := v.root.position().Compare(e.Position()); err != nil {
				v.report("the root and the log differ: %w", err)
			}
		}
		kept := find(v.events, e.Revision)
		if e.Op == eventlog.Barrier {
			if kept != nil {
				v.report("revision %d is a barrier in the log, and an event in the snapshot", e.Revision)
			}
			return nil
		}
		logged := v.factOf(newRecord(e))
		switch {
		case kept == nil && logged.trimmed:
		case kept == nil:
			v.report("the log's event at revision %d is not in the snapshot", e.Revision)
		case !kept.same(&logged) || kept.flags&segment.Void == 0 && kept.flags != logged.flags:
			v.report("log and snapshot differ at revision %d", e.Revision)
		}
		return nil
	})
}

// list counts the objects that nothing names. Garbage is not a problem: a crash leaves it, and a collection deletes it.
func (v *verification) list(ctx context.Context) error {
	prefix := v.p.config.Prefix + "/"
	err := v.p.config.Bucket.List(ctx, prefix, func(a bucket.Attributes) error {
		folder, _, _ := strings.Cut(strings.TrimPrefix(a.Key, prefix), "/")
		switch {
		case a.Key == v.p.rootKey() || v.named[a.Key]:
		case collected[folder]:
			v.Orphans++
			v.OrphanBytes += a.Size
		default:
			v.Foreign++
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list the bucket: %w", err)
	}
	return nil
}
