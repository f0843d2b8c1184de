package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/logplane/logplane/eventlog"
)

// settle returns nil if every create that could have seen the owner alive has ended, else when that will
// be so. A create reads its owner (a namespace, a definition) at its start, is refused if it terminates,
// and checks its deadline again before it appends; so an event that came in spite of Terminating came
// within one deadline of it. Whoever wants to be sure that the owner is empty calls settle first and looks after.
//
// Terminating is not later than the owner's last change, which is what the log's time is compared with:
// the owner's status is written soon after, and then not any more.
func (l *Lifecycle) settle(ctx context.Context, owner eventlog.Key) (*NotYetError, error) {
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
	row, found, err := view.Get(ctx, owner.Row(), view.Revision())
	if err != nil || !found {
		return nil, err
	}
	if left := l.config.Settle - now.Sub(row.Time); left > 0 {
		return &NotYetError{After: left, Reason: fmt.Sprintf("requests from before %s terminated may still be running", owner.Path())}, nil
	}
	return nil, nil
}

// clockAttempts bounds how often the clock is written again after another process wrote it.
const clockAttempts = 10

// now returns the log's time (invariant 12): the timestamp of an event that it appends, because on an idle
// log nothing else says that time has passed.
func (l *Lifecycle) now(ctx context.Context) (time.Time, error) {
	key := eventlog.Key{Cluster: l.config.Cell.Cluster, Group: "logplane.dev", Resource: "clocks", Prefix: "/logplane.dev/clocks", Name: "lifecycle"}
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
			return l.timeOf(ctx, key, rev)
		}
		// Another process read the time: read it again rather than take its answer, which may be older.
		if !errors.Is(err, eventlog.ErrConflict) || try == clockAttempts {
			return time.Time{}, err
		}
	}
}

func (l *Lifecycle) timeOf(ctx context.Context, key eventlog.Key, rev eventlog.Revision) (time.Time, error) {
	view, err := l.config.Cell.Projection.AtLeast(ctx, rev)
	if err != nil {
		return time.Time{}, err
	}
	row, _, err := view.Get(ctx, key.Row(), rev)
	return row.Time, err
}
