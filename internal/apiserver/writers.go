package apiserver

import (
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/logplane/logplane/internal/apiserver/requests"
)

// withWriters counts a request while it may write. That begins before the request reads anything, but after its body
// has arrived, since a client may take half a minute to send the body. It ends when the answer begins, since a client
// may take as long to read it.
func (s *Server) withWriters(h http.Handler) http.Handler {
	if s.config.Writers == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.OnlyReads(r) {
			h.ServeHTTP(w, r)
			return
		}
		ctx, end := s.config.Writers.Begin(r.Context())
		defer end()
		h.ServeHTTP(responsewriter.WrapForHTTP1Or2(&answering{w, end}), r.WithContext(ctx))
	})
}

// answering calls begun when the answer begins, and again before each part of it.
type answering struct {
	http.ResponseWriter
	begun func()
}

func (a *answering) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answering) WriteHeader(code int) {
	a.begun()
	a.ResponseWriter.WriteHeader(code)
}

func (a *answering) Write(p []byte) (int, error) {
	a.begun()
	return a.ResponseWriter.Write(p)
}
