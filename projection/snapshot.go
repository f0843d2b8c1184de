package projection

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/segment"
)

// snapshot is a root with all data that a reader of the root needs. A snapshot is immutable, except that segments are
// opened on first use.
type snapshot struct {
	p    *Projection
	root *root
	etag string
	// records are the inline events, ascending; inline are the same records as rows, key-ordered.
	records []*record
	inline  []*record
	// runs are the key-ordered segments, newest first; events the event segments, oldest first.
	runs   []run
	events run
	// index has the footers of the runs' segments.
	index *index
}

// run is a sequence of segments, ascending by key. If two of them share a key, the later segment has the key's older
// versions.
type run []*part

// part is a segment that is opened on first use and stays open for as long as a snapshot names it.
type part struct {
	ref     segmentRef
	p       *Projection
	forgets uint64 // of the root that names it
	reader  lazy[segment.Reader]
	// sealed is the footer, if the root has it. Otherwise the index is asked, if there is one.
	sealed []byte
	index  *index
	// whole is a small event segment in full, from the read of its footer until the first read of a block.
	whole atomic.Pointer[[]byte]
}

func (r *root) newPart(p *Projection, ref segmentRef) *part {
	return &part{ref: ref, p: p, forgets: r.Forgets, reader: newLazy[segment.Reader]()}
}

// newSnapshot is the snapshot of a root that was read. Segments that the previous snapshot has opened stay open, unless
// a version was forgotten since.
func (p *Projection) newSnapshot(r *root, etag string, previous *snapshot) (*snapshot, error) {
	records, err := r.inlineRecords()
	if err != nil {
		return nil, fmt.Errorf("read the root: %w", err)
	}
	return p.snapshotOf(r, records, r.Footers, etag, previous), nil
}

// snapshotOf is newSnapshot for callers that have the inline records and the kept footers.
func (p *Projection) snapshotOf(r *root, records []*record, kept []footer, etag string, previous *snapshot) *snapshot {
	s := &snapshot{p: p, root: r, etag: etag, records: records, inline: keyOrdered(records),
		index: &index{key: r.Index, p: p, forgets: r.Forgets, footers: newLazy[map[string][]byte]()}}
	known := make(map[string]*part)
	if previous != nil && previous.root.Forgets == r.Forgets {
		if previous.index.key == r.Index {
			s.index = previous.index
		}
		for _, part := range slices.Concat(previous.events, slices.Concat(previous.runs...)) {
			if part.reader.Load() != nil || part.sealed != nil { // else another place may now have its footer
				known[part.ref.Key] = part
			}
		}
	}
	footers, indexed := bySegment(kept), namesOf(r.indexed())
	partsOf := func(refs []segmentRef) run {
		parts := make(run, len(refs))
		for i, ref := range refs {
			parts[i] = known[ref.Key]
			if parts[i] == nil || parts[i].ref.Level != ref.Level {
				parts[i] = r.newPart(p, ref)
				parts[i].sealed = footers[ref.Key]
				if indexed[ref.Key] {
					parts[i].index = s.index
				}
			}
		}
		return parts
	}
	for _, refs := range r.runs() {
		s.runs = append(s.runs, partsOf(refs))
	}
	s.events = partsOf(r.Events)
	return s
}

// part is the snapshot's own part for a key-ordered segment, which may be open already; else a new one.
func (s *snapshot) part(p *Projection, ref segmentRef) *part {
	for _, known := range slices.Concat(s.runs...) {
		if known.ref.Key == ref.Key {
			return known
		}
	}
	return s.root.newPart(p, ref)
}

// runs groups the key-ordered segments.
func (r *root) runs() (runs [][]segmentRef) {
	for i, ref := range r.Segments {
		if i == 0 || ref.Level&goesOn == 0 && (ref.Level != baseLevel || r.Segments[i-1].Level != baseLevel) {
			runs = append(runs, nil)
		}
		last := len(runs) - 1
		runs[last] = append(runs[last], ref)
	}
	return runs
}

// open reads the footer, once.
func (r *part) open(ctx context.Context) (*segment.Reader, error) { return r.reader.get(ctx, r.read) }

// read opens the segment with the footer from the root or the idx object; otherwise with the segment's own footer.
func (r *part) read(ctx context.Context) (reader *segment.Reader, err error) {
	sealed := r.sealed
	if sealed == nil && r.index != nil {
		kept, err := r.index.all(ctx)
		if err != nil {
			return nil, err
		}
		sealed = kept[r.ref.Key]
	}
	if sealed == nil {
		reader, err = segment.Open(ctx, r.ref.Key, r, r.p.cache, r.ref.Size, r.ref.Footer)
	} else {
		reader, err = segment.OpenFooter(r.ref.Key, r, r.p.cache, r.ref.Size, sealed)
	}
	if err != nil {
		return nil, err
	}
	return reader, r.ref.matches(reader.Summary())
}

// wholeEvents is the largest size at which an event segment is read whole together with its footer. Footers of event
// segments are kept nowhere else, so with a whole read an old version costs one request. A commit spills some 256 KiB.
const wholeEvents = 1 << 20

// ReadRange implements segment.Source.
func (r *part) ReadRange(ctx context.Context, offset, length int64) ([]byte, error) {
	if whole := r.whole.Swap(nil); whole != nil {
		return (*whole)[offset : offset+length], nil
	}
	first := offset
	if offset+length == r.ref.Size && r.ref.Size <= wholeEvents && strings.HasPrefix(r.ref.Key, r.p.config.Prefix+"/events/") {
		first = 0
	}
	b, err := r.p.config.Bucket.GetRange(ctx, r.ref.Key, first, offset+length-first)
	if err != nil {
		return nil, fmt.Errorf("read segment %s: %w", r.ref.Key, err)
	}
	if first == offset || int64(len(b)) != r.ref.Size {
		return b, nil
	}
	r.whole.Store(&b)
	return b[offset:], nil
}

