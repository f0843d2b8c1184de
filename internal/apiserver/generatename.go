package apiserver

import (
	"net/http"

	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// withGeneratedName keeps the promise that a generated name is never answered with 409 (api-semantics.md,
// row 9). Upstream tries eight names and then answers a 409, the only one that carries Retry-After.
func withGeneratedName(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			h.ServeHTTP(w, r)
			return
		}
		h.ServeHTTP(responsewriter.WrapForHTTP1Or2(&generatedName{ResponseWriter: w, request: r}), r)
	})
}

// generatedName replaces that one answer.
type generatedName struct {
	http.ResponseWriter
	request  *http.Request
	replaced bool
}

func (g *generatedName) Unwrap() http.ResponseWriter { return g.ResponseWriter }

func (g *generatedName) WriteHeader(code int) {
	if g.replaced {
		return
	}
	if code != http.StatusConflict || g.Header().Get("Retry-After") == "" {
		g.ResponseWriter.WriteHeader(code)
		return
	}
	g.replaced = true
	for _, header := range []string{"Content-Length", "Content-Encoding", "Content-Type", "Retry-After"} {
		g.Header().Del(header)
	}
	info, _ := apirequest.RequestInfoFrom(g.request.Context())
	err := errors.NewServerTimeout(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}, "create", 1)
	err.ErrStatus.Code = http.StatusGatewayTimeout
	err.ErrStatus.Message = "no unique name could be generated, try again"
	responsewriters.ErrorNegotiated(err, codecs(), schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, g.ResponseWriter, g.request)
}

func (g *generatedName) Write(p []byte) (int, error) {
	if g.replaced {
		return len(p), nil
	}
	return g.ResponseWriter.Write(p)
}
