package serving_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/serving"
)

// An HTTP/2 connection is opened while the server shuts down, and carries no request. Nothing tells the connection to
// end. The server cuts the connection off in the end, and does not count the cut as a failure.
func TestLateConnection(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits as long as requests may take to finish")
	}
	certified := httptest.NewUnstartedServer(nil)
	certified.StartTLS()
	defer certified.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- serving.Serve(ctx, listener, http.NotFoundHandler(), serving.Config{TLS: &tls.Config{Certificates: certified.TLS.Certificates}})
	}()
	plain, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	defer plain.Close()
	answer, err := certified.Client().Get("https://" + listener.Addr().String())
	require.NoError(t, err) // a later client has an answer, so the first client has left the listener's queue
	require.NoError(t, answer.Body.Close())
	certified.Client().CloseIdleConnections()
	stop()
	eventlogtest.Eventually(t, "the server takes no more connections", func() bool {
		another, err := net.Dial("tcp", listener.Addr().String())
		if err == nil {
			another.Close()
		}
		return err != nil
	})
	trust := certified.Client().Transport.(*http.Transport).TLSClientConfig
	late := tls.Client(plain, &tls.Config{RootCAs: trust.RootCAs, ServerName: "example.com", NextProtos: []string{"h2"}})
	require.NoError(t, late.SetDeadline(time.Now().Add(time.Minute)))
	_, err = late.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")) // the preface and empty settings
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, late)
	require.NoError(t, err)
	require.NoError(t, <-served)
}

// TestGrace: a request that is in flight when the server stops has one second to finish. If a drain has ended the
// watches, which would use up that second, the request has more time. Without the additional time, a watch that was
// refused late was answered as if it had timed out, and its client listed again.
func TestGrace(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for longer than a second")
	}
	for _, test := range []struct {
		name   string
		drain  func(context.Context)
		status int
	}{{"no drain", nil, http.StatusGatewayTimeout}, {"drained", func(context.Context) {}, http.StatusOK}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			ctx, stop := context.WithCancel(t.Context())
			handler := func(w http.ResponseWriter, r *http.Request) {
				stop()
				select {
				case <-r.Context().Done():
					w.WriteHeader(http.StatusGatewayTimeout)
				case <-time.After(2 * time.Second):
				}
			}
			served := make(chan error, 1)
			go func() {
				served <- serving.Serve(ctx, listener, http.HandlerFunc(handler), serving.Config{Drain: test.drain})
			}()
			answer, err := http.Get("http://" + listener.Addr().String())
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
			require.Equal(t, test.status, answer.StatusCode)
			require.NoError(t, <-served)
		})
	}
}

// serve serves the handler over HTTPS until the test ends, and returns its URL and a client that trusts the server.
func serve(t *testing.T, handler http.HandlerFunc, c serving.Config) (url string, client *http.Client) {
	t.Helper()
	certified := httptest.NewUnstartedServer(nil)
	certified.EnableHTTP2 = true
	certified.StartTLS()
	t.Cleanup(certified.Close)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	c.TLS = &tls.Config{Certificates: certified.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}}
	served := make(chan error, 1)
	go func() { served <- serving.Serve(ctx, listener, handler, c) }()
	t.Cleanup(func() {
		certified.Client().CloseIdleConnections()
		stop()
		require.NoError(t, <-served)
	})
	return "https://" + listener.Addr().String(), certified.Client()
}

// TestSlowReader: a client that does not receive its answer is cut off after the deadline of its request.
func TestSlowReader(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for a slow reader")
	}
	for _, multiplexed := range []bool{false, true} {
		t.Run(fmt.Sprintf("multiplexed=%v", multiplexed), func(t *testing.T) {
			t.Parallel()
			ended := make(chan error, 1)
			url, client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				chunk := make([]byte, 64<<10)
				for {
					if _, err := w.Write(chunk); err != nil {
						ended <- err
						return
					}
				}
			}, serving.Config{RequestTimeout: time.Second})
			transport := client.Transport.(*http.Transport).Clone()
			transport.ForceAttemptHTTP2 = multiplexed
			if !multiplexed {
				transport.TLSClientConfig.NextProtos = nil
			}
			t.Cleanup(transport.CloseIdleConnections)
			response, err := (&http.Client{Transport: transport}).Get(url)
			require.NoError(t, err)
			defer response.Body.Close()
			require.Equal(t, multiplexed, response.ProtoMajor == 2)
			require.Error(t, <-ended)
		})
	}
}

// TestStreamsOfAConnection: an HTTP/2 client needs another connection for more than MaxStreams requests at once.
func TestStreamsOfAConnection(t *testing.T) {
	var mu sync.Mutex // guards the variables below
	by := map[string]int{}
	arrived, held := make(chan struct{}, 100), make(chan struct{})
	url, client := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		by[r.RemoteAddr]++
		mu.Unlock()
		arrived <- struct{}{}
		<-held
	}, serving.Config{MaxStreams: 10})
	var asked sync.WaitGroup
	for range 25 {
		asked.Go(func() {
			if response, err := client.Get(url); err == nil {
				_ = response.Body.Close()
			}
		})
	}
	for range 25 {
		<-arrived
	}
	close(held)
	asked.Wait()
	require.GreaterOrEqual(t, len(by), 3)
	for _, n := range by {
		require.LessOrEqual(t, n, 10)
	}
}
