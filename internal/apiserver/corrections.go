package apiserver

import (
	"bytes"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// withCorrections replaces the few answers to writes in which upstream gives a code that api-semantics.md
// does not allow. They are made deep inside upstream, so they are recognised by what they say.
func (s *Server) withCorrections(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			h.ServeHTTP(w, r)
			return
		}
		c := &correction{ResponseWriter: w}
		h.ServeHTTP(responsewriter.WrapForHTTP1Or2(c), r)
		if c.held == 0 {
			return
		}
		if err := corrected(r, c.body.Bytes()); err != nil {
			for _, header := range []string{"Content-Length", "Content-Encoding", "Content-Type", "Retry-After"} {
				w.Header().Del(header)
			}
			s.fail(w, r, err)
			return
		}
		w.WriteHeader(c.held)
		_, _ = w.Write(c.body.Bytes())
	})
}

// corrected is what to answer instead, nil for nothing.
func corrected(r *http.Request, body []byte) error {
	object, err := runtime.Decode(codecs().UniversalDeserializer(), body)
	status, ok := object.(*metav1.Status)
	if err != nil || !ok {
		return nil
	}
	info, _ := apirequest.RequestInfoFrom(r.Context())
	switch {
	// Row 9: a generated name is never answered with 409. Upstream tries eight and then answers the only
	// 409 that says when to come back.
	case status.Reason == metav1.StatusReasonAlreadyExists && status.Details != nil && status.Details.RetryAfterSeconds > 0:
		timeout := apierrors.NewServerTimeout(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}, "create", 1)
		timeout.ErrStatus.Code = http.StatusGatewayTimeout
		timeout.ErrStatus.Message = "no unique name could be generated, try again"
		return timeout
	// What the client sent was wrong, and sending it again would not help.
	case status.Code == http.StatusInternalServerError &&
		(strings.HasPrefix(status.Message, "failed to create typed patch object") || status.Message == "resourceVersion should not be set on objects to be created"):
		return apierrors.NewBadRequest(status.Message)
	}
	return nil
}

// correction holds back an answer that may have to be replaced, and lets every other pass.
type correction struct {
	http.ResponseWriter
	held int // the answer's code while it is held back
	body bytes.Buffer
}

func (c *correction) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *correction) WriteHeader(code int) {
	if code == http.StatusInternalServerError || code == http.StatusConflict {
		c.held = code
		return
	}
	c.ResponseWriter.WriteHeader(code)
}

func (c *correction) Write(p []byte) (int, error) {
	if c.held != 0 {
		return c.body.Write(p)
	}
	return c.ResponseWriter.Write(p)
}
