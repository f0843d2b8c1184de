package localstack

import (
	"context"
	"errors"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/logplane/logplane/functions/lifecycle"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/serving"
	"github.com/logplane/logplane/watcher"
)

// settleTimeout is how long a new cell waits for its first request before it begins its background work. If the work
// began at once, it would take processor time from the first answer, which would then come 15 ms later.
const settleTimeout = 250 * time.Millisecond

// Whole is a process that is a whole cell.
type Whole struct {
	Cell   kubestore.Cell
	Server *watcher.Watcher
	// Serve serves the handler until ctx ends and every watch was told to end.
	Serve func(ctx context.Context, handler http.Handler) error
	// Log is opened again after its disk was full. It may be nil.
	Log *Log
	// Writers has every writer of the cell, nil if other processes write too.
	Writers *kubestore.Writers
	// Cadence is the shortest time between two commits.
	Cadence time.Duration
	// ServerOnly is as in lifecycle.Config.
	ServerOnly bool

	settled chan struct{} // closed when the background work begins; may be nil
}

// server returns the server of a cluster, for the lifecycle.
func (w Whole) server(ctx context.Context, cluster string) (lifecycle.Server, error) {
	return w.Server.ClusterOf(ctx, cluster)
}

// Run serves, commits and finishes deletions until ctx ends or a part fails. The background work begins after the first
// answer, or a little later if nobody asks. The log is read until the last watch was told to end.
func (w Whole) Run(ctx context.Context) error {
	config := lifecycle.Config{Cell: w.Cell, Servers: w.server, ServerOnly: w.ServerOnly}
	if w.Writers != nil {
		config.AwaitWriters = w.Writers.Wait
	}
	finisher := lifecycle.New(config)
	group, ctx := errgroup.WithContext(ctx)
	feeding, stopFeed := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error { return w.Server.Run(feeding) })
	answered := make(chan struct{})
	group.Go(func() error {
		defer stopFeed()
		return w.Serve(ctx, serving.AfterFirst(w.Server, func() { close(answered) }))
	})
	group.Go(func() error {
		select {
		case <-ctx.Done():
		case <-answered:
		case <-time.After(settleTimeout):
		}
		if w.settled != nil {
			close(w.settled)
		}
		if ctx.Err() != nil {
			return nil
		}
		group.Go(func() error { return w.Cell.Projection.Run(ctx, w.Cadence) })
		group.Go(func() error { return finisher.Run(ctx) })
		if w.Log == nil {
			return nil
		}
		return w.Log.Heal(ctx)
	})
	if err := group.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
