package projection

import (
	"iter"
	"slices"
	"sync/atomic"

	"github.com/logplane/logplane/projection/cache"
	"github.com/logplane/logplane/projection/segment"
)

// Fact is a hash of something that is true of a row, such as that it has a label. The projection knows nothing else
// about the row's value.
type Fact uint16

// Selection says by facts which rows are wanted. If the known facts of a block exclude the block, it is neither read
// nor decompressed, unless it may hide older versions that are wanted.
type Selection struct {
	// Kind names the function Facts: for one kind, the facts of a row are always the same.
	Kind string
	// Facts returns the facts of all rows of a block, in any order. Facts returns false if it cannot tell the facts of
	// some row. Facts must be safe for concurrent use.
	Facts func(rows iter.Seq[Row]) (facts []Fact, ok bool)
	// Demands are sets of facts. A wanted row has at least one fact of each set.
	Demands [][]Fact
}

const (
	// factShare: facts have a budget of their own, 1/factShare of the caches' budget (docs/decisions/memory.md).
	factShare = 8
	// mostFacts is how many facts of a block are kept; a block of Pods has some 75. If a block has more, none are kept.
	// With 1024 of the 65536 possible facts, one block in sixty has a demanded fact by chance, and is then read without
	// need.
	mostFacts = 1024
	// segmentOverhead and blockOverhead are rough numbers of the bytes that facts take in addition to their values.
	segmentOverhead, blockOverhead = 512, 32
)

// factCache keeps facts. Segments are immutable, so nothing is ever invalidated.
type factCache = cache.Cache[factsID, *facts]

type factsID struct{ kind, file string }

// facts are the sorted facts of each block of a segment. A block's pointer is nil before its facts are known.
type facts []atomic.Pointer[[]Fact]

// anything stands for the facts of a block whose rows may have any fact.
var anything = new([]Fact)

// filter is the segment.Filter of a segment for a selection. older are the runs with older versions of the segment's
// keys.
type filter struct {
	*Selection
	cache *factCache
	id    factsID
	facts *facts
	older []run
	// unwanted says that no row of the last block read is wanted.
	unwanted bool
}

func newFilter(c *factCache, file string, blocks int, wanted *Selection, older []run) *filter {
	f := &filter{Selection: wanted, cache: c, id: factsID{wanted.Kind, file}, older: older}
	known, ok := c.Get(f.id)
	if !ok {
		unknown := make(facts, blocks)
		known = c.Add(f.id, wanted.Kind, &unknown, int64(segmentOverhead+8*blocks))
	}
	f.facts = known
	return f
}

// Excludes implements segment.Filter. A block without wanted rows is still read if older versions of its keys may be
// wanted, because the block's rows and tombstones hide these versions.
func (f *filter) Excludes(block int, first, last string) bool {
	if !f.lack(f.facts, block) {
		return false
	}
	for _, r := range f.older {
		if slices.ContainsFunc(r.overlapping(first, last+"\x00"), func(p *part) bool { return f.shows(p, first, last) }) {
			return false
		}
	}
	return true
}

// shows reports whether a segment may have a wanted row between the keys.
func (f *filter) shows(p *part, first, last string) bool {
	reader := p.reader.Load()
	known, ok := f.cache.Get(factsID{f.Kind, p.ref.Key})
	if reader == nil || !ok {
		return true
	}
	for block, upto := reader.Between(first, last); block < upto; block++ {
		if !f.lack(known, block) {
			return true
		}
	}
	return false
}

// lack reports whether the facts of a block prove that none of its rows is wanted.
func (s *Selection) lack(of *facts, block int) bool {
	known := (*of)[block].Load()
	if known == nil || known == anything {
		return false
	}
	return slices.ContainsFunc(s.Demands, func(demand []Fact) bool {
		return !slices.ContainsFunc(demand, func(fact Fact) bool {
			_, found := slices.BinarySearch(*known, fact)
			return found
		})
	})
}

// Learn implements segment.Filter.
func (f *filter) Learn(block int, b *segment.Block) {
	slot := &(*f.facts)[block]
	if slot.Load() == nil {
		known := f.of(b)
		if slot.CompareAndSwap(nil, known) {
			if kept, ok := f.cache.Get(f.id); ok && kept == f.facts { // else the cache has dropped these facts
				f.cache.Grow(f.id, int64(blockOverhead+2*cap(*known)))
			}
		}
	}
	f.unwanted = f.lack(f.facts, block)
}

// of returns the facts of a block. It ignores tombstones and void rows, which are in no list.
func (f *filter) of(b *segment.Block) *[]Fact {
	var decoder recordDecoder
	var failed error
	all, ok := f.Facts(func(yield func(Row) bool) {
		for _, e := range b.Entries {
			if e.Flags != 0 {
				continue
			}
			var row Row
			if row, failed = decoder.row(e); failed != nil || !yield(row) {
				return
			}
		}
	})
	slices.Sort(all)
	all = slices.Compact(all)
	if !ok || failed != nil || len(all) > mostFacts {
		return anything
	}
	known := slices.Clip(slices.Clone(all))
	return &known
}
