package projection

import (
	"context"
	"errors"

	"github.com/logplane/logplane/eventlog"
)

// Count is the number of rows that Scan would yield. It decodes no row. A block of the oldest run is not even read if
// the newer runs and the tail have no key in the block's range: the index says how many live keys the block has.
func (v *View) Count(ctx context.Context, start, end string, at Revision) (int, error) {
	b, err := v.p.branchOf(ctx, Keys{start, end})
	if err != nil {
		return 0, err
	}
	return v.count(ctx, b, Keys{start, end}, at)
}

// count is Count for callers that know where the cluster of the keys begins.
func (v *View) count(ctx context.Context, b *Branch, keys Keys, at Revision) (n int, err error) {
	from, err := v.inheritance(ctx, b, keys.Start, at)
	if err != nil {
		return 0, err
	}
	if from != nil {
		return from.count(ctx, v, keys, at)
	}
	err = v.at(ctx, keys, at, func(v *View) error {
		n = 0
		m, err := v.merge(ctx, keys.Start, keys.End, at, nil, cached)
		if err != nil {
			return err
		}
		passed := m.passBlocks()
		for {
			next, ok, err := m.next(ctx)
			if err != nil {
				return err
			}
			if !ok {
				n += *passed
				return nil
			}
			if !next.dead() {
				n++
			}
		}
	})
	return n, err
}

// passBlocks lets the oldest run skip the blocks in whose key range no other source has a key. It returns a counter, to
// which each skipped block adds its live keys.
func (m *merged) passBlocks() *int {
	passed := new(int)
	if len(m.heads) < 2 { // the first head is the root's own rows
		return passed
	}
	oldest := m.heads[len(m.heads)-1]
	source := oldest.source.(*runSource)
	limit := func() string {
		key, others := m.leastKey(oldest)
		if len(source.parts) > 1 { // the next part may begin with the last key of this one
			if next := string(source.parts[1].ref.MinKey); !others || next < key {
				return next
			}
		}
		return key
	}
	source.pass = func(s *runSource) {
		if s.parts[0].ref.MaxRevision <= oldest.at { // the newest version of each key counts at this revision
			*passed += s.cursor.CountBlocks(limit)
		}
	}
	return passed
}

// fewEvents is how many events can be read at no more cost than counting the rows.
const fewEvents = 1000

// CountFrom is Count for callers that know the number of rows at another revision. It counts the additions and
// deletions between the two revisions. It falls back to Count if the known revision is below the floor. It also falls
// back if the events between the two revisions may outnumber the rows, because Count skips most of the rows.
func (v *View) CountFrom(ctx context.Context, of Keys, at Revision, known int, knownAt Revision) (int, error) {
	first, last := min(at, knownAt), max(at, knownAt)
	if first < v.Floor() || last > v.Revision() || last-first > Revision(known)+fewEvents {
		return v.Count(ctx, of.Start, of.End, at)
	}
	grown := 0
	for e, err := range v.EventsOf(ctx, of, first, last) {
		switch {
		case errors.Is(err, ErrExpired): // since then the floor has passed the range
			return v.Count(ctx, of.Start, of.End, at)
		case err != nil:
			return 0, err
		case e.Op == eventlog.Added:
			grown++
		case e.Op == eventlog.Deleted:
			grown--
		}
	}
	if at < knownAt {
		grown = -grown
	}
	return known + grown, nil
}
