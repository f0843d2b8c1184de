// Package watcher is the long-running flavour of the apiserver: it serves watches from one reader of the log, and every
// other request as a function does.
package watcher

import (
	"context"
	"net/http"
	"time"

	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/apiserver/aggregation"
	"github.com/logplane/logplane/internal/kubestore/fanout"
)

// Config of the watcher of one cluster.
type Config struct {
	apiserver.Config
	// Spread is how long the ends of open watches are spread over when the process stops.
	Spread time.Duration
	// Changed, if set, is called when the log has changed, and when it may have changed unseen. It must not wait.
	Changed func()
}

// drainGrace is how long after the last of them clients may take to receive it.
const drainGrace = 5 * time.Second

// Watcher is the http.Handler of the watcher. It serves watches while Run runs.
type Watcher struct {
	http.Handler

	server *apiserver.Server
	feed   *fanout.Feed
	spread time.Duration
}

// New builds the watcher of one cluster.
func New(c Config) (*Watcher, error) {
	c.Cell.Feed = fanout.NewFeed(c.Cell.Projection)
	c.Cell.Feed.Changed = c.Changed
	server, err := apiserver.New(c.Config)
	if err != nil {
		return nil, err
	}
	return &Watcher{Handler: server, server: server, feed: c.Cell.Feed, spread: c.Spread}, nil
}

// Run reads the log and delivers it to watches until ctx ends. Call Drain first to end the watches well.
func (w *Watcher) Run(ctx context.Context) error { return w.feed.Run(ctx) }

// Shrink gives back most of the memory that only saves time. It is for a process that has nothing to do.
func (w *Watcher) Shrink() { w.server.Shrink() }

// StopTracing sends the spans that have not been sent yet. The watcher must not be used any more.
func (w *Watcher) StopTracing() { w.server.StopTracing() }

// Publish writes what the servers of remote APIServices must know to believe this process who a user is.
func (w *Watcher) Publish(ctx context.Context, trust aggregation.Trust) error {
	return w.server.Publish(ctx, trust)
}

// Drain turns readiness off, refuses new watches and ends the open ones. Those that asked for bookmarks get a last one.
// It returns when all have ended, or a little after the time over which their ends are spread.
func (w *Watcher) Drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, w.spread+drainGrace)
	defer cancel()
	w.server.Drain(ctx, w.spread)
}
