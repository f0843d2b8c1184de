package watcher

import (
	"cmp"
	"context"
	"time"

	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/kubestore/fanout"
)

// DefaultPerUser is how many watches one user may have open in a process by default: a tenth of the watches that the
// process serves.
const DefaultPerUser = 2000

// Config of the watcher of one cluster.
type Config struct {
	apiserver.Config
	// Spread is the time over which a stopping process spreads the ends of its open watches.
	Spread time.Duration
	// Grace is the time for clients to receive the end of their watch, 5 s by default. It begins when the last watch
	// was ended.
	Grace time.Duration
	// Changed, if set, is called when the log has changed, and when it may have changed unnoticed. It must not block.
	Changed func()
}

// Watcher is the http.Handler of the watcher. It serves watches while Run runs.
type Watcher struct {
	*apiserver.Server

	feed   *fanout.Feed
	spread time.Duration
	grace  time.Duration
}

// New builds the watcher of one cluster.
func New(c Config) (*Watcher, error) {
	c.Cell.Feed = fanout.NewFeed(c.Cell.Projection)
	c.Cell.Feed.Changed = c.Changed
	server, err := apiserver.New(c.Config)
	if err != nil {
		return nil, err
	}
	return &Watcher{Server: server, feed: c.Cell.Feed, spread: c.Spread, grace: cmp.Or(c.Grace, 5*time.Second)}, nil
}

// Run reads the log and delivers it to watches until ctx ends. Call Drain first to end the watches gracefully.
func (w *Watcher) Run(ctx context.Context) error { return w.feed.Run(ctx) }
