package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

const (
	// expiryInterval is how often the lifecycle looks at objects with a TTL.
	expiryInterval = 30 * time.Second
	// expiryBatch is how many objects one atomic batch deletes.
	expiryBatch = 100
	// viewTimeout is for how long deletions are computed from one view. What is left then is deleted the next time.
	viewTimeout = time.Minute
)

// expire deletes objects that have outlived their TTL, now and then until ctx ends. No request waits for it.
func (l *Lifecycle) expire(ctx context.Context) {
	for eventlog.Pause(ctx, jitter(expiryInterval)) == nil {
		if _, err := l.Expire(ctx); err != nil && ctx.Err() == nil {
			l.config.Logger.WarnContext(ctx, "objects that expired could not all be deleted", "error", err)
		}
	}
}

// Expire deletes every object whose TTL has passed by the log's time, and returns how many. It spares an object that
// was renewed meanwhile, because the deletion is based on the revision that was seen.
func (l *Lifecycle) Expire(ctx context.Context) (int, error) {
	// All deletions are computed from one view, and none may be sent later than a request would send it (MinRetention).
	ctx, cancel := context.WithTimeout(kubestore.WithAuthor(ctx, kubestore.PartOf("expiry")), viewTimeout)
	defer cancel()
	view, err := l.config.Cell.Projection.Latest(ctx)
	if err != nil {
		return 0, err
	}
	mortal, err := l.mortal(ctx, view)
	if err != nil || len(mortal) == 0 {
		return 0, err
	}
	now, err := l.now(ctx)
	if err != nil {
		return 0, fmt.Errorf("ask for the log's time: %w", err)
	}
	deleted := 0
	var failed []error
	var batch []projection.Write
	objects := 0
	flush := func() {
		n, err := l.deleteExpired(ctx, view, batch, objects)
		deleted, failed = deleted+n, append(failed, err)
		batch, objects = nil, 0
	}
	for _, row := range mortal {
		if now.Sub(row.Time) < time.Duration(row.TTL)*time.Second {
			continue
		}
		writes, err := l.deletion(ctx, view, row)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		if objects == expiryBatch || len(batch)+len(writes) > eventlog.MaxBatch {
			flush()
		}
		batch, objects = append(batch, writes...), objects+1
	}
	flush()
	return deleted, errors.Join(failed...)
}

// deletion is the deletion of an object and what must go with it, such as the references to its owners.
func (l *Lifecycle) deletion(ctx context.Context, view *projection.View, row projection.Row) ([]projection.Write, error) {
	writes, err := l.config.BesideDeletion(ctx, view, row)
	if err != nil {
		return nil, fmt.Errorf("delete '%s', which has expired: %w", row.Key, err)
	}
	object, err := view.State(ctx, row.ID)
	if err != nil {
		return nil, err
	}
	return append(writes, object.Delete()), nil
}

// mortal returns the rows whose TTL has passed by the clock of this process. That
// clock may be wrong, but it only decides whether to ask the log for its time.
func (l *Lifecycle) mortal(ctx context.Context, view *projection.View) ([]projection.Row, error) {
	var rows []projection.Row
	// Events are the only built-in objects with a TTL.
	start := l.config.Cell.Cluster + "/events/"
	for row, err := range view.Scan(ctx, start, projection.PrefixEnd(start), view.Revision()) {
		if err != nil {
			return nil, err
		}
		if row.TTL > 0 && time.Since(row.Time) >= time.Duration(row.TTL)*time.Second {
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// deleteExpired appends a batch of deletions and returns how many objects it deleted. If the batch loses to another
// write, its objects are found again the next time.
func (l *Lifecycle) deleteExpired(ctx context.Context, view *projection.View, batch []projection.Write, objects int) (int, error) {
	if len(batch) == 0 {
		return 0, nil
	}
	_, err := l.config.Cell.Append(ctx, view, batch...)
	switch {
	case errors.Is(err, eventlog.ErrConflict):
		return 0, nil
	case err != nil:
		return 0, err
	}
	expired.Add(float64(objects))
	return objects, nil
}
