// Package watcher is the long-running flavour of the API server. It serves all watches from one reader of the log, and
// every other request as a function does.
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
	// Spread is over how long the process, when it stops, spreads the ends of the open watches.
	Spread time.Duration
	// Changed, if set, is called when the log has changed, and when it may have changed unnoticed. It must not block.
	Changed func()
}

// drainGrace is how long clients may take to receive the end of their watch after the last watch was ended.
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

// Run reads the log and delivers it to watches until ctx ends. Call Drain first to end the watches gracefully.
func (w *Watcher) Run(ctx context.Context) error { return w.feed.Run(ctx) }

// Shrink gives back most of the memory that only saves time. It is for an idle process.
func (w *Watcher) Shrink() { w.server.Shrink() }

// StopTracing sends the spans that have not been sent yet. The watcher must not be used any more.
func (w *Watcher) StopTracing() { w.server.StopTracing() }

// Publish writes what the servers of remote APIServices need to trust this process about who a user is.
func (w *Watcher) Publish(ctx context.Context, trust aggregation.Trust) error {
	return w.server.Publish(ctx, trust)
}

// Drain turns readiness off, refuses new watches and ends the open ones. A watch that asked for bookmarks gets a last
// one. Drain returns when all watches have ended, or a little after the time over which their ends are spread.
func (w *Watcher) Drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, w.spread+drainGrace)
	defer cancel()
	w.server.Drain(ctx, w.spread)
}
