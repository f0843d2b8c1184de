package answers

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// response remembers the code and the length of the answer that was sent.
type response struct {
	http.ResponseWriter
	code  int
	bytes int64
}

func newResponse(w http.ResponseWriter) (*response, http.ResponseWriter) {
	r := &response{ResponseWriter: w}
	return r, responsewriter.WrapForHTTP1Or2(r)
}

func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *response) WriteHeader(code int) {
	if r.code == 0 {
		r.code = code
	}
	r.ResponseWriter.WriteHeader(code)
}

func (r *response) Write(p []byte) (int, error) {
	if r.code == 0 {
		r.code = http.StatusOK
	}
	n, err := r.ResponseWriter.Write(p)
	r.bytes += int64(n)
	return n, err
}

// OnBegin returns a writer that calls begun when the answer begins, and again before each part of the answer.
func OnBegin(w http.ResponseWriter, begun func()) http.ResponseWriter {
	return responsewriter.WrapForHTTP1Or2(&answering{w, begun})
}

// InRedirects returns a writer that puts a root such as '/at/MOMENT' before the path to which an answer redirects.
func InRedirects(w http.ResponseWriter, root string) http.ResponseWriter {
	return OnBegin(w, sync.OnceFunc(func() {
		if to := w.Header().Get("Location"); strings.HasPrefix(to, "/") {
			w.Header().Set("Location", root+to)
		}
	}))
}

// answering calls begun when the answer begins, and again before each part of the answer.
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

// Buffer is an http.ResponseWriter that keeps the answer. Only one goroutine may use it.
type Buffer struct {
	Code int // 0 before the answer has begun
	Body bytes.Buffer

	header, sent http.Header
}

// NewBuffer makes a buffer with these headers, to which an answer adds its own headers.
func NewBuffer(header http.Header) *Buffer { return &Buffer{header: header} }

// Header implements http.ResponseWriter.
func (b *Buffer) Header() http.Header { return b.header }

// WriteHeader implements http.ResponseWriter.
func (b *Buffer) WriteHeader(code int) {
	if b.Code == 0 {
		b.Code, b.sent = code, b.header.Clone()
	}
}

// Write implements http.ResponseWriter.
func (b *Buffer) Write(p []byte) (int, error) {
	b.WriteHeader(http.StatusOK)
	return b.Body.Write(p)
}

// Flush implements http.Flusher.
func (b *Buffer) Flush() {}

// Response is the answer as the sender of the request gets it.
func (b *Buffer) Response(r *http.Request) *http.Response {
	b.WriteHeader(http.StatusOK)
	return &http.Response{
		Status: http.StatusText(b.Code), StatusCode: b.Code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: b.sent, Body: io.NopCloser(&b.Body), ContentLength: int64(b.Body.Len()), Request: r,
	}
}
