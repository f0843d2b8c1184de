package projection

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/logplane/logplane/projection/bucket"
)

// Collect deletes the objects that no root names and that are older than the grace period by the bucket's clock, and
// returns how many. If there is nothing to delete, Collect writes nothing.
//
//  1. List the bucket. An object is a candidate if the root does not name it and it is a grace period older than the
//     newest object. A commit in flight may still be about to name a candidate.
//  2. Swap the root for one of the next generation. Every commit that began before this swap loses its own swap, and
//     starts again with new names. The new root no longer lists lost checkpoints, which nobody can ever read.
//  3. Delete the candidates that the new root does not name. A crash before or in this stage leaves the candidates for
//     the next collection.
func (p *Projection) Collect(ctx context.Context, grace time.Duration) (deleted int, err error) {
	candidates, lost, err := p.garbage(ctx, grace)
	if err != nil {
		return 0, fmt.Errorf("collect garbage: %w", err)
	}
	if len(candidates) == 0 && len(lost) == 0 {
		return 0, nil
	}
	var dropped []string
	v, err := p.swap(ctx, func(_ context.Context, v *View) (*draft, error) {
		next := v.snap.draft()
		dropped = next.drop(lost)
		next.Generation++
		next.Swept = next.Clock
		return next, nil
	})
	if err != nil {
		return 0, fmt.Errorf("collect garbage: %w", err)
	}
	for _, key := range dropped {
		slog.ErrorContext(ctx, "a checkpoint is not in the bucket any more and was dropped: the moments that need it cannot be read", "key", key)
	}
	deleted, err = p.deleteUnnamed(ctx, v.snap.root, candidates, nil) // some candidates were committed after the list
	collectedObjects.Add(float64(deleted))
	if err != nil {
		return deleted, fmt.Errorf("collect garbage: %w", err)
	}
	return deleted, nil
}

// deleteUnnamed deletes the objects that the root does not need, and returns how many. The objects are younger than the
// checkpoints in older, so these checkpoints are not read.
func (p *Projection) deleteUnnamed(ctx context.Context, r *root, keys []string, older []checkpoint) (deleted int, err error) {
	needed, err := p.needed(ctx, r, older)
	if err != nil {
		return 0, err
	}
	for _, key := range keys {
		if needed.has(key) {
			continue
		}
		if err := p.config.Bucket.Delete(ctx, key); err != nil {
			return deleted, fmt.Errorf("delete %s: %w", key, err)
		}
		deleted++
	}
	return deleted, nil
}

// collected are the folders of immutable objects below the cell's prefix.
var collected = map[string]bool{"seg": true, "events": true, "idx": true, "ckpt": true, "pages": true}

// garbage lists the objects that the root does not need and that are older than the grace period, and the checkpoints
// that are lost. The root is read after the list, so it names the objects that were committed in between.
func (p *Projection) garbage(ctx context.Context, grace time.Duration) (candidates, lost []string, err error) {
	var listed []bucket.Attributes
	var newest int64
	err = p.config.Bucket.List(ctx, p.config.Prefix+"/", func(a bucket.Attributes) error {
		newest = max(newest, a.Modified.UnixNano())
		folder, _, _ := strings.Cut(strings.TrimPrefix(a.Key, p.config.Prefix+"/"), "/")
		if collected[folder] { // other folders are not ours
			listed = append(listed, a)
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	snap, err := p.reload(ctx)
	if err != nil {
		return nil, nil, err
	}
	if snap.etag == "" && len(listed) > 0 {
		return nil, nil, errors.New("there are segments and no root: nothing is deleted")
	}
	needed, err := p.needed(ctx, snap.root, nil)
	if err != nil {
		return nil, nil, err
	}
	unreadable.Set(float64(len(needed.lost) + len(needed.damaged)))
	for _, problem := range needed.damaged {
		slog.ErrorContext(ctx, "a checkpoint cannot be read, and what it may name is not collected", "error", problem)
	}
	if now := time.Now(); newest > now.Add(skew).UnixNano() { // one object's time is wrong, or this process's clock is
		newest = now.UnixNano()
	}
	for _, a := range listed {
		if age := max(0, newest-a.Modified.UnixNano()); !needed.has(a.Key) && age >= int64(grace) {
			candidates = append(candidates, a.Key)
		}
	}
	return candidates, needed.lost, nil
}

// names are the keys of all objects that the root itself names.
func (r *root) names() map[string]bool {
	named := namesOf(slices.Concat(r.Segments, r.Events))
	named[""], named[r.Index] = true, true
	for _, pg := range r.Pages {
		named[pg.Key] = true
	}
	return named
}
