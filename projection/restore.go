package projection

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/cache"
	"github.com/logplane/logplane/projection/segment"
)

// ErrCellExists: there is a cell where a new one was to be made.
var ErrCellExists = errors.New("there is a cell already: give a folder or prefix that holds none")

// Source is a cell of which only the bucket is read. Its log is not asked, and may be gone.
type Source struct{ p *Projection }

// OpenSource reads a cell's newest root, and writes nothing. It is ErrNoRoot if there is none.
func OpenSource(ctx context.Context, b bucket.Bucket, prefix string, budget *cache.Budget) (*Source, error) {
	p, err := open(Config{Bucket: b, Prefix: prefix, Budget: budget, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	snap, err := p.readRoot(ctx)
	if err != nil {
		return nil, err
	}
	if snap.etag == "" {
		return nil, fmt.Errorf("no '%s' in the bucket: %w", p.rootKey(), ErrNoRoot)
	}
	p.publish(func(*View) *View {
		return &View{p: p, snap: snap, tail: emptyTail(snap.root), superseded: make(chan struct{})}
	})
	return &Source{p}, nil
}

// Newest is the newest revision that the bucket has, and its log time.
func (s *Source) Newest() (Revision, time.Time) {
	r := s.p.Current().snap.root
	return r.Applied, unixTime(r.AppliedTime)
}

// RevisionAt is the newest revision that the bucket has of a time or before, by the log's clock. It is ErrExpired if
// nothing is kept from so long ago.
func (s *Source) RevisionAt(ctx context.Context, t time.Time) (Revision, error) {
	return s.p.Current().revisionAt(ctx, t)
}

// Restored says what a restore has made.
type Restored struct {
	// Revision and Time are the moment's: of the last event that the new cell has.
	Revision Revision
	Time     time.Time
	// Objects are live in the new cell.
	Objects uint64
	// Next is the first revision that the new cell's log will have, Epoch the new cell's.
	Next  Revision
	Epoch uint64
	// Bytes were written to the new cell's bucket.
	Bytes int64
}

// restoreTries is how often a restore starts again because the source went on under it.
const restoreTries = 3

// Restore makes a new cell below a prefix of a bucket: all objects that are live at the revision, as they are there. It
// is ErrCellExists if there is a cell. The source is only read.
//
//  1. Look for a root. If there is one, nothing is changed.
//  2. Write the segments, under names that were never used before. A crash here leaves garbage, and a restore that
//     begins again writes its own. The first collection of the new cell takes what is left.
//  3. Write the root, by Create. Of several restores at once one wins.
//  4. Read all of it back, and check it.
//
// The root is that of a cell that was fenced: in the next epoch, far above every revision that a client of the source
// may have seen. Its log is to begin right after it, see Begin.
func (s *Source) Restore(ctx context.Context, at Revision, b bucket.Bucket, prefix string) (Restored, error) {
	target, err := open(Config{Bucket: b, Prefix: prefix, Budget: s.p.config.Budget})
	if err != nil {
		return Restored{}, err
	}
	done, err := s.restore(ctx, at, target)
	if err != nil {
		return done, fmt.Errorf("restore revision %d: %w", at, err)
	}
	return done, nil
}

func (s *Source) restore(ctx context.Context, at Revision, target *Projection) (Restored, error) {
	nothing, err := target.absent(ctx)
	if err != nil {
		return Restored{}, err
	}
	var next *draft
	var done Restored
	for try := 1; ; try++ {
		next = nothing.draft()
		done, err = s.fill(ctx, target, next, at)
		// What was compacted, collected or expired meanwhile is found in the newest root, if it is still kept.
		overtaken := errors.Is(err, ErrExpired) || errors.Is(err, bucket.ErrNotFound)
		if !overtaken || try == restoreTries {
			break
		}
		if _, again := s.p.reload(ctx); again != nil {
			return Restored{}, again
		}
	}
	if errors.Is(err, ErrExpired) {
		return Restored{}, s.nearest(ctx, at, err)
	}
	if err != nil {
		return Restored{}, err
	}
	_, err = target.swapRoot(ctx, target.rootNow, func(ctx context.Context) (*draft, error) {
		if _, err := target.absent(ctx); err != nil {
			return nil, err
		}
		return next, nil
	})
	if err != nil {
		return Restored{}, err
	}
	return done, target.proven(ctx)
}

// absent is the empty snapshot of a cell that is not there.
func (p *Projection) absent(ctx context.Context) (*snapshot, error) {
	now, err := p.rootNow(ctx)
	if err != nil {
		return nil, err
	}
	if now.etag != "" {
		return nil, fmt.Errorf("'%s' is there: %w", p.rootKey(), ErrCellExists)
	}
	return now, nil
}

// nearest says which revisions can be read instead.
func (s *Source) nearest(ctx context.Context, at Revision, expired error) error {
	older, newer, err := s.p.Current().nearest(ctx, at)
	if err != nil {
		return err
	}
	if older > 0 {
		return fmt.Errorf("the nearest that are kept are %d and %d: %w", older, newer, expired)
	}
	return fmt.Errorf("the nearest that is kept is %d: %w", newer, expired)
}

// fill writes the rows of the draft that the new cell begins with, and completes it.
func (s *Source) fill(ctx context.Context, target *Projection, next *draft, at Revision) (done Restored, err error) {
	newest := s.p.Current().snap.root
	if at > newest.Applied {
		return done, fmt.Errorf("the newest that the bucket has is %d, of %s: %w", newest.Applied, unixTime(newest.AppliedTime).Format(time.RFC3339), ErrFuture)
	}
	v, err := s.p.AsOf(ctx, at)
	if err != nil {
		return done, err
	}
	nanos, err := v.timeOf(ctx, at)
	if err != nil {
		return done, err
	}
	out := &output{p: target, merge: &merge{level: baseLevel}}
	for n, err := range v.live(ctx, "", "", at, nil) {
		if err == nil {
			err = out.add(ctx, []segment.Entry{n.keyEntry()})
		}
		if err != nil {
			return done, err
		}
		done.Objects++
	}
	if err := out.cut(ctx); err != nil {
		return done, err
	}
	next.Segments, next.footers = out.refs, out.footers
	for _, s := range out.refs {
		done.Bytes += s.Size
	}
	if err := next.restored(newest, nanos); err != nil {
		return done, err
	}
	done.Revision, done.Time, done.Next, done.Epoch = at, unixTime(nanos), next.Applied+1, next.Epoch
	return done, target.writeIndex(ctx, next)
}

// keyEntry is the version as a row of a key-ordered segment.
func (v *version) keyEntry() segment.Entry {
	if v.record == nil {
		return v.entry
	}
	return v.record.keyEntry()
}

// restoredID is what the request id of an applied event begins with if it is that of a restore. So far that cell has had
// no log.
const restoredID = "restore-"

// restored makes a draft with rows alone that of a cell which was fenced: as if barriers had followed, up to a revision
// well above the newest of the source.
func (d *draft) restored(source *root, nanos int64) error {
	next := source.Applied + fenceGap
	if next > lastFence {
		return fmt.Errorf("the new cell would begin at revision %d: it must be at most %d, so that there are revisions left", next, uint64(lastFence))
	}
	d.Epoch = source.Epoch + 1
	d.Applied, d.AppliedTime, d.AppliedID, d.Clock = next-1, nanos, restoredID+rand.Text(), nanos
	d.Spilled, d.Floor, d.Purge = d.Applied, d.Applied, d.Applied
	d.Ring = []mark{{Revision: d.Applied, Time: nanos}}
	return nil
}

// timeOf is the log time of the newest event up to the revision, as far as it is kept.
func (v *View) timeOf(ctx context.Context, at Revision) (nanos int64, err error) {
	if v.archive != nil {
		v = v.archive
	}
	r := v.snap.root
	if at == r.Applied {
		return r.AppliedTime, nil
	}
	start := v.archiveStart()
	for width := Revision(16); at > start && nanos == 0; width *= 16 {
		after := max(start, at-min(at, width))
		from := after
		err := v.retry(ctx, func(v *View) error {
			return v.archived(ctx, Keys{}, &after, at, func(e eventlog.Event) bool {
				nanos = e.Time.UnixNano()
				return true
			})
		})
		if err != nil {
			return 0, err
		}
		if from == start {
			break
		}
	}
	for _, m := range r.Ring {
		if m.Revision <= at {
			nanos = max(nanos, m.Time)
		}
	}
	return nanos, nil
}

// proven reads all of a new cell and fails if anything is wrong.
func (p *Projection) proven(ctx context.Context) error {
	var problems []error
	if _, err := p.Verify(ctx, func(problem error) { problems = append(problems, problem) }); err != nil {
		return err
	}
	if len(problems) > 0 {
		return fmt.Errorf("the new cell is damaged, give it up: %w", errors.Join(problems...))
	}
	return nil
}

// Begin lets the log of a restored cell begin where the root ends, and returns the log's first revision. It does
// nothing, and returns 0, unless the root is a restore's and the log has never had an event. A crash before or after it
// is no harm: the next Begin does it, or finds it done.
func (p *Projection) Begin(ctx context.Context) (first Revision, err error) {
	now, err := p.rootNow(ctx)
	if err != nil || !strings.HasPrefix(now.root.AppliedID, restoredID) {
		return 0, err
	}
	log, err := p.config.Log.Extent(ctx)
	if err != nil || log.Head > 0 {
		return 0, err
	}
	first = now.root.Applied + 1
	if err := p.fenceLog(ctx, first); err != nil {
		return 0, fmt.Errorf("begin the log of a restored cell: %w", err)
	}
	return first, nil
}
