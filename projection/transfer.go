package projection

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/logplane/logplane/projection/bucket"
)

// Transfer copies a cell into another bucket, where its objects keep their names. The root goes last (Finish), so
// nobody can open the new cell before it is complete. Objects are written once, so Copy may run while the cell is
// served: a later call copies what the cell has written meanwhile. Every step may be repeated.
type Transfer struct {
	From, To bucket.Bucket
	// Prefix of the cell's objects in both buckets.
	Prefix string
}

func (t Transfer) rootKey() string { return t.Prefix + "/root" }

// Check fails if the bucket has a cell, or has another cell's checkpoints, which this cell does not have.
func (t Transfer) Check(ctx context.Context) error {
	_, _, err := t.To.Get(ctx, t.rootKey())
	if err == nil {
		return fmt.Errorf("'%s' is there: %w", t.rootKey(), errCellExists)
	}
	if !errors.Is(err, bucket.ErrNotFound) {
		return fmt.Errorf("look for a cell: %w", err)
	}
	const folder = "/ckpt/"
	ours := map[string]bool{}
	err = t.From.List(ctx, t.Prefix+folder, func(a bucket.Attributes) error { ours[a.Key] = true; return nil })
	if err != nil {
		return fmt.Errorf("list the cell's checkpoints: %w", err)
	}
	err = t.To.List(ctx, t.Prefix+folder, func(a bucket.Attributes) error {
		if !ours[a.Key] {
			return fmt.Errorf("'%s' is there: %w", a.Key, errRootLost)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for remains of a cell: %w", err)
	}
	return nil
}

// Copy copies all objects but the root, and returns how many objects and bytes it has copied.
func (t Transfer) Copy(ctx context.Context) (objects, size int64, err error) {
	there := map[string]bool{}
	err = t.To.List(ctx, t.Prefix+"/", func(a bucket.Attributes) error { there[a.Key] = true; return nil })
	if err != nil {
		return 0, 0, fmt.Errorf("list what was copied before: %w", err)
	}
	var copied, bytes atomic.Int64
	group, copying := errgroup.WithContext(ctx)
	group.SetLimit(8)
	err = t.From.List(ctx, t.Prefix+"/", func(a bucket.Attributes) error {
		if a.Key == t.rootKey() || there[a.Key] || strings.HasPrefix(a.Key, t.Prefix+"/probe/") {
			return nil
		}
		group.Go(func() error {
			err := t.copy(copying, a.Key)
			if err == nil {
				copied.Add(1)
				bytes.Add(a.Size)
			}
			return err
		})
		return copying.Err()
	})
	if failed := group.Wait(); failed != nil { // this error is the reason why the list ended early
		err = failed
	}
	return copied.Load(), bytes.Load(), err
}

func (t Transfer) copy(ctx context.Context, key string) error {
	body, _, err := t.From.Get(ctx, key)
	if errors.Is(err, bucket.ErrNotFound) {
		return nil // collected meanwhile
	}
	if err != nil {
		return fmt.Errorf("read '%s': %w", key, err)
	}
	if _, err := t.To.Create(ctx, key, body); err != nil && !errors.Is(err, bucket.ErrPrecondition) { // another Copy runs
		return fmt.Errorf("write '%s': %w", key, err)
	}
	return nil
}

// Finish copies the root. The caller vouches that nobody writes to the cell any more, and that everything else was
// copied. If the new cell has its root already, Finish changes nothing: the new cell may have gone on since.
func (t Transfer) Finish(ctx context.Context) error {
	body, _, err := t.From.Get(ctx, t.rootKey())
	if err != nil {
		return fmt.Errorf("read the root: %w", err)
	}
	ours, err := decodeRoot(body)
	if err != nil {
		return err
	}
	switch _, err = t.To.Create(ctx, t.rootKey(), body); {
	case err == nil:
		return nil
	case !errors.Is(err, bucket.ErrPrecondition):
		return fmt.Errorf("write the root: %w", err)
	}
	if body, _, err = t.To.Get(ctx, t.rootKey()); err != nil {
		return fmt.Errorf("read the new cell's root: %w", err)
	}
	theirs, err := decodeRoot(body)
	if err == nil && (theirs.Serial < ours.Serial || theirs.Applied < ours.Applied || theirs.Epoch < ours.Epoch) {
		err = fmt.Errorf("'%s' is there, and is another cell's: %w", t.rootKey(), errCellExists)
	}
	return err
}