// ReadLocal implements segment.Local.
func (r *part) ReadLocal(offset, length int64) []byte {
	return r.p.local(r.forgets).read(r.ref.Key, offset, length)
}

// KeepLocal implements segment.Local.
func (r *part) KeepLocal(offset int64, b []byte) {
	r.p.local(r.forgets).keep(r.ref.Key, offset, b)
}

func (s *segmentRef) matches(sum segment.Summary) error {
	if s.Rows != sum.Rows || s.Size != sum.Size || !bytes.Equal(s.MinKey, []byte(sum.MinKey)) || !bytes.Equal(s.MaxKey, []byte(sum.MaxKey)) {
		return &segment.FormatError{File: s.Key, Part: "footer", Reason: "not the segment that the root names"}
	}
	return nil
}

// newest returns the key's newest version at or below the revision. It passes over versions that have one of the flags
// in skip. It reads a run only if the run may hold a newer version than the one found.
func (s *snapshot) newest(ctx context.Context, key string, at Revision, skip segment.Flags) (best version, found bool, err error) {
	for i := searchKey(s.inline, key); i < len(s.inline) && s.inline[i].key == key; i++ {
		r := s.inline[i]
		if r.Revision <= at && r.flags()&skip == 0 {
			return versionOf(r), true, nil
		}
	}
	runs := s.candidates(key, at)
	if err := openAll(ctx, runs); err != nil {
		return version{}, false, err
	}
	for _, parts := range runs {
		for _, part := range parts {
			if part.ref.MinRevision > at || found && part.ref.MaxRevision < best.revision {
				continue
			}
			reader, err := part.open(ctx)
			if err != nil {
				return version{}, false, err
			}
			e, ok, err := reader.Find(ctx, key, uint64(at), skip)
			if err != nil {
				return version{}, false, err
			}
			if !ok {
				continue
			}
			if !found || Revision(e.Revision) > best.revision {
				best, found = entryVersion(e), true
			}
			break // later parts have only older versions of the key
		}
	}
	return best, found, nil
}

// candidates are the runs that may have the key at or below the revision, each run cut down to the parts that may have
// the key.
func (s *snapshot) candidates(key string, at Revision) (runs []run) {
	for _, r := range s.runs {
		parts := r.overlapping(key, key+"\x00")
		for len(parts) > 0 && parts[0].ref.MinRevision > at {
			parts = parts[1:]
		}
		if len(parts) > 0 {
			runs = append(runs, parts)
		}
	}
	return runs
}

// openAll opens the first part of every run concurrently, so that a cold reader waits only once.
func openAll(ctx context.Context, runs []run) error {
	closed := 0
	for _, r := range runs {
		if r[0].reader.Load() == nil {
			closed++
		}
	}
	if closed < 2 {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, r := range runs {
		group.Go(func() error {
			_, err := r[0].open(ctx)
			return err
		})
	}
	return group.Wait()
}

// overlapping are the parts that may have keys with start <= key < end; an empty end is unbounded.
func (r run) overlapping(start, end string) run {
	r = r[sort.Search(len(r), func(i int) bool { return string(r[i].ref.MaxKey) >= start }):]
	if end != "" {
		r = r[:sort.Search(len(r), func(i int) bool { return string(r[i].ref.MinKey) >= end })]
	}
	return r
}

// searchKey is the index of the first record at or above the key. The records are ordered by key.
func searchKey(records []*record, key string) int {
	return sort.Search(len(records), func(i int) bool { return records[i].key >= key })
}

// searchRevision is the index of the first record at or above the revision. The records ascend by revision.
func searchRevision(records []*record, rev Revision) int {
	return sort.Search(len(records), func(i int) bool { return records[i].Revision >= rev })
}

// readRoot reads the root. If the newest view has a root, the bucket must still have one.
func (p *Projection) readRoot(ctx context.Context) (*snapshot, error) {
	var previous *snapshot
	if v := p.view.Load(); v != nil {
		previous = v.snap
	}
	return p.rootAfter(ctx, previous)
}

// rootNow reads the root, regardless of the newest view.
func (p *Projection) rootNow(ctx context.Context) (*snapshot, error) { return p.rootAfter(ctx, nil) }

// rootAfter reads the root, after another one or for the first time. In an empty bucket the root has applied nothing.
func (p *Projection) rootAfter(ctx context.Context, previous *snapshot) (*snapshot, error) {
	body, etag, err := p.config.Bucket.Get(ctx, p.rootKey())
	if errors.Is(err, bucket.ErrNotFound) {
		if previous != nil && previous.etag != "" {
			return nil, fmt.Errorf("read the root: it was at serial %d and is gone: %w", previous.root.Serial, errRootGone)
		}
		return p.newSnapshot(&root{}, "", nil)
	}
	if err != nil {
		return nil, fmt.Errorf("read the root: %w", err)
	}
	if previous != nil && previous.etag == etag {
		return previous, nil
	}
	r, err := decodeRoot(body)
	var now *snapshot
	if err == nil {
		now, err = p.newSnapshot(r, etag, previous)
	}
	if err != nil && !errors.Is(err, ErrNewer) {
		err = fmt.Errorf("%w: stop every process of the cell and run 'logplane recover', which says what is left", err)
	}
	return now, err
}
