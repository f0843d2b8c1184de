package apiserver

import (
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericfeatures "k8s.io/apiserver/pkg/features"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/routine"

	"github.com/logplane/logplane/internal/kubestore"
)

// isLongRunning is true for a watch, and for nothing else: there are no nodes to attach to.
var isLongRunning = genericfilters.BasicLongRunningRequestCheck(sets.NewString("watch"), sets.NewString())

// minRequestTimeout is how long a watch without a timeout lives at least.
func (s *Server) minRequestTimeout() time.Duration {
	return time.Duration(s.generic.MinRequestTimeout) * time.Second
}

// withFilters wraps dispatch in upstream's filters in upstream's order, and in ours. The last one added is
// the first that a request meets.
func (s *Server) withFilters(h http.Handler) http.Handler {
	c := s.generic
	h = s.withWatchLimits(h)
	h = genericapifilters.WithAuthorization(h, c.Authorization.Authorizer, c.Serializer)
	if c.FeatureGate.Enabled(genericfeatures.ConstrainedImpersonation) {
		h = impersonation.WithConstrainedImpersonation(h, c.Authorization.Authorizer, c.Serializer)
	} else {
		h = impersonation.WithImpersonation(h, c.Authorization.Authorizer, c.Serializer)
	}
	h = genericapifilters.WithAuthentication(h, c.Authentication.Authenticator, genericapifilters.Unauthorized(c.Serializer), c.Authentication.APIAudiences, nil)
	h = s.withView(h)
	h = s.withWriters(h)
	h = s.withLimit(h)
	h = s.withCorrections(h)
	h = genericapifilters.WithWarningRecorder(h)
	h = s.withRecovery(h) // on the goroutine that the next filter starts
	h = withTimeout(h)
	h = genericapifilters.WithRequestDeadline(h, nil, nil, isLongRunning, c.Serializer, c.RequestTimeout)
	h = s.withWatcher(h)
	h = genericapifilters.WithLatencyTrackers(h)
	h = routine.WithRoutine(h, isLongRunning) // a watch lets go of the stack that prepared it
	h = s.watches.withPlace(h)
	h = s.withRequestInfo(h)
	h = genericapifilters.WithRequestReceivedTimestamp(h)
	h = s.withHealth(h)
	h = genericapifilters.WithCacheControl(h)
	h = withOptions(h)
	h = s.withLoopbackHost(h)
	h = s.withRecovery(h)
	h = s.withLog(h)
	h = genericapifilters.WithAuditInit(h)
	h = withRequestID(h)
	return h
}

// fail answers an error as a Status in the representation that the client accepts.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	version := schema.GroupVersion{Version: "v1"}
	if info, ok := apirequest.RequestInfoFrom(r.Context()); ok && info.APIVersion != "" {
		version = schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	}
	responsewriters.ErrorNegotiated(err, s.generic.Serializer, version, w, r)
}

// withRequestInfo parses the path as upstream's filter does, but answers one that has no meaning with 400.
func (s *Server) withRequestInfo(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, err := s.generic.RequestInfoResolver.NewRequestInfo(r)
		if err != nil {
			s.fail(w, r, apierrors.NewBadRequest(err.Error()))
			return
		}
		h.ServeHTTP(w, r.WithContext(apirequest.WithRequestInfo(r.Context(), info)))
	})
}

// withView catches up with the log once for everything the request looks at. A watch reads on for long
// after its start, so it keeps no view.
func (s *Server) withView(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, _ := apirequest.RequestInfoFrom(r.Context())
		// A request through the loopback asks anew: its caller may just have been told to look again.
		ctx := kubestore.WithView(r.Context(), nil)
		if _, err := s.config.Cell.Consistent(ctx); err != nil && !describesProcess(info.Path) {
			s.fail(w, r, err)
			return
		}
		if info.Verb != "watch" {
			r = r.WithContext(ctx)
		}
		h.ServeHTTP(w, r)
	})
}

// describesProcess is true for what must be answered while the log cannot be read: it shows nothing of it.
func describesProcess(path string) bool { return path == "/metrics" || path == "/version" }

// withWatcher sends a watch to the watcher where this process has no feed of the log. The verb decides,
// since '/api/v1/watch/…' is a watch too.
func (s *Server) withWatcher(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, _ := apirequest.RequestInfoFrom(r.Context())
		if info.Verb != "watch" || s.config.Cell.Feed != nil {
			h.ServeHTTP(w, r)
			return
		}
		if s.config.WatcherURL == "" {
			s.fail(w, r, notSupported(info, "watch is not served here: this process has no watcher"))
			return
		}
		w.Header().Set("Location", strings.TrimSuffix(s.config.WatcherURL, "/")+r.URL.RequestURI())
		w.WriteHeader(http.StatusTemporaryRedirect)
	})
}

// withOptions answers OPTIONS, which asks for nothing.
func withOptions(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodOptions {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// withLimit answers 429 beyond upstream's bounds on requests in flight, which keep a burst from taking all
// memory. A request that came through the loopback is part of another that is counted already.
func (s *Server) withLimit(h http.Handler) http.Handler {
	reads := make(chan struct{}, s.generic.MaxRequestsInFlight)
	writes := make(chan struct{}, s.generic.MaxMutatingRequestsInFlight)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, _ := apirequest.RequestInfoFrom(r.Context())
		if isLongRunning(r, info) || isLoopback(r.Context()) {
			h.ServeHTTP(w, r)
			return
		}
		inFlight := writes
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			inFlight = reads
		}
		select {
		case inFlight <- struct{}{}:
			defer func() { <-inFlight }()
			h.ServeHTTP(w, r)
		default:
			s.fail(w, r, apierrors.NewTooManyRequests("too many requests in flight, try again", 1))
		}
	})
}
