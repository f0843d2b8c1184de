package serve

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/functions/lifecycle"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/front"
	"github.com/logplane/logplane/internal/kubestore"
	serve "github.com/logplane/logplane/internal/serving"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
)

// probes is a listener for a platform's probes and for metrics, in a process that serves no API of its own.
type probes struct{ listen string }

func (p *probes) register(flags *pflag.FlagSet) {
	flags.StringVar(&p.listen, "metrics-listen", "", "address to serve '/livez', '/readyz' and '/metrics' on, to anybody and without TLS; without it, nowhere")
}

// alongside serves the probes while it runs work. It returns when both have ended. The process is ready while ready
// returns nil.
func (p *probes) alongside(ctx context.Context, ready func(context.Context) error, work func(context.Context) error) error {
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

// RegisterMetrics adds our metrics to upstream's registry, which /metrics serves.
var RegisterMetrics = sync.OnceFunc(func() {
	legacyregistry.RawMustRegister(slices.Concat(
		eventlog.Collectors(), bucket.Collectors(), projection.Collectors(), kubestore.Collectors(),
		apiserver.Collectors(), lifecycle.Collectors(), front.Collectors())...)
})
