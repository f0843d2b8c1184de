package apiserver

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/statusz"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/requests"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/serving"
)

// metricsHandler serves component-base's registry, in which upstream and cmd register their metrics.
var metricsHandler = legacyregistry.Handler()

// dispatch chooses the handler of an authorized request.
func (s *Server) dispatch(w http.ResponseWriter, r *http.Request) {
	info, _ := apirequest.RequestInfoFrom(r.Context())
	switch path := strings.TrimSuffix(r.URL.Path, "/"); {
	case info.IsResourceRequest && requests.NeedsNode(info) && kubestore.PastFrom(r.Context()) != nil:
		answers.Fail(w, r, answers.NotSupported(info, info.Resource+"/"+info.Subresource+" has no past: what nodes say is not kept"))
	case info.IsResourceRequest && requests.NeedsNode(info) && !s.config.Kubelets.Configured():
		answers.Fail(w, r, answers.NotSupported(info, info.Resource+"/"+info.Subresource+" is not served: this process was started without --kubelet-client-certificate, so it reaches no nodes"))
	case info.IsResourceRequest && requests.NeedsNode(info) && !requests.HasPort(info):
		answers.Fail(w, r, apierrors.NewBadRequest(fmt.Sprintf("%.100q has no port that can be called: after the name comes a number up to 65535", info.Name)))
	case info.IsResourceRequest && requests.NeedsNode(info):
		relay(w, r, s.resource(info))
	case info.IsResourceRequest && info.APIGroup == "" && info.Resource == "serviceaccounts" && info.Subresource == "token" && !s.tokens.Issues():
		answers.Fail(w, r, answers.NotSupported(info, "this server does not issue tokens of service accounts: it was started without --service-account-signing-key-file"))
	case info.IsResourceRequest:
		s.serveResource(w, r, info)
	case path == "" || path == "/index.html" || path == "/api" || path == "/apis" || strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/apis/"):
		s.discovery.ServeHTTP(w, r)
	case strings.HasPrefix(path, "/openapi/"):
		s.openapi.ServeHTTP(w, r)
	case s.tokens.ServeDiscovery(w, r):
	case slices.Contains(s.tokens.Paths(), path):
		answers.Fail(w, r, answers.MethodNotAllowed(r))
	case path == "/version" && r.Method == http.MethodGet:
		serveVersion(w, r)
	case s != s.main && serving.IsProbe(r.URL.Path):
		s.health.ServeHTTP(w, r)
	case s != s.main && (path == flagz.DefaultFlagzPath || path == statusz.DefaultStatuszPath || path == "/metrics"):
		answers.Fail(w, r, answers.Nowhere(r)) // these describe the process, which serves other clusters too
	case path == flagz.DefaultFlagzPath || path == statusz.DefaultStatuszPath:
		s.zpages().ServeHTTP(w, r)
	case path == "/metrics" && r.Method == http.MethodGet:
		metricsHandler.ServeHTTP(w, r)
	default:
		answers.Unknown.ServeHTTP(w, r)
	}
}

// resource returns the built-in group if it serves the version, and otherwise the handler of custom resources.
func (s *Server) resource(info *apirequest.RequestInfo) http.Handler {
	if g, ok := s.groups[info.APIGroup]; ok && g.serves(info.APIVersion) {
		return g
	}
	return s.crds
}
