package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/logplane/logplane/eventlog"
)

// pendingCreates returns nil if every create that can have seen the owner alive has ended, or else an error that says
// when all such creates will have ended (Config.Settle). The owner is a namespace, a definition, or the row that
// requests a recount of a quota. A caller that must be sure that the owner is empty calls pendingCreates first and
// looks afterwards.
//
// It compares the log's time with the time of the owner's last change. The last change is never older than the
// beginning of the owner's termination: the owner's status is written soon after the owner began to terminate, and
// never again.
func (l *Lifecycle) pendingCreates(ctx context.Context, owner eventlog.Key) (*notYetError, error) {
	if l.config.AwaitWriters != nil {
		return nil, l.config.AwaitWriters(ctx)
	}
	now, err := l.now(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask for the log's time: %w", err)
	}
	view, err := l.config.Cell.Projection.Latest(ctx)
	if err != nil {
		return nil, err
	}
	row, found, err := view.Get(ctx, owner.RowKey(), view.Revision())
	if err != nil || !found {
		return nil, err
	}
	left := l.config.Settle - now.Sub(row.Time)
	if left <= 0 {
		return nil, nil
	}
	return &notYetError{After: left, Reason: fmt.Sprintf("requests from before %s terminated may still be running", owner.Path())}, nil
}

// clockAttempts bounds how often the clock is written again after another process wrote the clock.
const clockAttempts = 10

// now returns the log's time (invariant 12). It appends an event and returns that event's time, because nothing else in
// an idle log shows that time has passed.
func (l *Lifecycle) now(ctx context.Context) (time.Time, error) {
	key := eventlog.Key{Cluster: main, Group: "logplane.dev", Resource: "clocks", Prefix: "/logplane.dev/clocks", Name: "lifecycle"}
	for try := 0; ; try++ {
		view, err := l.config.Cell.Projection.Latest(ctx)
		if err != nil {
			return time.Time{}, err
		}
		clock, err := view.State(ctx, key)
		if err != nil {
			return time.Time{}, err
		}
		rev, err := l.config.Cell.Append(ctx, view, clock.Put("text/plain", nil, 0))
		if err == nil {
			if view, err = l.config.Cell.Projection.AtLeast(ctx, rev); err != nil {
				return time.Time{}, err
			}
			row, _, err := view.Get(ctx, key.RowKey(), rev)
			return row.Time, err
		}
		// Another process asked for the time and wrote first. Its event may be older than this call, so try again.
		if !errors.Is(err, eventlog.ErrConflict) || try == clockAttempts {
			return time.Time{}, err
		}
	}
}
