// Package watcher is the long-running flavour of the apiserver: it serves watches from one reader of the
// log, and every other request as a function does.
package watcher

import (
	"context"
	"net/http"

	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/kubestore"
)

// Config of the watcher of one cluster.
type Config struct {
	apiserver.Config
}

// Watcher is the http.Handler of the watcher. It serves watches while Run runs.
type Watcher struct {
	http.Handler
	feed *kubestore.Feed
}

// New builds the watcher of one cluster.
func New(c Config) (*Watcher, error) {
	c.Cell.Feed = kubestore.NewFeed(c.Cell.Log, c.Cell.Projection)
	handler, err := apiserver.New(c.Config)
	if err != nil {
		return nil, err
	}
	return &Watcher{Handler: handler, feed: c.Cell.Feed}, nil
}

// Run reads the log and delivers it to watches until ctx ends.
func (w *Watcher) Run(ctx context.Context) error { return w.feed.Run(ctx) }
