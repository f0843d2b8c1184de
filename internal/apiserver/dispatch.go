package apiserver

import (
	"net/http"
	"strings"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// dispatch chooses who serves an authorized request.
func (s *Server) dispatch(w http.ResponseWriter, r *http.Request) {
	info, _ := apirequest.RequestInfoFrom(r.Context())
	switch path := strings.TrimSuffix(r.URL.Path, "/"); {
	case info.IsResourceRequest:
		s.resource(info).ServeHTTP(w, r)
	case path == "/api" || path == "/apis" || strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/apis/"):
		s.discovery.ServeHTTP(w, r)
	case strings.HasPrefix(path, "/openapi/"):
		s.openapi.ServeHTTP(w, r)
	default:
		http.NotFound(w, r)
	}
}

// resource finds the built-in group that serves the version, and leaves every other to the custom resources.
func (s *Server) resource(info *apirequest.RequestInfo) http.Handler {
	if g, ok := s.groups[info.APIGroup]; ok {
		return g
	}
	return s.crds
}
