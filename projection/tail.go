package projection

import (
	"sync"

	"github.com/google/btree"

	"github.com/logplane/logplane/eventlog"
)

// tail is the events after the snapshot, as they came. Which events are void is found out when a key is read, so that
// catching up needs no bucket. A tail is immutable; extend shares its data.
type tail struct {
	// byKey is ordered by key, newest first. All tails share cloning, which is held while byKey is cloned, because
	// cloning writes to both trees.
	byKey   *btree.BTreeG[*record]
	cloning *sync.Mutex
	// records is ascending by revision, barriers left out.
	records []*record
	// at is the position of the newest event, barriers included. This position is compared when the tail is resumed
	// (invariant 9).
	at    eventlog.Position
	bytes int
	// outdates is the last barrier that outdates older roots, 0 for none.
	outdates Revision
	// epoch is the epoch of the root: an event of an older epoch was written across a fence and is void (invariant 9).
	epoch uint64
}

func emptyTail(r *root) *tail {
	return &tail{byKey: btree.NewG(32, newestFirst), cloning: new(sync.Mutex), at: r.position(), epoch: r.Epoch}
}

func newestFirst(a, b *record) bool {
	if a.key != b.key {
		return a.key < b.key
	}
	return a.Revision > b.Revision
}

// extend returns the tail with the events, which must follow its last event and end with a batch. Only the newest tail
// may be extended, by one caller at a time, because records shares its array with the older tails.
func (t *tail) extend(events []eventlog.Event) *tail {
	next := t.clone()
	var before *record
	for i := range events {
		r := newRecord(events[i])
		if i > 0 && events[i].Continues(&events[i-1]) {
			if before.append == nil {
				before.append = &appended{records: []*record{before}}
			}
			r.append = before.append
			r.append.records = append(r.append.records, r)
		}
		next.add(r)
		next.at = events[i].Position()
		if events[i].Outdates {
			next.outdates = events[i].Revision
		}
		before = r
	}
	return next
}

// clone returns a tail to which no reader has access yet. It shares records with the original.
func (t *tail) clone() *tail {
	next := *t
	t.cloning.Lock()
	defer t.cloning.Unlock()
	next.byKey = t.byKey.Clone()
	return &next
}

func (t *tail) add(r *record) {
	if r.Op == eventlog.Barrier {
		return
	}
	t.byKey.ReplaceOrInsert(r)
	t.records = append(t.records, r)
	t.bytes += r.size()
}

// above returns the tail without the events that the root has applied. The root must not be ahead of the tail.
func (t *tail) above(r *root) *tail {
	next := emptyTail(r)
	for _, rec := range t.records {
		if rec.Revision > r.Applied {
			next.add(rec)
		}
	}
	next.at, next.outdates = t.at, t.outdates
	return next
}

// chain returns the events of a key in (after, upto], newest first.
func (t *tail) chain(key string, after, upto Revision) []*record {
	return t.nextChain(key, after, upto, func(k string) bool { return k == key })
}

// nextChain is the chain of the first key from start on that has events in (after, upto]. It stops before an unwanted
// key.
func (t *tail) nextChain(start string, after, upto Revision, wanted func(key string) bool) (chain []*record) {
	pivot := &record{key: start, Event: eventlog.Event{Revision: ^Revision(0)}}
	t.byKey.AscendGreaterOrEqual(pivot, func(r *record) bool {
		if len(chain) > 0 && r.key != chain[0].key || !wanted(r.key) {
			return false
		}
		if r.Revision > after && r.Revision <= upto {
			chain = append(chain, r)
		}
		return true
	})
	return chain
}

// contains returns the record at a revision, if the tail holds an event there.
func (t *tail) contains(rev Revision) *record {
	i := searchRevision(t.records, rev)
	if i < len(t.records) && t.records[i].Revision == rev {
		return t.records[i]
	}
	return nil
}
