package projection

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/segment"
)

// View is the state of a cell at every revision from its floor to its head. A View is immutable and safe for concurrent
// use.
type View struct {
	p    *Projection
	snap *snapshot
	tail *tail
	// head may be above the tail's last event: the events between them are barriers of this process, which change
	// nothing and were not read.
	head Revision
	// first is the log's first revision, and asked is when the log was asked for its first revision and its head.
	first Revision
	asked time.Time
	// proven is the connection on which the log was seen to hold the last event that the root or the tail knows.
	// Another connection may lead to another log of the same length.
	proven uint64
	// rootRead is the newest revision that was known when the root was last read.
	rootRead Revision
	// past, for a moment below the floor, is the snapshot of the newest root; snap is then the snapshot of a
	// checkpoint.
	past *snapshot
	// folded, for a moment after its checkpoint, are the keys whose archived events are in the tail. folded is nil
	// before these events are read.
	folded *Keys
	// superseded is closed when there is a view with a newer revision.
	superseded chan struct{}
	// again makes the same view on the newest root. It is nil for callers that read only one root.
	again func(ctx context.Context, v *View) (*View, error)
}

// viewOf is the view of a snapshot alone. It reads no other root, and nobody waits for a newer view.
func viewOf(snap *snapshot) *View { return &View{p: snap.p, snap: snap, tail: emptyTail(snap.root)} }

// Revision is the newest revision the view holds: its head.
func (v *View) Revision() Revision { return max(v.head, v.tail.at.Revision) }

// Floor is the oldest revision that can be read.
func (v *View) Floor() Revision {
	if v.folded != nil {
		return v.Revision()
	}
	return v.snap.root.Floor
}

// Age is the time since the log was asked for its head; the view has everything up to that head.
func (v *View) Age() time.Duration { return eventlog.Elapsed(v.asked) }

// Applied is the revision up to which the view's snapshot reaches. The tail begins after Applied.
func (v *View) Applied() Revision { return v.snap.root.Applied }

// outdated reports whether the tail has a barrier that outdates the snapshot's root.
func (v *View) outdated() bool { return v.tail.outdates > v.rootRead }

// check returns an error if the revision cannot be read.
func (v *View) check(at Revision) error {
	switch {
	case at < v.Floor() && (v.folded != nil || !v.snap.root.holds(at)):
		return fmt.Errorf("revision %d is below the floor %d: %w", at, v.Floor(), ErrExpired)
	case at > v.Revision():
		return fmt.Errorf("revision %d is above the head %d: %w", at, v.Revision(), ErrFuture)
	}
	return nil
}

// Get returns the live row of the key as of the revision. It returns ErrExpired below the floor and ErrFuture above the
// view.
func (v *View) Get(ctx context.Context, key string, at Revision) (Row, bool, error) {
	b, err := v.p.branchOf(ctx, OneKey(key))
	if err != nil {
		return Row{}, false, err
	}
	n, ok, err := v.state(ctx, b, key, at)
	if err != nil || !ok || n.dead() {
		return Row{}, false, err
	}
	row, err := n.row(&recordDecoder{})
	return row, err == nil, err
}

// newest is the key's own newest valid version at the revision, tombstones included.
func (v *View) newest(ctx context.Context, key string, at Revision) (n version, ok bool, err error) {
	err = v.at(ctx, OneKey(key), at, func(v *View) error {
		n, ok, err = v.fold(ctx, v.tail.chain(key, v.Applied(), at), func() (version, bool, error) {
			return v.snap.newest(ctx, key, min(at, v.Applied()), segment.Void)
		})
		return err
	})
	return n, ok, err
}

// Since calls seen with the key of every event after the revision, void events included. It may call seen twice with
// one key. Every other key still has the state that it had at the revision. Since reads only memory. It returns false
// if the view no longer holds all of these events; then any key may have changed.
func (v *View) Since(after Revision, seen func(key string)) bool {
	if after < v.snap.root.Spilled {
		return false
	}
	for _, r := range v.snap.records[searchRevision(v.snap.records, after+1):] {
		if r.Op != eventlog.Barrier {
			seen(r.key)
		}
	}
	for _, r := range v.tailAfter(after) {
		seen(r.key)
	}
	return true
}

