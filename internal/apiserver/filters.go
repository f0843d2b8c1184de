package apiserver

import (
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericfeatures "k8s.io/apiserver/pkg/features"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/routine"

	"github.com/logplane/logplane/internal/apiserver/access"
	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/gate"
	"github.com/logplane/logplane/internal/apiserver/requests"
	"github.com/logplane/logplane/internal/kubestore"
)

// withFilters wraps dispatch in upstream's filters and in ours. A request meets the filters in reverse order: the
// filter that is added last comes first.
//
// Cheap refusals come first. A request without valid credentials is answered 401 before its body is read and before it
// takes a seat. Only one kind of credentials makes the server ask the log that early: a service account's token that is
// signed and has not expired. Requests that wait share one question to the log. Only health checks, OPTIONS and
// malformed URLs are answered even earlier.
func (s *Server) withFilters(h http.Handler) http.Handler {
	c := s.generic
	h = s.cost.WithContent(h)
	h = s.withRemote(h)
	h = s.withPast(h) // after authorization: rights are today's
	h = s.gate.WithWatchLimits(h)
	h = genericapifilters.WithAuthorization(h, c.Authorization.Authorizer, c.Serializer)
	h = withActingAs(h)
	h = s.withImpersonation(h)
	h = withOrigin(h)
	h = s.withCatchUp(h)
	h = s.gate.WithWriters(h)
	h = s.gate.WithSeats(h) // before impersonation: the seat is the real user's
	h = answers.WithCorrections(h)
	h = answers.WithWarnings(h)
	h = answers.WithRecovery(h, s.config.Logger) // answers before the audit filter sees the panic
	h = s.gate.WithTimeout(h)
	h = s.gate.WithBody(h)
	if s.config.LiveWatches != nil {
		h = s.withLiveWatches(h)
	}
	if s != s.main {
		h = s.withUse(h) // before impersonation: the right is the real user's
	}
	if s.recorded() {
		h = routine.WithRoutine(h, requests.IsLongRunning) // a watch's last audit record is written when the watch ends
		h = access.WithAudit(h, c.AuditBackend, c.AuditPolicyRuleEvaluator)
	}
	if s.config.TracingConfigFile != "" { // an administrator's trace continues here, anybody else's is only linked
		h = genericapifilters.WithTracing(h, c.TracerProvider)
	}
	stranger := genericapifilters.WithFailedAuthenticationAudit(gate.Unreceived(genericapifilters.Unauthorized(c.Serializer)), c.AuditBackend, c.AuditPolicyRuleEvaluator)
	h = genericapifilters.WithAuthentication(h, c.Authentication.Authenticator, stranger, c.Authentication.APIAudiences, nil)
	h = withRoomForView(h)
	h = genericapifilters.WithRequestDeadline(h, nil, nil, requests.IsLongRunning, c.Serializer, c.RequestTimeout)
	h = genericapifilters.WithLatencyTrackers(h)
	if !s.recorded() {
		h = routine.WithRoutine(h, requests.IsLongRunning) // frees the stack that prepared a watch
	}
	h = s.gate.WithOpen(h)
	h = s.withRequestInfo(h)
	h = withPartOf(h)
	h = s.withMoment(h)
	h = withShortQuery(h)
	h = genericapifilters.WithRequestReceivedTimestamp(h)
	if s == s.main { // else the answer would tell strangers which clusters there are
		h = s.withHealth(h)
	}
	if s.config.GoawayChance > 0 {
		h = genericfilters.WithProbabilisticGoaway(h, s.config.GoawayChance)
	}
	h = genericapifilters.WithCacheControl(h)
	h = genericfilters.WithHSTS(h, s.config.HSTSDirectives)
	h = withOptions(h)
	if s.config.LoopbackOnly {
		h = access.WithLoopbackHost(h)
	}
	h = answers.WithRecovery(h, s.config.Logger)
	h = answers.WithLog(h, s.config.Logger)
	if s != s.main {
		h = s.withClusterInAudit(h)
	}
	h = genericapifilters.WithAuditInit(h)
	h = requests.WithID(h)
	h = s.gate.WithBodyDeadline(h)
	return h
}

// recorded reports whether there is an audit policy.
func (s *Server) recorded() bool { return s.generic.AuditBackend != nil }

// withImpersonation lets a request act as another user. Upstream's filter remembers for ten seconds who may impersonate
// whom, so a revoked right would stay valid for that long. Therefore each request that impersonates makes its own
// filter, which takes microseconds.
func (s *Server) withImpersonation(h http.Handler) http.Handler {
	c := s.generic
	filter := impersonation.WithImpersonation
	if c.FeatureGate.Enabled(genericfeatures.ConstrainedImpersonation) {
		filter = impersonation.WithConstrainedImpersonation
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asks := false
		for name := range r.Header {
			asks = asks || strings.HasPrefix(name, impersonationPrefix)
		}
		if !asks {
			h.ServeHTTP(w, r)
			return
		}
		filter(h, c.Authorization.Authorizer, c.Serializer).ServeHTTP(w, r)
	})
}

// impersonationPrefix begins the headers that name the user to act as.
const impersonationPrefix = "Impersonate-"

// withRequestInfo parses the path as upstream's filter does, but answers a path that cannot be parsed with 400.
func (s *Server) withRequestInfo(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, err := s.generic.RequestInfoResolver.NewRequestInfo(r)
		if err != nil {
			answers.Fail(w, r, apierrors.NewBadRequest(err.Error()))
			return
		}
		h.ServeHTTP(w, r.WithContext(apirequest.WithRequestInfo(r.Context(), info)))
	})
}

// withRoomForView gives a request room for a view of its own. The first filter that needs the log reads that view.
// Otherwise a request through the loopback would inherit its caller's view, which may just have proved too old.
func withRoomForView(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(kubestore.WithView(r.Context(), nil)))
	})
}

// withCatchUp catches up with the log once for the whole request, unless the verification of the request's token has
// caught up already. A watch does not keep a view, since a watch lasts long after its start.
func (s *Server) withCatchUp(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, _ := apirequest.RequestInfoFrom(r.Context())
		if _, err := s.config.Cell.Consistent(r.Context()); err != nil && !requests.DescribesProcess(info.Path) {
			answers.Fail(w, r, err)
			return
		}
		if info.Verb == "watch" {
			r = r.WithContext(kubestore.WithoutView(r.Context()))
		}
		h.ServeHTTP(w, r)
	})
}

// withLiveWatches passes on the watches that this process does not serve. The process serves watches of the past, which
// need no feed.
func (s *Server) withLiveWatches(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, _ := apirequest.RequestInfoFrom(r.Context())
		if _, past := momentOf(r.Context()); requests.WatcherServes(info) && !past {
			if visit := visitOf(r.Context()); visit != nil {
				r = requests.In(requests.ClusterPrefix+visit.name, r)
			}
			s.config.LiveWatches.ServeHTTP(w, r)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// withOptions answers requests with the method OPTIONS, which read and write nothing.
func withOptions(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodOptions {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// withShortQuery refuses long queries.
func withShortQuery(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.URL.RawQuery) > requests.MaxQuery {
			err := apierrors.NewBadRequest(fmt.Sprintf("the query has %d bytes and may have %d: select with fewer terms", len(r.URL.RawQuery), requests.MaxQuery))
			err.ErrStatus.Code = http.StatusRequestURITooLong
			answers.Fail(w, r, err)
			return
		}
		h.ServeHTTP(w, r)
	})
}
