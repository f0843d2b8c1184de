package apiserver

import (
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/logplane/logplane/internal/apiserver/requests"
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
	if requests.DescribesProcess(strings.TrimSuffix(r.URL.Path, "/")) {
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

// minRequestTimeout is the shortest lifetime of a watch that sets no timeout.
func (s *Server) minRequestTimeout() time.Duration {
	return time.Duration(s.generic.MinRequestTimeout) * time.Second
}
