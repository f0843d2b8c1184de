package apiserver

import (
	"context"
	"errors"
	"net/http"
	"runtime/debug"
	"strings"

	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/util/compatibility"

	"github.com/logplane/logplane/internal/apiserver/bootstrap"
	"github.com/logplane/logplane/internal/apiserver/description/spec"
	"github.com/logplane/logplane/internal/serving"
)

// newHealth makes the handler of '/healthz', '/livez' and '/readyz'.
func newHealth(s *Server) *mux.PathRecorderMux {
	health := mux.NewPathRecorderMux("logplane")
	healthz.InstallHandler(health, healthz.PingHealthz)
	healthz.InstallLivezHandler(health, healthz.PingHealthz)
	healthz.InstallReadyzHandler(health, healthz.PingHealthz, healthz.NamedCheck("view", serving.Shared(s.checkCluster)),
		healthz.NamedCheck("writable", s.checkWritable), healthz.NamedCheck("draining", s.gate.CheckDraining))
	return health
}

// withHealth answers health checks from everybody, as kube-apiserver does. A prober has no credentials, and must get an
// answer even if the log cannot be read.
func (s *Server) withHealth(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if serving.IsProbe(r.URL.Path) {
			s.health.ServeHTTP(w, r)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// checkCluster reads the log and proves its head, since a leader that has lost its followers goes on answering reads.
// It also fails for a cell that was never initialized.
func (s *Server) checkCluster(ctx context.Context) error {
	if _, err := s.config.Cell.Log.Extent(ctx); err != nil {
		return err
	}
	view, err := s.config.Cell.Consistent(ctx)
	if err != nil || s.initialized.Load() {
		return err
	}
	made, err := bootstrap.Written(ctx, view, s.config.Cell.Cluster)
	if err == nil && !made {
		err = errors.New(uninitialized)
	}
	s.initialized.Store(made)
	return err
}

// uninitialized says how to initialize a cell that was never initialized.
const uninitialized = "the cell has not been initialized: run 'logplane init' with the same connection flags"

// checkWritable reports why writes fail, as far as this process already knows. It writes nothing, so it does not prove
// that writes succeed.
func (s *Server) checkWritable(*http.Request) error {
	if s.config.Cell.Writable == nil {
		return nil
	}
	return s.config.Cell.Writable()
}

// serveVersion answers '/version'.
func serveVersion(w http.ResponseWriter, _ *http.Request) {
	responsewriters.WriteRawJSON(http.StatusOK, Version(), w)
}

// Version is the version of the Kubernetes API, and the commit of Logplane that serves it. A binary that was built
// without a linked-in version would report v0.0.0, which kubectl cannot parse.
func Version() apimachineryversion.Info {
	info := *compatibility.DefaultBuildEffectiveVersion().Info()
	if strings.HasPrefix(info.GitVersion, "v0.0.0") {
		info.GitVersion = spec.KubernetesVersion
	}
	// Upstream's values are placeholders unless upstream's own scripts made the build.
	info.GitCommit, info.GitTreeState, info.BuildDate = commit()
	return info
}

// commit returns the commit of the source as the Go toolchain recorded it. All results are empty in a test, and in a
// build that was not made from a checkout.
func commit() (hash, tree, date string) {
	date = "1970-01-01T00:00:00Z"
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return hash, tree, date
	}
	for _, setting := range build.Settings {
		switch setting.Key {
		case "vcs.revision":
			hash = setting.Value
		case "vcs.time":
			date = setting.Value
		case "vcs.modified":
			tree = "clean"
			if setting.Value == "true" {
				tree = "dirty"
			}
		}
	}
	return hash, tree, date
}
