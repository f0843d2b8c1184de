package apiserver

import (
	"bytes"
	"io"
	"net/http"
	"slices"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// withWriters counts a request that may write for as long as it may: from when its body is here, since a client
// may take a minute to send it, and before anything is looked at, until it is answered, since a client may
// take as long to read that.
func (s *Server) withWriters(h http.Handler) http.Handler {
	if s.config.Writers == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodOptions}, r.Method) {
			h.ServeHTTP(w, r)
			return
		}
		body := received(r.Body, s.generic.MaxRequestBodyBytes)
		ctx, end := s.config.Writers.Begin(r.Context())
		defer end()
		r = r.WithContext(ctx)
		r.Body = body
		h.ServeHTTP(responsewriter.WrapForHTTP1Or2(&answering{w, end}), r)
	})
}

// received is a body whose bytes have come: all of them, or as many as show that it is larger than allowed, or
// that its client went away.
func received(body io.ReadCloser, allowed int64) io.ReadCloser {
	bytesRead, err := io.ReadAll(io.LimitReader(body, allowed+1))
	rest := io.Reader(body)
	if err != nil {
		rest = failing{err}
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(bytesRead), rest), body}
}

type failing struct{ error }

func (f failing) Read([]byte) (int, error) { return 0, f.error }

// answering ends what was begun when the answer begins.
type answering struct {
	http.ResponseWriter
	end func()
}

func (a *answering) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answering) WriteHeader(code int) {
	a.end()
	a.ResponseWriter.WriteHeader(code)
}

func (a *answering) Write(p []byte) (int, error) {
	a.end()
	return a.ResponseWriter.Write(p)
}
