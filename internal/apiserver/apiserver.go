// Package apiserver is the HTTP layer: upstream's registries over kubestore, with nothing in the background.
package apiserver

import (
	"log/slog"
	"net/http"

	"github.com/logplane/logplane/internal/kubestore"
)

// Config of the apiserver of one cluster.
type Config struct {
	Cell   kubestore.Cell
	Logger *slog.Logger
	// ExternalAddress with a port, for discovery.
	ExternalAddress string
	// WatcherURL, if set, is where a watch is redirected to (307); without it and without a Feed a watch is 405.
	WatcherURL string
}

// Server is the http.Handler of one cluster. It starts no goroutine that outlives a request.
type Server struct{ http.Handler }

// New builds the handler; API groups are built on first use.
func New(c Config) (*Server, error) { panic("todo") }
