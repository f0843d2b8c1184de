// Package answers decides how a failed request is answered: by a Status in a representation that the client accepts,
// with the code that api.md promises and with the warnings that were given. It also writes a line in the log for each
// request.
//
// Nouns. A correction replaces an answer of upstream if the answer's code differs from the code that api.md promises.
package answers

import (
	"net/http"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/core/install" // registers Status, the type of every error answer

	"github.com/logplane/logplane/internal/apiserver/requests"
	"github.com/logplane/logplane/internal/kubestore"
)

// Fail answers with a Status for the error, in a representation that the client accepts.
func Fail(w http.ResponseWriter, r *http.Request, err error) {
	version := schema.GroupVersion{Version: "v1"}
	if info, ok := apirequest.RequestInfoFrom(r.Context()); ok && info.APIVersion != "" {
		version = schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	}
	responsewriters.ErrorNegotiated(kubestore.Answer(r.Context(), err), Codecs(), version, w, r)
}

// Nowhere is upstream's answer to a path at which nothing exists.
func Nowhere(r *http.Request) error {
	err := apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, schema.GroupResource{}, "", "", 0, true)
	err.ErrStatus.Reason = metav1.StatusReasonNotFound
	return err
}

// MethodNotAllowed is upstream's answer to a method other than GET on a path that allows only GET.
func MethodNotAllowed(r *http.Request) error {
	return apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, r.Method, schema.GroupResource{}, "", "", 0, false)
}

// NotSupported is a 405 with the message.
func NotSupported(info *apirequest.RequestInfo, message string) error {
	err := apierrors.NewMethodNotSupported(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}, info.Verb)
	err.ErrStatus.Message = message
	return err
}

// Unfit answers a write that made upstream panic. The fault is upstream's, but a 5xx would make the client repeat the
// request, which would panic again.
func Unfit(message string) error {
	err := apierrors.NewBadRequest(message)
	err.ErrStatus.Code, err.ErrStatus.Reason = http.StatusUnprocessableEntity, metav1.StatusReasonInvalid
	return err
}

// Unknown answers a request for a path that nothing serves, as upstream does.
var Unknown = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	if requests.DescribesProcess(strings.TrimSuffix(r.URL.Path, "/")) {
		Fail(w, r, MethodNotAllowed(r))
		return
	}
	Fail(w, r, Nowhere(r))
})

// Codecs encode the answers of upstream's filters, in every representation.
var Codecs = sync.OnceValue(func() serializer.CodecFactory {
	return serializer.NewCodecFactory(legacyscheme.Scheme, serializer.WithSerializer(cbor.NewSerializerInfo))
})
