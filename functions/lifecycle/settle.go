package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/logplane/logplane/eventlog"
)

// settle returns nil if every create that can have seen the owner alive has ended. Otherwise it returns an error that
// says when they will have ended. The owner is a namespace, a definition or the mark of a quota. A create looks at its
// owner on the view from which it is appended, and that view is at most kubestore.Staleness old. So a create that saw
// the owner alive lands within Config.Settle of the time when the owner began to terminate, unless its message was
// stuck. A caller that must be sure that the owner is empty calls settle first and looks afterwards.
//
// settle compares the log's time with the owner's last change. That change is not before the owner began to terminate:
// the owner's status is written soon after that, and never again.
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

// now returns the log's time (invariant 12). It appends an event and returns that event's time, because nothing else in
// an idle log shows that time has passed.
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
		// Another process asked for the time and wrote first. Its event may be older than this call, so try again.
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
