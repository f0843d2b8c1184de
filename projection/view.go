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

// View is the state of a cell at every revision from its floor to its own. It is immutable and safe for concurrent use.
type View struct {
	p    *Projection
	snap *snapshot
	tail *tail
	// first is the log's first revision, asked when the head was last learned.
	first Revision
	asked time.Time
	// proven says that the log was seen to hold the last event that the root or the tail knows.
	proven bool
	// rootRead is the head for which the root was read last. cutEvents and cutBytes are the tail's size then. They save
	// reads of the root, and decide nothing else.
	rootRead            Revision
	cutEvents, cutBytes int
	// outdated is the revision of a barrier that outdates the snapshot's root, 0 for none.
	outdated Revision
	// archive is set for a moment between two checkpoints: the view that has the events which come after the snapshot.
	archive *View
	// trimmed says, of a view of the past, which keys have a shorter one.
	trimmed []trim
	// superseded is closed when a view with a newer revision is there.
	superseded chan struct{}
	// pending says that the tail ends with writes that are not appended yet.
	pending bool
}

// Revision is the newest revision the view holds: its head.
func (v *View) Revision() Revision { return v.tail.last }

// Floor is the oldest revision that can be read.
func (v *View) Floor() Revision { return max(v.snap.root.Floor, v.tail.moment) }

// First is the log's first retained revision when the view was made.
func (v *View) First() Revision { return v.first }

// Applied is the revision up to which the view's snapshot reaches; after it begins the tail.
func (v *View) Applied() Revision { return v.snap.root.Applied }

// long reports whether the tail has grown enough since the root was read to read it again.
func (v *View) long() bool {
	return len(v.tail.records)-v.cutEvents > longEvents || v.tail.bytes-v.cutBytes > longBytes
}

// check says whether the revision can be read.
func (v *View) check(at Revision) error {
	switch {
	case at < v.Floor():
		return fmt.Errorf("revision %d is below the floor %d: %w", at, v.Floor(), ErrExpired)
	case at > v.Revision():
		return fmt.Errorf("revision %d is above the head %d: %w", at, v.Revision(), ErrFuture)
	}
	return nil
}

// Get returns the live row of the key as of the revision, false if there is none. ErrExpired below the floor, ErrFuture
// above the view.
func (v *View) Get(ctx context.Context, key string, at Revision) (Row, bool, error) {
	n, ok, err := v.newest(ctx, key, at)
	if err != nil || !ok || n.dead() {
		return Row{}, false, err
	}
	row, err := n.row(&recordDecoder{})
	return row, err == nil, err
}

// newest is the newest valid version at the revision, tombstones included.
func (v *View) newest(ctx context.Context, key string, at Revision) (n version, ok bool, err error) {
	if v.archive != nil || len(v.trimmed) > 0 {
		if v, err = v.with(ctx, OneKey(key), at); err != nil {
			return version{}, false, err
		}
	}
	err = v.retry(ctx, func(v *View) error {
		if err := v.check(at); err != nil {
			return err
		}
		n, ok, err = v.tail.fold(v.tail.chain(key, v.Applied(), at), func() (version, bool, error) {
			return v.snap.newest(ctx, key, min(at, v.Applied()), segment.Void)
		})
		return err
	})
	return n, ok, err
}

// Since calls seen with the key of every event after the revision, void ones too. It may call it twice with one key. Of
// every other key, what was read at that revision is still true. Since asks nobody. It is false if the view no longer
// holds all of these events: any key may have changed.
func (v *View) Since(after Revision, seen func(key string)) bool {
	if after < v.Applied() {
		if after < v.snap.root.Spilled {
			return false
		}
		for _, r := range v.snap.records[searchRevision(v.snap.records, after+1):] {
			if r.Op != eventlog.Barrier {
				seen(r.key)
			}
		}
	}
	for _, r := range v.tailAfter(after) {
		seen(r.key)
	}
	return true
}

// Tail yields the events of the tail after a revision in order, void ones too, each with its row key. Barriers are left
// out.
func (v *View) Tail(after Revision) iter.Seq2[string, eventlog.Event] {
	return func(yield func(string, eventlog.Event) bool) {
		for _, r := range v.tailAfter(after) {
			if !yield(r.key, r.Event) {
				return
			}
		}
	}
}

// tailAfter is what the tail has after a revision and after the snapshot, which may have passed its beginning.
func (v *View) tailAfter(after Revision) []*record {
	return v.tail.records[searchRevision(v.tail.records, max(after, v.Applied())+1):]
}

// retries bounds how often one read starts again because its segments were collected.
const retries = 5

// retry runs a read. If a segment is gone, the read starts again with a view that has the same revision and tail on the
// newest root. That root may have applied more than the view's revision, and its floor may be above it. So a read names
// the revision that it reads, and checks it against the view that it is given.
func (v *View) retry(ctx context.Context, read func(*View) error) error {
	err := read(v)
	for n := 0; n < retries && errors.Is(err, bucket.ErrNotFound); n++ {
		var renewed *View
		renewed, err = v.renew(ctx)
		if err == nil {
			v = renewed
			err = read(v)
		}
	}
	return err
}

// renew returns a view of the same revision on the newest root. A pending view has no such revision: the newest root
// may have what came after its base, and nothing would tell that from what the base has.
func (v *View) renew(ctx context.Context) (*View, error) {
	if v.pending {
		return nil, fmt.Errorf("read again what a pending batch is computed from: %w", ErrExpired)
	}
	if err := v.p.reading.enter(ctx); err != nil {
		return nil, fmt.Errorf("read the root again: %w", err)
	}
	defer v.p.reading.leave()
	if _, err := v.p.reload(ctx); err != nil {
		return nil, err
	}
	next := *v
	next.snap = v.p.view.Load().snap
	return &next, nil
}

// Scan yields the live rows with start <= key < end as of the revision, ascending by key. An empty end is unbounded. It
// reads as the caller goes on.
func (v *View) Scan(ctx context.Context, start, end string, at Revision) iter.Seq2[Row, error] {
	return v.Select(ctx, start, end, at, nil)
}

// Select is Scan for who wants some rows only. It may leave out any others, and leaves out those of most blocks that
// have none that is wanted. It yields no other version of a row than Scan.
func (v *View) Select(ctx context.Context, start, end string, at Revision, wanted *Selection) iter.Seq2[Row, error] {
	return v.rows(ctx, start, end, at, wanted, cached)
}

// Outline is Scan for who mostly needs no values, and asks for these again by Scan. A row may lack its Value, its
// RequestID and its Author. So what is kept of many objects takes a tenth of the memory.
func (v *View) Outline(ctx context.Context, start, end string, at Revision) iter.Seq2[Row, error] {
	return v.rows(ctx, start, end, at, nil, outlines)
}

// ScanOnce is Scan for who keeps what it makes of the values. What it reads pushes out nothing.
func (v *View) ScanOnce(ctx context.Context, start, end string, at Revision) iter.Seq2[Row, error] {
	return v.rows(ctx, start, end, at, nil, once)
}

func (v *View) rows(ctx context.Context, start, end string, at Revision, wanted *Selection, how through) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		var decoder recordDecoder
		for n, err := range v.live(ctx, start, end, at, wanted, how) {
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
