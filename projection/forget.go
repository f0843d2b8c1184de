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

// ErrShown says that a branch still shows a version that is to be forgotten. Nothing was forgotten.
var ErrShown = errors.New("a branch still shows it")

// Forgotten is the report of Forget.
type Forgotten struct {
	// Versions is how many versions are gone. Objects is how many objects of the bucket were rewritten without these
	// versions.
	Versions, Objects int
	// Floor is the oldest revision that can now be read.
	Floor Revision
	// Collected is how many objects of the bucket were deleted: the objects with the versions, and all other garbage.
	Collected int
}

// Forget removes every version of the keys from the log and the bucket, except the newest version of a live object. All
// versions of other keys stay as they are. Revisions keep their numbers: a barrier replaces each event.
//
//  1. The log's file is filled with barriers, and all events up to the last barrier are committed. A crash after this
//     leaves added barriers.
//  2. Forget waits until the log's events are older than the longest stall of a writer (eventlog.MinRetention; 0 if all
//     writers have stopped).
//  3. Floor and purge point are raised, and the log is purged. A watch or a page that would have to show a forgotten
//     version ends with 410. After a crash here, some revisions have expired before their retention was over.
//  4. Segments, idx objects and checkpoints that have the versions are rewritten without them. Then the root is swapped
//     for one that names the new objects. A crash before the swap leaves the old root and garbage, a crash after it
//     leaves garbage only.
//  5. A barrier tells all processes that have an older root to read the root again. After a crash before the barrier,
//     some processes still read a forgotten version from memory, until they see a newer root.
//  6. Every object that no root names is deleted, however young it is.
//
// Forget ends once it has read all of the bucket and found none of the versions. After a crash, call it again. Forget
// does not reach subscribers or copies of the bucket.
func (p *Projection) Forget(ctx context.Context, keys []string, stall time.Duration) (Forgotten, error) {
	done, err := p.forget(ctx, keys, stall)
	if err != nil {
		return done, fmt.Errorf("forget: %w", err)
	}
	return done, nil
}

func (p *Projection) forget(ctx context.Context, keys []string, stall time.Duration) (done Forgotten, err error) {
	filled, err := p.fillLog(ctx)
	if err != nil {
		return done, err
	}
	began := time.Now()
	for more := true; more; { // up to the last barrier at least
		if _, more, err = p.commit(ctx, true); err != nil {
			return done, err
		}
	}
	gone, last, err := p.toForget(ctx, keys, filled)
	if err != nil {
		return done, err
	}
	if err := eventlog.Pause(ctx, stall-time.Since(began)); err != nil {
		return done, err
	}
	if err := p.Retain(ctx, last, filled); err != nil {
		return done, err
	}
	// The last pass finds nothing. A third pass is needed if another process compacted between the first two.
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

// toForget says which versions of the keys must go, and returns the revision of the newest version among the keys, 0 if
// there is none. A live object loses every version before the newest. Any other key loses every version up to the given
// revision, void events included.
func (p *Projection) toForget(ctx context.Context, keys []string, upto Revision) (_ *departing, last Revision, err error) {
	v, err := p.AtLeast(ctx, upto)
	if err != nil {
		return nil, 0, err
	}
	gone := map[string]Revision{} // by key: the last revision to forget
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
	if err := v.shown(ctx, gone); err != nil {
		return nil, 0, err
	}
	return &departing{upto: math.MaxUint64, rows: true,
		gone: func(key string, rev Revision) bool { return rev <= gone[key] },
		near: func(s segmentRef) bool {
			return slices.ContainsFunc(keys, func(key string) bool { return key >= string(s.MinKey) && key <= string(s.MaxKey) })
		}}, last, nil
}

// shown fails if a branch has one of the versions that must go. gone has, for each key, the last revision to forget.
func (v *View) shown(ctx context.Context, gone map[string]Revision) error {
	for begins, err := range v.beginnings(ctx, v.Revision()) {
		if err != nil {
			return err
		}
		for b := begins.Branch; b != nil; b = b.Of {
			for key, upto := range gone {
				if !strings.HasPrefix(key, b.Source+"/") {
					continue
				}
				n, found, err := v.newest(ctx, key, b.At)
				if errors.Is(err, ErrExpired) { // nobody can read it there
					continue
				}
				if err != nil {
					return err
				}
				if found && !n.dead() && n.revision <= upto {
					return fmt.Errorf("cluster '%s' has inherited revision %d of '%s': delete the cluster first: %w", begins.name, n.revision, key, ErrShown)
				}
			}
		}
	}
	return nil
}

// heldUnnamed fails if an object that no root names has a forgotten version. Other processes may be at work. Once these
// processes notice the swap of the root, they delete the objects that they began to write before the swap.
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

// holds reports whether an object of the bucket has a version that must go. Idx objects and pages have no versions.
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
