package front

import (
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// lasting is the body of a request that lasts. Its read deadline is removed once all of it has come.
type lasting struct {
	io.ReadCloser
	w http.ResponseWriter
}

// Read implements io.Reader.
func (l *lasting) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p)
	if err == io.EOF {
		_ = http.NewResponseController(l.w).SetReadDeadline(time.Time{})
	}
	return n, err
}

// clientError is an error of a client that has not sent the whole body. It says nothing about the server.
type clientError struct{ error }

func (e clientError) Unwrap() error { return e.error }

// sent is a body that is sent to a server. It remembers whether the client broke off. Closing it does nothing, because
// another server may still need it.
type sent struct {
	io.Reader
	broken atomic.Bool
}

// Read implements io.Reader.
func (s *sent) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && err != io.EOF {
		s.broken.Store(true)
	}
	return n, err
}

// Close implements io.Closer.
func (s *sent) Close() error { return nil }
