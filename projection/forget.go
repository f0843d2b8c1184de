package projection

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/segment"
)

// Forgotten says what Forget has done.
type Forgotten struct {
	// Versions is how many versions are gone, and Objects how many objects of the bucket were made anew without them.
	Versions, Objects int
	// Floor is the oldest revision that can be read since.
	Floor Revision
	// Collected is how many objects of the bucket were deleted: those that had the versions, and all other garbage.
	Collected int
}

// Forget removes every version of the keys but the newest, if that is live, from the log and the bucket for good. All
// that is kept of anything else stays as it is, and revisions keep their numbers: where an event was, a barrier is.
//
//  1. The log's file is filled, and everything up to there is committed. A crash after this has added barriers.
//  2. The log's events must be older than any stalled writer: Forget waits for as long as settled says (eventlog's
//     MinRetention), unless all writers have stopped.
//  3. Floor and purge point are raised, and the log is purged. A watch or a page that would have to tell of a forgotten
//     version ends with 410. A crash after this has expired what retention would have expired later.
//  4. What has the versions is written anew without them: segments, idx objects, checkpoints. Then the root is swapped
//     for one that names these. A crash before leaves the old root and garbage, a crash after leaves garbage only.
//  5. A barrier tells all who have an older root at hand to read it again. A crash before leaves processes that still
//     read a forgotten version, from memory, until they meet a newer root.
//  6. Everything that no root names is deleted, however young it is.
//
// It ends once all of the bucket was read and has none of the versions. After a crash, call it again. Subscribers and
// copies of the bucket are not its business.
func (p *Projection) Forget(ctx context.Context, keys []string, settled time.Duration) (Forgotten, error) {
	done, err := p.forget(ctx, keys, settled)
	if err != nil {
		return done, fmt.Errorf("forget: %w", err)
	}
	return done, nil
}

func (p *Projection) forget(ctx context.Context, keys []string, settled time.Duration) (done Forgotten, err error) {
	filled, err := p.fillLog(ctx)
	if err != nil {
		return done, err
	}
	began := time.Now()
	if err := p.commitUpTo(ctx, filled); err != nil {
		return done, err
	}
	gone, last, err := p.toForget(ctx, keys, filled)
	if err != nil {
		return done, err
	}
	if err := eventlog.Pause(ctx, settled-time.Since(began)); err != nil {
		return done, err
	}
	if err := p.Retain(ctx, last, filled); err != nil {
		return done, err
	}
	// The last pass finds nothing. One more than two is needed if a compaction of another process came between.
	for range forgetPasses {
		w := p.rewrite(gone)
		v, err := p.swap(ctx, func(ctx context.Context, v *View) (*draft, error) {
			next, err := w.draft(ctx, v)
			if next != nil {
				next.Forgets++
			}
			return next, err
		})
		if err := w.ended(ctx, err); err != nil {
			return done, err
		}
		if err := p.config.Log.Outdate(ctx); err != nil {
			return done, err
		}
		collected, err := p.Collect(ctx, 0)
		if err != nil {
			return done, err
		}
		done.Versions, done.Objects, done.Collected, done.Floor = done.Versions+len(w.versions), done.Objects+len(w.made), done.Collected+collected, v.Floor()
		if len(w.versions) == 0 {
			return done, w.heldUnnamed(ctx)
		}
	}
	return done, errors.New("other processes write anew what is forgotten: stop the projectors, and forget it again")
}

// forgetPasses bounds how often Forget reads all of the bucket.
const forgetPasses = 4

// commitUpTo commits until the root has applied the revision, which the log has.
func (p *Projection) commitUpTo(ctx context.Context, upto Revision) error {
	for {
		v, err := p.swap(ctx, func(ctx context.Context, v *View) (*draft, error) {
			if v.Applied() >= upto {
				return nil, nil
			}
			return p.advance(ctx, v)
		})
		if err != nil || v.Applied() >= upto {
			return err
		}
	}
}

// toForget says what is to go of the keys, and which was the last event of any of them, 0 if none is known. Of a live
// object the newest version stays. Of any other key everything goes that is not after the given revision, void events
// too.
func (p *Projection) toForget(ctx context.Context, keys []string, upto Revision) (_ *departing, last Revision, err error) {
	v, err := p.AtLeast(ctx, upto)
	if err != nil {
		return nil, 0, err
	}
	gone := map[string]Revision{} // up to where
	for _, key := range keys {
		n, found, err := v.newest(ctx, key, upto)
		if err != nil {
			return nil, 0, err
		}
		gone[key] = upto
		if found && !n.dead() {
			gone[key] = n.revision - 1
		}
		if found {
			last = max(last, n.revision)
		}
	}
	return &departing{upto: math.MaxUint64, rows: true,
		gone: func(key string, rev Revision) bool { return rev <= gone[key] },
		near: func(s segmentRef) bool {
			return slices.ContainsFunc(keys, func(key string) bool { return key >= string(s.MinKey) && key <= string(s.MaxKey) })
		}}, last, nil
}

// heldUnnamed fails if an object that no root names has what was to be forgotten. Others may be at work: what they have
// begun to write before the root was swapped they delete once they notice.
func (w *rewriting) heldUnnamed(ctx context.Context) error {
	names, _, err := w.p.garbage(ctx, 0)
	if err != nil {
		return err
	}
	for _, name := range names {
		held, err := w.holds(ctx, name)
		if err != nil && !errors.Is(err, bucket.ErrNotFound) {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if held {
			return fmt.Errorf("%s, of work that another process has begun before, still has a forgotten version: forget it again when that process is done, in some minutes", name)
		}
	}
	return nil
}

// holds reports whether an object of the bucket has what is to go. Idx objects and pages have no versions.
func (w *rewriting) holds(ctx context.Context, name string) (bool, error) {
	if strings.HasPrefix(name, w.p.config.Prefix+"/idx/") || strings.HasPrefix(name, w.p.config.Prefix+"/pages/") {
		return false, nil
	}
	body, _, err := w.p.config.Bucket.Get(ctx, name)
	if err != nil {
		return false, err
	}
	if strings.HasPrefix(name, w.p.config.Prefix+"/ckpt/") {
		r, err := decodeRoot(body)
		if err != nil {
			return false, err
		}
		records, err := r.inlineRecords()
		return slices.ContainsFunc(records, func(r *record) bool { return w.gone(r.key, r.Revision) }), err
	}
	reader, err := segment.OpenBytes(name, body)
	if err != nil {
		return false, err
	}
	for r, err := range recordsOf(ctx, reader) {
		if err != nil || w.gone(r.key, r.Revision) {
			return err == nil, err
		}
	}
	return false, nil
}
