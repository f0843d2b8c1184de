package serving_test

import (
	"bytes"
	"context"
	"fmt"
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
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := serving.NewStream(w, r, patience)
		defer s.End()
		handle(s, r)
	}))
	server.Config.ConnContext = serving.WithConnection
	server.Start()
	t.Cleanup(server.Close)
	return server
}

// TestSend: a chunk comes after the handler's earlier writes and before its later writes. While the handler has
// unflushed data, and after the end, Send sends nothing.
func TestSend(t *testing.T) {
	var s *serving.Stream
	server := withStream(t, time.Minute, func(stream *serving.Stream, _ *http.Request) {
		s = stream
		write := func(text string) {
			_, err := io.WriteString(s, text)
			assert.NoError(t, err)
		}
		write("a")
		assert.False(t, s.Send(serving.HTTPChunk([]byte("nothing"))), "net/http holds 'a' back")
		s.Flush()
		sent := make(chan bool)
		go func() { sent <- s.Send(serving.HTTPChunk([]byte("b"))) && s.Send(serving.HTTPChunk([]byte("c"))) }()
		assert.True(t, <-sent)
		write("d")
		s.Flush()
		assert.True(t, s.Send(serving.HTTPChunk([]byte(strings.Repeat("e", 20)))))
	})
	for range 2 { // over one connection
		response, err := server.Client().Get(server.URL)
		require.NoError(t, err)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, "abcd"+strings.Repeat("e", 20), string(body))
		require.False(t, s.Send(serving.HTTPChunk([]byte("nothing"))), "the stream has ended")
	}
}

// TestNothingAfterAFailure: once a write of the handler has failed, a part of the answer is missing. So nothing more
// may be sent, even if the client reads on. The writers in between may hide a failed flush.
func TestNothingAfterAFailure(t *testing.T) {
	failed, reads, sent := make(chan struct{}), make(chan struct{}), make(chan bool, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := serving.NewStream(silent{w}, r, 100*time.Millisecond)
		defer s.End()
		for s.FlushError() == nil && r.Context().Err() == nil { // until there is no more room
			_, _ = s.Write(bytes.Repeat([]byte("y"), 1<<10))
		}
		close(failed)
		<-reads
		sent <- s.Send(serving.HTTPChunk([]byte("z")))
	}))
	server.Config.ConnContext = serving.WithConnection
	server.Start()
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
	require.False(t, <-sent)
}

// silent is a writer that, like upstream's writers, reports no flush errors.
type silent struct{ http.ResponseWriter }

func (s silent) Flush()                      { s.ResponseWriter.(http.Flusher).Flush() }
func (s silent) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// TestSendsOnlyChunks: clients of HTTP/1.0, HTTP/2 or TLS are sent nothing past the handler.
func TestSendsOnlyChunks(t *testing.T) {
	sends := make(chan bool, 1)
	handler := func(w http.ResponseWriter, r *http.Request) {
		s := serving.NewStream(w, r, time.Minute)
		defer s.End()
		s.Flush()
		sends <- s.Sends() || s.Send(serving.HTTPChunk([]byte("x")))
	}
	url, client := serve(t, handler, serving.Config{})
	for _, multiplexed := range []bool{false, true} {
		transport := client.Transport.(*http.Transport).Clone()
		transport.ForceAttemptHTTP2 = multiplexed
		if !multiplexed {
			transport.TLSClientConfig.NextProtos = nil
		}
		response, err := (&http.Client{Transport: transport}).Get(url)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, multiplexed, response.ProtoMajor == 2)
		require.False(t, <-sends)
		transport.CloseIdleConnections()
	}
	server := withStream(t, time.Minute, func(s *serving.Stream, r *http.Request) { handler(s, r) })
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n")
	require.NoError(t, err)
	require.False(t, <-sends)
}

// TestSendDoesNotWait: a client that reads nothing is sent as much as there is room for. If there was room for a part
// of a chunk, the rest comes before all other bytes once the client reads.
func TestSendDoesNotWait(t *testing.T) {
	sent := make(chan string, 1)
	server := withStream(t, time.Minute, func(s *serving.Stream, _ *http.Request) {
		s.Flush()
		var all strings.Builder
		for n := 0; ; n++ {
			text := fmt.Sprintf("%d %s\n", n, strings.Repeat("x", 1<<20))
			if !s.Send(serving.HTTPChunk([]byte(text))) {
				break
			}
			all.WriteString(text)
		}
		assert.Positive(t, all.Len())
		all.WriteString("end")
		sent <- all.String()
		_, err := io.WriteString(s, "end") // waits for the client
		assert.NoError(t, err)
	})
	response, err := server.Client().Get(server.URL)
	require.NoError(t, err)
	defer response.Body.Close()
	want := <-sent
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.True(t, want == string(body))
}

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
	sent := make(chan error, 1)
	server := withStream(t, patience, func(s *serving.Stream, _ *http.Request) {
		s.Flush()
		began := make(chan struct{})
		go func() {
			close(began)
			sent <- s.SendAll(bytes.Repeat([]byte("x"), 64<<20))
		}()
		<-began
		for s.Send(serving.HTTPChunk([]byte("y"))) { // until SendAll has begun
		}
	})
	response, err := server.Client().Get(server.URL)
	require.NoError(t, err)
	defer response.Body.Close()
	for err == nil {
		_, err = io.CopyN(io.Discard, response.Body, 64<<10)
		time.Sleep(patience / 8) // the slow client
	}
	require.Error(t, <-sent)
}

// TestRestOfAChunk: a client that never makes room for the rest of a chunk is cut off. The cut ends the client's
// handler, even if the handler has nothing to write.
func TestRestOfAChunk(t *testing.T) {
	ended := make(chan error, 1)
	server := withStream(t, 100*time.Millisecond, func(s *serving.Stream, r *http.Request) {
		s.Flush()
		chunk := serving.HTTPChunk(bytes.Repeat([]byte("x"), 64<<20))
		assert.True(t, s.Send(chunk))
		assert.False(t, s.Send(chunk))
		<-r.Context().Done()
		ended <- context.Cause(r.Context())
	})
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	require.ErrorIs(t, <-ended, context.Canceled)
}

// TestSendAllocatesNothing: a chunk costs one write for each receiver, and no allocation.
func TestSendAllocatesNothing(t *testing.T) {
	allocated := make(chan float64, 1)
	server := withStream(t, time.Minute, func(s *serving.Stream, _ *http.Request) {
		s.Flush()
		chunk := serving.HTTPChunk([]byte("x"))
		allocated <- testing.AllocsPerRun(1000, func() { assert.True(t, s.Send(chunk)) })
	})
	response, err := server.Client().Get(server.URL)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Zero(t, <-allocated)
}
