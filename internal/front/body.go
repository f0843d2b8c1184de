package front

import (
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// arriving is the body of a client's request. It has a deadline until all of it has come.
type arriving struct {
	io.ReadCloser
	w      http.ResponseWriter
	lasts  bool // the request, so that the deadline must go
	broken atomic.Bool
}

// Read implements io.Reader.
func (a *arriving) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	switch {
	case err == io.EOF && a.lasts:
		_ = http.NewResponseController(a.w).SetReadDeadline(time.Time{})
	case err != nil && err != io.EOF:
		a.broken.Store(true)
	}
	return n, err
}

// clientError is an error of the client, who has not sent the whole body. It says nothing about the server.
type clientError struct{ error }

// wasBroken says whether it was the client who broke off.
func wasBroken(r *http.Request) bool {
	body, ok := r.Body.(*arriving)
	return ok && body.broken.Load()
}
