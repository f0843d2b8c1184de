package apiserver

import (
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"

	"github.com/logplane/logplane/internal/kubestore"
)

// fail answers with a Status for the error, in a representation that the client accepts.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	version := schema.GroupVersion{Version: "v1"}
	if info, ok := apirequest.RequestInfoFrom(r.Context()); ok && info.APIVersion != "" {
		version = schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	}
	responsewriters.ErrorNegotiated(kubestore.Answer(r.Context(), err), s.generic.Serializer, version, w, r)
}

// Fail answers with an error in a representation that the client accepts, in a process that has no Server.
func Fail(w http.ResponseWriter, r *http.Request, err error) {
	responsewriters.ErrorNegotiated(err, codecs(), schema.GroupVersion{Version: "v1"}, w, r)
}

// unknown answers a request for a path that nothing serves.
func (s *Server) unknown() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.fail(w, r, notServed(r)) })
}

// notServed is upstream's answer to a path that no handler serves.
func notServed(r *http.Request) error {
	if describesProcess(strings.TrimSuffix(r.URL.Path, "/")) {
		return methodNotAllowed(r)
	}
	return nowhere(r)
}

// nowhere is upstream's answer to a path at which nothing exists.
func nowhere(r *http.Request) error {
	err := apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, schema.GroupResource{}, "", "", 0, true)
	err.ErrStatus.Reason = metav1.StatusReasonNotFound
	return err
}

// methodNotAllowed is upstream's answer to another method on a path that allows only GET.
func methodNotAllowed(r *http.Request) error {
	return apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, r.Method, schema.GroupResource{}, "", "", 0, false)
}

// notSupported is a 405 that says why.
func notSupported(info *apirequest.RequestInfo, message string) error {
	err := apierrors.NewMethodNotSupported(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}, info.Verb)
	err.ErrStatus.Message = message
	return err
}

// unfit answers a write that made upstream panic. The fault is upstream's, but a 5xx would make the client repeat the
// request, which would panic again.
func unfit(message string) error {
	err := apierrors.NewBadRequest(message)
	err.ErrStatus.Code, err.ErrStatus.Reason = http.StatusUnprocessableEntity, metav1.StatusReasonInvalid
	return err
}

// describesProcess is true for paths that must be answered even if the log cannot be read. These answers show nothing
// that is in the log.
func describesProcess(path string) bool { return path == "/metrics" || path == "/version" }

// isWatch is true for a watch.
var isWatch = genericfilters.BasicLongRunningRequestCheck(sets.NewString("watch"), sets.NewString())

// isLongRunning is true for a watch, and for the subresources that stream, such as exec and log, also if a remote API
// server serves them.
func isLongRunning(r *http.Request, info *apirequest.RequestInfo) bool {
	return isWatch(r, info) || info != nil && info.IsResourceRequest && nodeSubresources[info.Subresource]
}

// requestInfos parse the path and the query of a request as kube-apiserver does.
var requestInfos = genericapiserver.NewRequestInfoResolver(&genericapiserver.Config{
	LegacyAPIGroupPrefixes: sets.NewString(genericapiserver.DefaultLegacyAPIPrefix),
})

// watcherServes is true for requests that 'api' redirects to a watcher. The verb decides: '/api/v1/watch/…' is a watch
// too.
func watcherServes(info *apirequest.RequestInfo) bool { return info.Verb == "watch" }

// Destination tells a proxy in front of other processes two things about a request. watcher: 'api' would redirect it to
// a watcher. lasts: it lasts for as long as its client likes. Both are false if the URL cannot be parsed, so that 'api'
// gets the request and refuses it.
func Destination(r *http.Request) (watcher, lasts bool) {
	if len(r.URL.RawQuery) > maxQuery {
		return false, false
	}
	info, err := requestInfos.NewRequestInfo(r)
	if err != nil {
		return false, false
	}
	return watcherServes(info), isLongRunning(r, info)
}

// minRequestTimeout is the shortest lifetime of a watch that sets no timeout.
func (s *Server) minRequestTimeout() time.Duration {
	return time.Duration(s.generic.MinRequestTimeout) * time.Second
}
