package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/logplane/logplane/eventlog"
)

// settle returns nil if every create that can have seen the owner alive has ended. Otherwise it returns
// an error that says when they will have ended. The owner is a namespace or a definition. A create reads
// its owner at its start and is refused if the owner terminates. It checks its deadline again before it
// appends. So the event of a create that saw the owner alive comes within one deadline of the owner's
// end. A caller that must be sure that the owner is empty calls settle first and looks afterwards.
//
// The log's time is compared with the owner's last change, which is not before the
// owner's end: the owner's status is written soon after its end, and never again.
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
	row, found, err := view.Get(ctx, owner.RowKey(), view.Revision())
	if err != nil || !found {
		return nil, err
	}
	left := l.config.Settle - now.Sub(row.Time)
	if left <= 0 {
		return nil, nil
	}
	return &NotYetError{After: left, Reason: fmt.Sprintf("requests from before %s terminated may still be running", owner.Path())}, nil
}

// clockAttempts bounds how often the clock is written again after another process wrote it.
const clockAttempts = 10

// now returns the log's time (invariant 12). It appends an event and takes that
// event's time, because nothing else on an idle log shows that time has passed.
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
		// Another process has asked for the time. Its event may be older than this call.
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
	row, _, err := view.Get(ctx, key.RowKey(), rev)
	return row.Time, err
}
