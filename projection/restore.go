package projection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/cache"
	"github.com/logplane/logplane/projection/segment"
)

// errCellExists says that there is already a cell where a new one was to be made.
var errCellExists = errors.New("there is a cell already: give a folder or prefix that holds none")

// Source is a cell of which only the bucket is read. Its log is not asked, and may be gone. One call reads everything
// from one root. A Source is not safe for concurrent use.
type Source struct {
	p      *Projection
	newest *snapshot
}

// OpenSource reads a cell's newest root. It writes nothing.
func OpenSource(ctx context.Context, b bucket.Bucket, prefix string, budget *cache.Budget) (*Source, error) {
	p, err := open(Config{Bucket: b, Prefix: prefix, Budget: budget, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	newest, err := p.rootNow(ctx)
	if err != nil {
		return nil, err
	}
	if newest.etag == "" {
		return nil, fmt.Errorf("no cell is there, whose root would be '%s': give the bucket and the prefix of one, or run 'logplane recover' if the root was lost", p.rootKey())
	}
	return &Source{p, newest}, nil
}

// retry repeats a read on the newest root, twice at most, if the source's cell has changed meanwhile. Versions that
// were compacted, collected or expired meanwhile are found through the newest root, if they are still kept.
func (s *Source) retry(ctx context.Context, read func() error) error {
	err := read()
	for n := 0; n < 2 && (errors.Is(err, ErrExpired) || errors.Is(err, bucket.ErrNotFound)); n++ {
		newest, failed := s.p.rootNow(ctx)
		if failed != nil {
			return failed
		}
		s.newest = newest
		err = read()
	}
	return err
}

// Newest is the newest revision that the bucket has.
func (s *Source) Newest() Revision { return s.newest.root.Applied }

// RevisionAt is Projection.RevisionAt for the newest root.
func (s *Source) RevisionAt(ctx context.Context, t time.Time) (rev Revision, err error) {
	err = s.retry(ctx, func() error {
		rev, err = viewOf(s.newest).revisionAt(ctx, t)
		return err
	})
	return rev, err
}

// Covers fails if the bucket does not have the revision. Its error names the nearest revisions that the bucket has.
func (s *Source) Covers(ctx context.Context, at Revision) error {
	return s.reaching(ctx, at, func() error {
		_, err := s.asOf(ctx, at)
		return err
	})
}

// reaching runs a read of a revision. If the revision is not kept, the error says which revisions can be read instead.
func (s *Source) reaching(ctx context.Context, at Revision, read func() error) error {
	expired := s.retry(ctx, read)
	if !errors.Is(expired, ErrExpired) {
		return expired
	}
	older, newer, err := viewOf(s.newest).nearest(ctx, at)
	if err != nil {
		return err
	}
	if older > 0 {
		return fmt.Errorf("the nearest that are kept are %d and %d: %w", older, newer, expired)
	}
	return fmt.Errorf("the nearest that is kept is %d: %w", newer, expired)
}

func (s *Source) asOf(ctx context.Context, at Revision) (*View, error) {
	if newest := s.newest.root; at > newest.Applied {
		return nil, fmt.Errorf("the newest revision that the bucket has is %d, of %s: %w", newest.Applied,
			unixTime(newest.AppliedTime).Format(time.RFC3339), ErrFuture)
	}
	return viewOf(s.newest).asOf(ctx, at)
}

// Restored is the report of a restore.
type Restored struct {
	// Revision is the last revision whose events the new cell has, and Time its log time.
	Revision Revision
	Time     time.Time
	// Objects is how many objects are live in the new cell.
	Objects uint64
	// Next is the first revision of the new cell's log. Its epoch begins with it.
	Next Revision
	// Trimmed are the storage paths that were left out, because their past was not kept up to the moment.
	Trimmed []string
	// Copied is how many bytes the bucket copied by itself, Written how many were sent to it.
	Copied, Written int64
}

// Restore makes a new cell of all objects that are live at the revision, as they are at that revision. The cell lies
// below a prefix of the bucket b, or of the source's own bucket if b is nil. If the revision is inside a batch, the
// whole batch is restored. Restore fails if there is a cell already. Restore only reads the source, and the new cell
// shares nothing with the source.
//
//  1. Look for a root. If there is one, nothing is changed.
//  2. Write the segments, under names that were never used before. A restore that fails deletes them. A crash here
//     leaves garbage, and the next restore writes its own segments. The first collection of the new cell deletes the
//     garbage.
//  3. Write the root with Create: one of several concurrent restores wins.
//  4. Read everything back, and check it.
//
// The root looks as if the cell had been fenced, in an epoch far above the source's revisions. The log must begin right
// after the root's applied revision, see Begin.
func (s *Source) Restore(ctx context.Context, at Revision, b bucket.Bucket, prefix string) (done Restored, err error) {
	if b == nil {
		b = s.p.config.Bucket
	}
	target, err := open(Config{Bucket: b, Prefix: prefix, Budget: s.p.config.Budget})
	if err == nil {
		done, err = s.restore(ctx, at, target)
	}
	if err != nil {
		return done, fmt.Errorf("restore revision %d: %w", at, err)
	}
	return done, nil
}

func (s *Source) restore(ctx context.Context, at Revision, target *Projection) (done Restored, err error) {
	nothing, err := target.absent(ctx)
	if err != nil {
		return done, err
	}
	var next *draft
	err = s.reaching(ctx, at, func() error {
		next = nothing.draft()
		if done, err = s.fill(ctx, target, next, at); err != nil {
			target.discard(ctx, next.made, nothing.root)
		}
		return err
	})
	if err != nil {
		return done, err
	}
	_, err = target.swapRoot(ctx, target.rootNow, func(ctx context.Context) (*draft, error) {
		_, err := target.absent(ctx)
		return next, err
	})
	if err != nil {
		return done, err
	}
	var problems []error
	if _, err := target.Verify(ctx, func(problem error) { problems = append(problems, problem) }); err != nil {
		return done, err
	}
	if err := errors.Join(problems...); err != nil {
		return done, fmt.Errorf("the new cell is damaged, give it up: %w", err)
	}
	return done, nil
}

// absent is the empty snapshot of a cell that does not exist.
func (p *Projection) absent(ctx context.Context) (*snapshot, error) {
	now, err := p.rootNow(ctx)
	if err != nil {
		return nil, err
	}
	if now.etag != "" {
		return nil, fmt.Errorf("'%s' is there: %w", p.rootKey(), errCellExists)
	}
	return now, nil
}

// fill writes the rows that the new cell begins with, and completes the draft.
func (s *Source) fill(ctx context.Context, target *Projection, next *draft, at Revision) (done Restored, err error) {
	at, err = viewOf(s.newest).endOf(ctx, at)
	if err != nil {
		return done, err
	}
	v, err := s.asOf(ctx, at)
	if err != nil {
		return done, err
	}
	nanos, err := s.events(v).timeOf(ctx, at)
	if err != nil {
		return done, err
	}
	filling := &filling{target: target, next: next, from: s.p.config.Bucket, at: at}
	for _, t := range s.newest.root.Trimmed {
		if at < t.Revision {
			filling.Trimmed = append(filling.Trimmed, t.Prefix)
		}
	}
	base, err := s.base(ctx, v, at, target)
	switch {
	case err != nil:
		return done, err
	case base != nil:
		err = filling.copyBase(ctx, base, s.newest)
	default:
		err = filling.writeLive(ctx, v)
	}
	if err != nil {
		return done, err
	}
	if err := next.restored(s.newest.root, nanos); err != nil {
		return done, err
	}
	if err := target.writeIndex(ctx, next); err != nil {
		return done, err
	}
	done = filling.Restored
	done.Revision, done.Time, done.Next = at, unixTime(nanos), next.Applied+1
	for _, ref := range next.Segments {
		done.Written += ref.Size
	}
	done.Written -= done.Copied
	if base == nil {
		return done, nil
	}
	made := viewOf(target.snapshotOf(next.root, nil, next.Footers, "", nil)) // as the new cell's readers will see it
	for _, err := range made.live(ctx, nil, Keys{}, made.Revision(), nil, cached) {
		if err != nil {
			return done, err
		}
		done.Objects++
	}
	return done, nil
}

// events is the view that has the events around the revision of v.
func (s *Source) events(v *View) *View {
	if v.Revision() > v.Applied() {
		return viewOf(s.newest)
	}
	return v
}

// base is the snapshot, at or below the revision, from which the new cell is copied; nil if the live rows are read and
// written instead. Within one bucket copying is cheaper. Between two buckets the base is copied only if the revision
// lies between two checkpoints, where the live rows would be folded in memory.
func (s *Source) base(ctx context.Context, v *View, at Revision, target *Projection) (*snapshot, error) {
	if v.Revision() > v.Applied() {
		return v.snap, nil
	}
	r := s.newest.root
	switch below := r.checkpointAt(at + 1); {
	case target.config.Bucket != s.p.config.Bucket:
		return nil, nil
	case at == r.Applied:
		return s.newest, nil
	case below > 0 && r.archiveStart() <= r.Checkpoints[below-1].Revision:
		return s.p.pastSnapshot(ctx, r.Checkpoints[below-1])
	}
	return nil, nil
}

// filling is the segments of a new cell while they are being written.
type filling struct {
	Restored
	target *Projection
	next   *draft
	from   bucket.Bucket
	at     Revision
}

// writeLive writes the live rows of a view as a base, one part at a time.
func (f *filling) writeLive(ctx context.Context, v *View) error {
	out := &output{p: f.target, merge: &merge{level: baseLevel}}
	defer func() { f.next.made = out.made }()
	whole := *v
	whole.past = nil // it would refuse all keys if a rule has trimmed some
	for n, err := range whole.live(ctx, nil, Keys{}, f.at, nil, cached) {
		if err == nil && f.trims(n.key) {
			continue
		}
		if err == nil {
			err = out.add(ctx, n.keyEntry())
		}
		if err != nil {
			return err
		}
		f.Objects++
	}
	if err := out.cut(ctx); err != nil {
		return err
	}
	f.next.Segments, f.next.footers = out.refs, out.footers
	return nil
}

// copyBase copies the segments of a snapshot as they are, and folds the events after the snapshot, up to the moment. It
// writes a segment of rows for each 16 MiB of events, as a projector does.
func (f *filling) copyBase(ctx context.Context, base, newest *snapshot) error {
	f.next.Segments = slices.Clone(base.root.Segments)
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for i := range f.next.Segments {
		ref := &f.next.Segments[i]
		from := ref.Key
		ref.Key = f.target.segmentKey(fmt.Sprintf("seg/%d", ref.level()), ref.MinRevision, ref.MaxRevision)
		f.next.made = append(f.next.made, ref.Key)
		group.Go(func() error { return f.copySegment(groupCtx, from, ref.Key) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if f.target.config.Bucket == f.from {
		for _, ref := range f.next.Segments {
			f.Copied += ref.Size
		}
	}
	var batch []*record // events that no segment has yet
	bytes := 0
	spill := func() error { // keeps the newest row of each key
		rows := slices.CompactFunc(keyOrdered(batch), func(a, b *record) bool { return a.key == b.key })
		batch, bytes = nil, 0
		return f.target.writeRows(ctx, f.next, rows)
	}
	fold := func(r *record) error {
		if f.trims(r.key) {
			return nil
		}
		batch, bytes = append(batch, r), bytes+len(r.Body)
		if bytes <= spillBytes && len(batch) < spillEvents {
			return nil
		}
		return spill()
	}
	for _, r := range base.records {
		if r.Op != eventlog.Barrier && !r.void {
			if err := fold(r); err != nil {
				return err
			}
		}
	}
	var failed error
	after := base.root.Applied
	// Base and events come from one root: a newer root may have forgotten or trimmed rows that the base still has.
	err := newest.archived(ctx, Keys{}, &after, f.at, taker{yield: func(e eventlog.Event) bool {
		failed = fold(newRecord(e))
		return failed == nil
	}})
	if err = cmp.Or(failed, err); err != nil {
		return err
	}
	return spill()
}

// spillEvents bounds the events in one segment, however small they are.
const spillEvents = 1 << 16

// trims reports whether a key is left out. Copied segments have no rows of such keys, because a root lists a prefix as
// trimmed only after the rows of its keys are gone.
func (f *filling) trims(key string) bool {
	return slices.ContainsFunc(f.Trimmed, func(prefix string) bool { return below(prefix, key) })
}

// copySegment copies a segment to a name in the new cell.
func (f *filling) copySegment(ctx context.Context, from, to string) error {
	if f.target.config.Bucket == f.from {
		if err := f.from.Copy(ctx, from, to); err != nil {
			return fmt.Errorf("copy segment %s: %w", from, err)
		}
		return nil
	}
	body, _, err := f.from.Get(ctx, from)
	if err != nil {
		return fmt.Errorf("read segment %s: %w", from, err)
	}
	if _, err := f.target.config.Bucket.Create(ctx, to, body); err != nil {
		return fmt.Errorf("write segment %s: %w", to, err)
	}
	return nil
}

// keyEntry is the version as an entry of a key-ordered segment.
func (v *version) keyEntry() segment.Entry {
	if v.record == nil {
		return v.entry
	}
	return v.record.keyEntry()
}

// restoredID is the prefix of the applied request id of a restored cell until its first commit. Until then the cell has
// no log.
const restoredID = "restore-"

// restored turns a draft that has only rows into the root of a fenced cell. The root looks as if barriers had followed
// the rows, up to a revision well above the source's.
func (d *draft) restored(source *root, nanos int64) error {
	next := source.Applied + eventlog.FenceGap
	if next > lastFence {
		return fmt.Errorf("the new cell would begin at revision %d: it must be at most %d, so that there are revisions left", next, uint64(lastFence))
	}
	d.leap(next, nanos, restoredID)
	d.Clock, d.Spilled = nanos, d.Applied
	d.Forgets = source.Forgets // so that it continues to use the source's cache folders
	d.Ring = []mark{{Revision: d.Applied, Time: nanos}}
	return nil
}

// indexInBatch is how many events of a batch come before one of its events. It reads the number from the end of the
// event's request id, which no client controls.
func indexInBatch(at Revision, requestID string) Revision {
	dot := strings.LastIndexByte(requestID, '.')
	n, err := strconv.ParseUint(requestID[dot+1:], 10, 64)
	if dot < 0 || err != nil || Revision(n) >= at {
		return 0
	}
	return Revision(n)
}

// Begin makes the log of a restored cell begin where the root ends, and returns the log's first revision. Begin does so
// only if the root was made by a restore, nothing was applied since, and the log has had only barriers. Otherwise it
// changes nothing, and returns 0. A crash before or after the change does no harm: the next Begin makes the change, or
// finds it made. No client can make a root look as if a restore had made it (docs/format.md, A restored cell).
func (p *Projection) Begin(ctx context.Context) (first Revision, err error) {
	now, err := p.rootNow(ctx)
	if err != nil {
		return 0, err
	}
	first = now.root.Applied + 1
	if uint64(first) != now.root.Epoch || !strings.HasPrefix(now.root.AppliedID, restoredID) {
		return 0, nil
	}
	unused, err := p.config.Log.Unused(ctx)
	if err != nil || !unused {
		return 0, err
	}
	if err := p.fenceLog(ctx, first); err != nil {
		return 0, fmt.Errorf("begin the log of a restored cell: %w", err)
	}
	return first, nil
}
