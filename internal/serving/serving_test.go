package serving_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/serving"
)

// A connection of HTTP/2 that comes to be while the server shuts down, and on which nothing is asked, is not told to end:
// it is cut off in the end, and that is no failure of the process.
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
		served <- serving.Serve(ctx, listener, http.NotFoundHandler(), &tls.Config{Certificates: certified.TLS.Certificates}, serving.Streams{})
	}()
	plain, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	defer plain.Close()
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
