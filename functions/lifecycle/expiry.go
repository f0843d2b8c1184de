package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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
	// expiryTimeout bounds one deletion of expired objects. The next deletion deletes the remaining objects.
	expiryTimeout = time.Minute
)

// expire deletes objects that have outlived their TTL, at intervals until ctx ends. No request waits for it.
func (l *Lifecycle) expire(ctx context.Context) {
	for eventlog.Pause(ctx, jitter(expiryInterval)) == nil {
		if _, err := l.Expire(ctx); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "objects that expired could not all be deleted", "error", err)
		}
	}
}

// Expire deletes every object whose TTL has passed by the log's time, and returns the number of deleted objects. It
// spares an object that was renewed meanwhile, because each deletion is based on the revision that was read.
func (l *Lifecycle) Expire(ctx context.Context) (int, error) {
	// The bound is the same as for a request: no deletion may be sent later (MinRetention).
	ctx, cancel := context.WithTimeout(kubestore.WithAuthor(ctx, kubestore.PartOf("expiry")), expiryTimeout)
	defer cancel()
	view, err := l.config.Cell.Projection.Latest(ctx)
	if err != nil {
		return 0, err
	}
	rows, err := l.expiredRows(ctx, view)
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	now, err := l.now(ctx)
	if err != nil {
		return 0, fmt.Errorf("ask for the log's time: %w", err)
	}
	rows = slices.DeleteFunc(rows, func(row projection.Row) bool { return now.Sub(row.Time) < time.Duration(row.TTL)*time.Second })
	deleted := 0
	var failed []error
	for len(rows) > 0 {
		var n int
		n, rows, err = l.deleteSome(ctx, rows)
		deleted, failed = deleted+n, append(failed, err)
	}
	return deleted, errors.Join(failed...)
}

// deleteSome deletes the first of the rows in one batch. It returns the number of deleted rows, and the remaining rows.
// It computes the batch from a new view, since writes must not be appended from an old view. If the batch conflicts
// with another write, the next run finds the batch's objects again.
func (l *Lifecycle) deleteSome(ctx context.Context, rows []projection.Row) (deleted int, rest []projection.Row, err error) {
	view, err := l.config.Cell.Projection.Latest(ctx)
	if err != nil {
		return 0, nil, err
	}
	var failed []error
	var batch []projection.Write
	objects := 0
	for ; len(rows) > 0 && objects < expiryBatch; rows = rows[1:] {
		writes, err := l.deletion(ctx, view, rows[0])
		if len(batch) > 0 && len(batch)+len(writes) > eventlog.MaxBatch {
			break
		}
		failed = append(failed, err)
		if len(writes) > 0 {
			batch, objects = append(batch, writes...), objects+1
		}
	}
	if len(batch) == 0 {
		return 0, rows, errors.Join(failed...)
	}
	switch _, err := l.config.Cell.Append(ctx, view, batch...); {
	case err == nil:
		expired.Add(float64(objects))
		deleted = objects
	case !errors.Is(err, eventlog.ErrConflict):
		failed = append(failed, err)
	}
	return deleted, rows, errors.Join(failed...)
}

// deletion returns the write that deletes an object, and the writes that must be in the same batch, such as the
// deletion of the references to the object's owners. It returns no writes if the object has changed since the row was
// read.
func (l *Lifecycle) deletion(ctx context.Context, view *projection.View, row projection.Row) ([]projection.Write, error) {
	object, err := view.State(ctx, row.ID)
	if err != nil {
		return nil, err
	}
	if now, _ := object.Row(); now.Revision != row.Revision {
		return nil, nil
	}
	writes, err := l.config.Server.AlongsideDeletion(ctx, view, row)
	if err != nil {
		return nil, fmt.Errorf("delete '%s', which has expired: %w", row.Key, err)
	}
	return append(writes, object.Delete()), nil
}

// expiredRows returns the rows whose TTL has passed by the clock of this process. That clock may be wrong, but it only
// decides whether the log is asked for its time.
func (l *Lifecycle) expiredRows(ctx context.Context, view *projection.View) ([]projection.Row, error) {
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
