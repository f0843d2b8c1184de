package apiserver

import (
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericfilters "k8s.io/apiserver/pkg/server/filters"

	"github.com/logplane/logplane/internal/kubestore"
)

var isLongRunning = genericfilters.BasicLongRunningRequestCheck(sets.NewString("watch"), sets.NewString())

func (s *Server) minRequestTimeout() time.Duration {
	return time.Duration(s.generic.MinRequestTimeout) * time.Second
}

// withFilters wraps dispatch in upstream's filters, in upstream's order, and ours.
func (s *Server) withFilters(h http.Handler) http.Handler {
	c := s.generic
	h = genericapifilters.WithAuthorization(h, c.Authorization.Authorizer, c.Serializer)
	h = genericapifilters.WithAuthentication(h, c.Authentication.Authenticator, genericapifilters.Unauthorized(c.Serializer), c.Authentication.APIAudiences, nil)
	h = s.withView(h)
	h = genericapifilters.WithWarningRecorder(h)
	h = genericfilters.WithTimeoutForNonLongRunningRequests(h, isLongRunning)
	h = genericapifilters.WithRequestDeadline(h, nil, nil, isLongRunning, c.Serializer, c.RequestTimeout)
	h = genericapifilters.WithCacheControl(h)
	h = genericapifilters.WithLatencyTrackers(h)
	h = genericapifilters.WithRequestInfo(h, c.RequestInfoResolver)
	h = genericapifilters.WithRequestReceivedTimestamp(h)
	h = genericapifilters.WithAuditInit(h)
	return h
}

// withView catches up with the log once for everything the request looks at.
func (s *Server) withView(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		view, err := s.config.Cell.Projection.Latest(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		info, _ := apirequest.RequestInfoFrom(r.Context())
		if info.Verb != "watch" {
			r = r.WithContext(kubestore.WithView(r.Context(), view))
		}
		h.ServeHTTP(w, r)
	})
}
