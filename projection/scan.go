package projection

import (
	"context"
	"iter"
	"sort"

	"golang.org/x/sync/errgroup"

	"github.com/logplane/logplane/projection/segment"
)

// own yields the newest version of each key in key order, tombstones included, regardless of what a key inherits. If a
// segment was collected meanwhile, own continues after the last key, on a new root. It may leave out versions that a
// selection excludes, or yield them marked as unwanted; a nil selection wants everything.
func (v *View) own(ctx context.Context, start, end string, at Revision, wanted *Selection, how through) iter.Seq2[version, error] {
	return func(yield func(version, error) bool) {
		last := ""
		err := v.at(ctx, Keys{start, end}, at, func(v *View) error {
			if last != "" {
				start = last + "\x00"
			}
			m, err := v.merge(ctx, start, end, at, wanted, how)
			if err != nil {
				return err
			}
			for {
				n, ok, err := m.next(ctx)
				if err != nil || !ok {
					return err
				}
				last = n.key
				if !yield(n, nil) {
					return errEnough
				}
			}
		})
		if err != nil && err != errEnough {
			yield(version{}, err)
		}
	}
}

// source yields versions by key ascending, revision descending.
type source interface {
	next(ctx context.Context) (version, bool, error)
	// skip moves past all versions of the keys up to and including the given one. A key may have very many versions.
	skip(key string)
}

// merged walks over tail and snapshot at one revision, one key at a time.
type merged struct {
	view *View
	at   Revision
	end  string
	// heads are newest first: a head's versions of a key are newer than those of later heads.
	heads []*head
	chain []*record
	// selects says that the heads may have skipped versions.
	selects bool
}

// head is a source and its current version: the newest version, at or below the revision in 'at', of the source's next
// key. The head leaves out versions that have one of the flags in skip.
type head struct {
	source  source
	at      Revision
	skip    segment.Flags
	current version
	ok      bool
}

func (v *View) merge(ctx context.Context, start, end string, at Revision, wanted *Selection, how through) (*merged, error) {
	m := &merged{view: v, at: at, end: end, selects: wanted != nil}
	below := m.below()
	inline := &head{at: below, skip: segment.Void, source: newInlineSource(v.snap.inline, start, end)}
	if err := inline.advance(ctx); err != nil {
		return nil, err
	}
	m.heads = append(m.heads, inline)
	var all int64
	for i, r := range v.snap.runs {
		parts := r.overlapping(start, end)
		if len(parts) > 0 {
			source := &runSource{parts: parts, older: v.snap.runs[i+1:], bytes: parts.bytes(), start: start, end: end,
				wanted: wanted, through: how}
			m.heads = append(m.heads, &head{at: below, skip: segment.Void, source: source})
			all += source.bytes
		}
	}
	for _, h := range m.heads[1:] {
		h.source.(*runSource).ofAll = all
	}
	if err := firstOfAll(ctx, m.heads[1:]); err != nil {
		return nil, err
	}
	m.nextChain(start)
	return m, nil
}

// firstOfAll reads the first block of every run concurrently. Most lists of a write's admission find one run or none,
// for which a goroutine would cost more than the rest of the list.
func firstOfAll(ctx context.Context, runs []*head) error {
	switch len(runs) {
	case 0:
		return nil
	case 1:
		return runs[0].advance(ctx)
	}
	group, groupCtx := errgroup.WithContext(ctx)
	for _, h := range runs {
		group.Go(func() error { return h.advance(groupCtx) })
	}
	return group.Wait()
}

// below is the revision at which the snapshot is read.
func (m *merged) below() Revision { return min(m.at, m.view.Applied()) }

func (m *merged) nextChain(start string) {
	m.chain = m.view.tail.nextChain(start, m.view.Applied(), m.at, func(key string) bool { return m.end == "" || key < m.end })
}

// next returns the newest valid version of the next key, tombstones included.
func (m *merged) next(ctx context.Context) (version, bool, error) {
	for {
		key, ok := m.leastKey(nil)
		if !ok {
			return version{}, false, nil
		}
		newest, found, err := m.take(ctx, key)
		if err != nil {
			return version{}, false, err
		}
		if len(m.chain) > 0 && m.chain[0].key == key {
			chain := m.chain
			m.nextChain(key + "\x00")
			newest, found, err = m.view.fold(ctx, chain, func() (version, bool, error) {
				if m.selects { // fold needs the version below the event, wanted or not
					return m.view.snap.newest(ctx, key, m.below(), segment.Void)
				}
				return newest, found, nil
			})
		}
		if found || err != nil {
			return newest, found, err
		}
	}
}

