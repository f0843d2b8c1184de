package front

import (
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// lasting is the body of a request that lasts. The read deadline is removed once the whole body has come.
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

// clientError is an error of a client that has not sent the whole body. Such an error says nothing about the server.
type clientError struct{ error }

func (e clientError) Unwrap() error { return e.error }

// sent is a body that is sent to a server. It remembers whether the client broke off. Close does nothing, because
// another server may still need the body.
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
