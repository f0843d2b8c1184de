package main

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/component-base/metrics/legacyregistry"

	serve "github.com/logplane/logplane/internal/serving"
)

// probes is a listener for a platform's probes and for metrics, in a process that serves no API of its own.
type probes struct{ listen string }

func (p *probes) register(flags *pflag.FlagSet) {
	flags.StringVar(&p.listen, "metrics-listen", "", "address to serve '/livez', '/readyz' and '/metrics' on, to anybody and without TLS; none by default")
}

// beside serves while it runs work, until both have ended. The process is ready while ready returns nil.
func (p *probes) beside(ctx context.Context, ready func(context.Context) error, work func(context.Context) error) error {
	if p.listen == "" {
		return work(ctx)
	}
	listener, err := listen("--metrics-listen", p.listen)
	if err != nil {
		return err
	}
	slog.Info("serving probes and metrics", "address", listener.Addr().String())
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", legacyregistry.Handler())
	mux.HandleFunc("GET /livez", func(http.ResponseWriter, *http.Request) {})
	check := serve.Shared(ready)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if check(r) != nil {
			http.Error(w, "not ready: the process's log says why", http.StatusServiceUnavailable)
		}
	})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return serve.Serve(ctx, listener, mux, serve.Config{}) })
	group.Go(func() error { return work(ctx) })
	return group.Wait()
}

// ready says whether a process that works on a cell is ready: whether the log acknowledges. It does not if most of its
// servers are unreachable, even if the server that was asked looks well.
func (c *cell) ready(ctx context.Context) error {
	_, err := c.Log.Extent(ctx)
	return err
}
