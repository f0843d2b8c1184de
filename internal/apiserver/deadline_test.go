package apiserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"github.com/logplane/logplane/test/product"
)

// A request whose client goes away does not count as a timeout, and is logged only for debugging.
func TestClientGoesAway(t *testing.T) {
	var logged product.Output
	logger := slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelWarn}))
	klog.SetSlogLogger(logger)
	t.Cleanup(func() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) })
	s := newServer(t, func(c *Config) { c.Logger = logger })
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`})

	began, served := make(chan struct{}), make(chan struct{})
	listener := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(served)
		close(began)
		s.ServeHTTP(w, r)
	}))
	defer listener.Close()
	for _, sent := range []request{
		{method: "GET", path: configMaps + "?resourceVersion=1000"}, // waits for its revision
		{method: "GET", path: configMaps + "/x?resourceVersion=1000"},
	} {
		began, served = make(chan struct{}), make(chan struct{})
		ctx, leave := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, sent.method, listener.URL+sent.path, nil)
		require.NoError(t, err)
		go func() {
			<-began
			leave()
		}()
		_, err = http.DefaultClient.Do(r)
		require.ErrorIs(t, err, context.Canceled)
		<-served
	}
	require.Empty(t, logged.String())

}

// TestSlowReaderOfAList: a client that does not read its list is cut off soon after the deadline that the client asked
// for. Otherwise the request would be served for as long as the connection lasts.
func TestSlowReaderOfAList(t *testing.T) {
	s := newServer(t)
	for _, name := range []string{"x", "y"} { // more than the buffers hold
		s.must(t, 201, request{method: "POST", path: configMaps, body: fmt.Sprintf(`{"metadata":{"name":%q},"data":{"a":%q}}`, name, strings.Repeat("x", 900_000))})
	}
	for _, multiplexed := range []bool{false, true} {
		t.Run(fmt.Sprintf("multiplexed=%v", multiplexed), func(t *testing.T) {
			served := make(chan struct{})
			listener := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer close(served)
				s.ServeHTTP(w, r)
			}))
			listener.Config.ConnState = func(c net.Conn, state http.ConnState) {
				if encrypted, ok := c.(*tls.Conn); ok && state == http.StateNew {
					_ = encrypted.NetConn().(*net.TCPConn).SetWriteBuffer(64 << 10)
				}
			}
			listener.EnableHTTP2 = multiplexed
			listener.StartTLS()
			defer listener.Close()
			transport := listener.Client().Transport.(*http.Transport)
			transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
				if err == nil {
					err = conn.(*net.TCPConn).SetReadBuffer(64 << 10)
				}
				return conn, err
			}
			transport.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10}
			answer, err := listener.Client().Get(listener.URL + configMaps + "?timeout=1s")
			require.NoError(t, err)
			defer func() { _ = answer.Body.Close() }()
			require.Equal(t, 200, answer.StatusCode)
			require.Equal(t, multiplexed, answer.ProtoMajor == 2)
			<-served
			_, err = io.Copy(io.Discard, answer.Body)
			require.Error(t, err, "a part of the list")
		})
	}
}
