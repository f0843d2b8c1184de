package apiserver

import (
	"context"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/logplane/logplane/internal/apiserver/aggregation"
	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/kubestore"
)

// withRemote forwards a request for a group version of a remote server. This server authorizes the request, and the
// remote server authorizes it again. Everything else is left to the remote server.
func (s *Server) withRemote(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, _ := apirequest.RequestInfoFrom(r.Context())
		version, ok := s.foreign(info)
		if !ok || kubestore.PastFrom(r.Context()) != nil { // remote servers keep no past
			h.ServeHTTP(w, r)
			return
		}
		service, err := s.aggregator.Remote(version)
		switch {
		case err != nil:
			answers.Fail(w, r, err)
		case service == nil:
			h.ServeHTTP(w, r)
		case kubestore.InTransaction(r.Context()):
			answers.Fail(w, r, answers.NotSupported(info, version.String()+" is served by another server, which takes no part in transactions"))
		default:
			relay(w, r, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.aggregator.Forward(w, r, service) }))
		}
	})
}

// foreign returns the group version of a request, and whether another server may serve it.
func (s *Server) foreign(info *apirequest.RequestInfo) (schema.GroupVersion, bool) {
	version := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	if info.IsResourceRequest {
		g, builtin := s.groups[info.APIGroup]
		return version, !builtin || !g.serves(info.APIVersion)
	}
	path, ok := strings.CutPrefix(strings.TrimSuffix(strings.TrimPrefix(info.Path, "/openapi/v3"), "/"), "/apis/")
	if !ok {
		return version, false
	}
	version.Group, version.Version, ok = strings.Cut(path, "/")
	return version, ok && !strings.Contains(version.Version, "/") && !customresources.IsBuiltin(version.Group, version.Version)
}

// CheckRemote says, as the condition Available, whether the server of a remote APIService can be reached. If the
// Service could not be read, CheckRemote cannot tell and returns an error.
func (s *Server) CheckRemote(ctx context.Context, service *apiregistrationv1.APIService) (apiregistrationv1.APIServiceCondition, error) {
	return s.aggregator.Check(ctx, service)
}

// IsRemote says whether a remote server serves the group version.
func (s *Server) IsRemote(version schema.GroupVersion) (bool, error) {
	service, err := s.aggregator.Remote(version)
	return service != nil, err
}

// Publish writes the configuration by which the servers of remote APIServices trust the user that this process names in
// a request.
func (s *Server) Publish(ctx context.Context, trust aggregation.Trust) error {
	return trust.Publish(ctx, s.client)
}