// Tail yields the events of the tail after a revision in order, each with its row key. It includes void events, but not
// barriers.
func (v *View) Tail(after Revision) iter.Seq2[string, eventlog.Event] {
	return func(yield func(string, eventlog.Event) bool) {
		for _, r := range v.tailAfter(after) {
			if !yield(r.key, r.Event) {
				return
			}
		}
	}
}

// tailAfter is the tail's events after both a revision and the snapshot's applied revision, which may be above the
// beginning of the tail.
func (v *View) tailAfter(after Revision) []*record {
	return v.tail.records[searchRevision(v.tail.records, max(after, v.Applied())+1):]
}

// retries bounds how often one read starts again because its segments were collected.
const retries = 5

// retry runs a read. If a segment is gone, the read starts again with a view of the same revision and tail on the
// newest root, whose floor may be above that revision. So each read must check its revision against the view that it
// gets.
func (v *View) retry(ctx context.Context, read func(*View) error) error {
	err := read(v)
	for n := 0; n < retries && v.again != nil && errors.Is(err, bucket.ErrNotFound); n++ {
		var renewed *View
		renewed, err = v.again(ctx, v)
		if err == nil {
			v = renewed
			err = read(v)
		}
	}
	return unread(err)
}

// at runs a read of some keys at a revision, with a view that has these keys and the revision.
func (v *View) at(ctx context.Context, keys Keys, at Revision, read func(*View) error) error {
	return v.retry(ctx, func(v *View) error {
		v, err := v.with(ctx, keys, at)
		if err != nil {
			return err
		}
		return read(v)
	})
}

// renew is View.again for views of the present.
func (p *Projection) renew(ctx context.Context, v *View) (*View, error) {
	if err := p.reading.enter(ctx); err != nil {
		return nil, fmt.Errorf("read the root again: %w", err)
	}
	defer p.reading.leave()
	if _, err := p.reload(ctx); err != nil {
		return nil, err
	}
	next := *v
	next.snap = p.view.Load().snap
	return &next, nil
}

// Scan yields the live rows with start <= key < end as of the revision, ascending by key. An empty end is unbounded.
// Scan reads as the caller consumes the rows.
func (v *View) Scan(ctx context.Context, start, end string, at Revision) iter.Seq2[Row, error] {
	return v.Select(ctx, start, end, at, nil)
}

// Select is Scan for callers that want only some rows. It may leave out any other rows, and skips most blocks that have
// no wanted row. It never yields another version of a row than Scan.
func (v *View) Select(ctx context.Context, start, end string, at Revision, wanted *Selection) iter.Seq2[Row, error] {
	return v.rows(ctx, start, end, at, wanted, cached)
}

// ScanKeys is Scan for callers that mostly need no values, and use Scan for the values that they need. A row may lack
// its Value, RequestID and Author. So caching many objects takes a tenth of the memory.
func (v *View) ScanKeys(ctx context.Context, start, end string, at Revision) iter.Seq2[Row, error] {
	return v.rows(ctx, start, end, at, nil, summaries)
}

// ScanOnce is Scan for callers that keep their own form of the values. Its reads push nothing out of the cache.
func (v *View) ScanOnce(ctx context.Context, start, end string, at Revision) iter.Seq2[Row, error] {
	return v.rows(ctx, start, end, at, nil, once)
}

func (v *View) rows(ctx context.Context, start, end string, at Revision, wanted *Selection, how through) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		b, err := v.p.branchOf(ctx, Keys{start, end})
		if err != nil {
			yield(Row{}, err)
			return
		}
		var decoder recordDecoder
		for n, err := range v.live(ctx, b, Keys{start, end}, at, wanted, how) {
			var row Row
			if err == nil {
				row, err = n.row(&decoder)
			}
			if !yield(row, err) || err != nil {
				return
			}
		}
	}
}