// leastKey is the least next key of all sources except one, which may be nil.
func (m *merged) leastKey(but *head) (key string, ok bool) {
	for _, h := range m.heads {
		if h != but && h.ok && (!ok || h.current.key < key) {
			key, ok = h.current.key, true
		}
	}
	if len(m.chain) > 0 && (!ok || m.chain[0].key < key) {
		key, ok = m.chain[0].key, true
	}
	return key, ok
}

// take returns the newest version of the key in the snapshot and moves every source past the key.
func (m *merged) take(ctx context.Context, key string) (best version, found bool, err error) {
	for _, h := range m.heads {
		if !h.ok || h.current.key != key {
			continue
		}
		if !found || h.current.revision > best.revision {
			best, found = h.current, true
		}
		h.source.skip(key)
		if err := h.advance(ctx); err != nil {
			return version{}, false, err
		}
	}
	return best, found, nil
}

// advance goes to the source's next version at or below the revision. If the previous key was skipped, the next version
// is the newest one of its key.
func (h *head) advance(ctx context.Context) error {
	for {
		var err error
		h.current, h.ok, err = h.source.next(ctx)
		if err != nil || !h.ok {
			return err
		}
		if h.current.revision <= h.at && h.current.flags&h.skip == 0 {
			return nil
		}
	}
}

// inlineSource walks over the root's own rows.
type inlineSource struct{ records []*record }

func newInlineSource(records []*record, start, end string) *inlineSource {
	records = records[searchKey(records, start):]
	if end != "" {
		records = records[:searchKey(records, end)]
	}
	return &inlineSource{records}
}

func (s *inlineSource) next(context.Context) (version, bool, error) {
	if len(s.records) == 0 {
		return version{}, false, nil
	}
	r := s.records[0]
	s.records = s.records[1:]
	return versionOf(r), true, nil
}

func (s *inlineSource) skip(key string) {
	if len(s.records) > 0 && s.records[0].key <= key {
		s.records = s.records[sort.Search(len(s.records), func(i int) bool { return s.records[i].key > key }):]
	}
}

// runSource walks over the parts of a run, opening each when it is reached.
type runSource struct {
	parts run
	// bytes is the size of the parts, ofAll the size of all runs that are read together. Both are 0 for a run that is
	// read alone.
	bytes, ofAll int64
	start, end   string
	skipped      string // versions of keys up to this one are not wanted
	cursor       *segment.Cursor
	// before is the cursor of the previous part.
	before *segment.Cursor
	// through says which caches the reads use.
	through through
	// wanted is nil if every block is read. Otherwise filter is the filter of the first part, once that part is open.
	wanted *Selection
	filter *filter
	// older are the runs below this one.
	older []run
	// pass, if set, is called before a version is taken from the cursor, and may make the cursor skip blocks.
	pass func(*runSource)
}

func (s *runSource) next(ctx context.Context) (version, bool, error) {
	for len(s.parts) > 0 {
		if s.cursor == nil && s.skipped != "" && string(s.parts[0].ref.MaxKey) <= s.skipped {
			s.parts = s.parts[1:] // more versions of a skipped key
			continue
		}
		if s.cursor == nil {
			reader, err := s.open(ctx)
			if err != nil {
				return version{}, false, err
			}
			s.cursor = reader.Scan(s.start, s.end)
			if s.ofAll > 0 {
				s.cursor.Share(s.bytes, s.ofAll)
			}
			if s.wanted != nil {
				s.filter = newFilter(s.parts[0].p.facts, s.parts[0].ref.Key, reader.Blocks(), s.wanted, append([]run{s.parts[1:]}, s.older...))
				s.cursor.Filter = s.filter
			}
			if s.before != nil {
				s.cursor.Continue(s.before)
			}
			s.cursor.Skip(s.skipped)
		}
		if s.pass != nil {
			s.pass(s)
		}
		e, ok, err := s.cursor.Next(ctx)
		if err != nil {
			return version{}, false, err
		}
		if ok {
			n := entryVersion(e)
			n.unwanted = s.filter != nil && s.filter.unwanted
			return n, true, nil
		}
		s.parts, s.cursor, s.before = s.parts[1:], nil, s.cursor
	}
	return version{}, false, nil
}

func (s *runSource) skip(key string) {
	s.skipped = key
	if s.cursor != nil {
		s.cursor.Skip(key)
	}
}

func (s *runSource) open(ctx context.Context) (*segment.Reader, error) {
	reader, err := s.parts[0].open(ctx)
	switch {
	case err != nil || s.through == cached:
		return reader, err
	case s.through == past:
		return reader.Through(nil), nil
	}
	c := s.parts[0].p.cache
	c.how = s.through
	return reader.Through(c), nil
}
