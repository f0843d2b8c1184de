package apiserver

import (
	"net/http"
	"strings"

	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/mux"
	componentversion "k8s.io/component-base/version"
)

// withHealth answers '/healthz', '/livez' and '/readyz' to everybody, as kube-apiserver does: whoever asks
// whether the process lives has no credentials, and must get an answer while the log cannot be read.
func (s *Server) withHealth(h http.Handler) http.Handler {
	health := mux.NewPathRecorderMux("logplane")
	healthz.InstallHandler(health, healthz.PingHealthz)
	healthz.InstallLivezHandler(health, healthz.PingHealthz)
	healthz.InstallReadyzHandler(health, healthz.PingHealthz, healthz.NamedCheck("view", s.checkView), healthz.NamedCheck("draining", s.watches.checkDraining))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/"); first {
		case "healthz", "livez", "readyz":
			health.ServeHTTP(w, r)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// checkView proves that the log and the bucket can be read.
func (s *Server) checkView(r *http.Request) error {
	_, err := s.config.Cell.Consistent(r.Context())
	return err
}

// serveVersion answers '/version'.
func serveVersion(w http.ResponseWriter, _ *http.Request) {
	responsewriters.WriteRawJSON(http.StatusOK, Version(), w)
}

// Version is that of the Kubernetes API. A binary that was built without the version linked in says
// so by v0.0.0, which kubectl cannot read.
func Version() apimachineryversion.Info {
	info := componentversion.Get()
	if strings.HasPrefix(info.GitVersion, "v0.0.0") {
		info.GitVersion, info.Major, info.Minor = kubernetesVersion, "1", "36"
		info.GitCommit, info.GitTreeState, info.BuildDate = "", "", "1970-01-01T00:00:00Z"
	}
	info.EmulationMajor, info.EmulationMinor = info.Major, info.Minor
	return info
}
