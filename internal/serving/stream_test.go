package serving_test

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/internal/serving"
)

// withStream serves with a Stream over plain HTTP.
func withStream(t *testing.T, patience time.Duration, handle func(*serving.Stream, *http.Request)) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := serving.NewStream(w, r, patience)
		defer s.End()
		handle(s, r)
	}))
	t.Cleanup(server.Close)
	return server
}

// TestNothingAfterAFailure: once a write of the handler has failed, a part of the answer is missing. So nothing more
// may be sent, even if the client reads on. The writers in between may hide a failed flush.
func TestNothingAfterAFailure(t *testing.T) {
	failed, reads, sent := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := serving.NewStream(silent{w}, r, 100*time.Millisecond)
		defer s.End()
		for s.FlushError() == nil && r.Context().Err() == nil { // until there is no more room
			_, _ = s.Write(bytes.Repeat([]byte("y"), 1<<10))
		}
		close(failed)
		<-reads
		sent <- s.SendAll([]byte("z"))
	}))
	t.Cleanup(server.Close)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	<-failed
	_, err = io.CopyN(io.Discard, conn, 64<<10)
	close(reads)
	require.NoError(t, err)
	require.Error(t, <-sent)
}

// silent is a writer that, like upstream's writers, reports no flush errors.
type silent struct{ http.ResponseWriter }

func (s silent) Flush()                      { s.ResponseWriter.(http.Flusher).Flush() }
func (s silent) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// TestSendAll: SendAll begins after the handler has begun, and its bytes stay together whatever else is written. A
// client is not cut off if it takes long for all bytes, but receives each part in time. Nothing is sent after the end.
func TestSendAll(t *testing.T) {
	if testing.Short() {
		t.Skip("its client is slow")
	}
	const patience = 2 * time.Second
	text := strings.Repeat("x", 24<<20)
	var stream *serving.Stream
	sent := make(chan error, 1)
	server := withStream(t, patience, func(s *serving.Stream, _ *http.Request) {
		stream = s
		go func() { sent <- s.SendAll([]byte(text)) }()
		_, err := io.WriteString(s, "a") // the buffered byte comes first
		assert.NoError(t, err)
		s.Flush()
		assert.NoError(t, <-sent)
		_, err = io.WriteString(s, "b"+text) // a large write of the handler is sent in parts too
		assert.NoError(t, err)
	})
	response, err := server.Client().Get(server.URL)
	require.NoError(t, err)
	defer response.Body.Close()
	var got strings.Builder
	for err == nil {
		_, err = io.CopyN(&got, response.Body, 2<<20)
		time.Sleep(patience / 4) // the slow client
	}
	require.Equal(t, io.EOF, err)
	require.True(t, "a"+text+"b"+text == got.String())
	require.Error(t, stream.SendAll([]byte("nothing")))
}

// TestEndDoesNotWaitForAll: once the handler is done, a slow client gets no more than one patience for the rest.
func TestEndDoesNotWaitForAll(t *testing.T) {
	const patience = 200 * time.Millisecond
	sent, begun := make(chan error, 1), make(chan struct{})
	server := withStream(t, patience, func(s *serving.Stream, _ *http.Request) {
		s.Flush()
		go func() { sent <- s.SendAll(bytes.Repeat([]byte("x"), 64<<20)) }()
		<-begun
	})
	response, err := server.Client().Get(server.URL)
	require.NoError(t, err)
	defer response.Body.Close()
	_, err = io.CopyN(io.Discard, response.Body, 1)
	close(begun)
	for err == nil {
		_, err = io.CopyN(io.Discard, response.Body, 64<<10)
		time.Sleep(patience / 8) // the slow client
	}
	require.Error(t, <-sent)
}
