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
	// expiryBatch is how many deletions one atomic batch holds.
	expiryBatch = 100
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
	ctx = kubestore.WithAuthor(ctx, kubestore.PartOf("expiry"))
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
	var writes []projection.Write
	for _, row := range mortal {
		if now.Sub(row.Time) < time.Duration(row.TTL)*time.Second {
			continue
		}
		object, err := view.State(ctx, row.ID)
		if err != nil {
			return 0, err
		}
		writes = append(writes, object.Delete())
	}
	return l.deleteExpired(ctx, view, writes)
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

// deleteExpired appends the deletions in batches. If a batch loses to another write, its objects are found again the
// next time.
func (l *Lifecycle) deleteExpired(ctx context.Context, view *projection.View, writes []projection.Write) (int, error) {
	deleted := 0
	var failed []error
	for len(writes) > 0 {
		n := min(len(writes), expiryBatch)
		_, err := l.config.Cell.Append(ctx, view, writes[:n]...)
		switch {
		case err == nil:
			deleted += n
			expired.Add(float64(n))
		case errors.Is(err, eventlog.ErrConflict):
		default:
			failed = append(failed, err)
		}
		writes = writes[n:]
	}
	return deleted, errors.Join(failed...)
}
