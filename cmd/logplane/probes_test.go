package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// TestProbes: a process that serves no API answers probes while it works, and is not ready once it has lost the log.
func TestProbes(t *testing.T) {
	registerMetrics()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	conn := eventlogtest.Connect(t, eventlogtest.Run(t, t.TempDir()))
	p := &probes{listen: address}
	ctx, stop := context.WithCancel(t.Context())
	get := func(path string) (int, string) {
		answer, err := http.Get("http://" + address + path)
		require.NoError(t, err)
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		return answer.StatusCode, string(body)
	}
	err = p.beside(ctx, (&cell{log: eventlog.Config{Conn: conn}}).connected, func(ctx context.Context) error {
		defer stop() // a failed assertion must end the serving, too
		code, body := get("/metrics")
		require.Equal(t, http.StatusOK, code)
		require.Contains(t, body, "logplane_")
		for _, path := range []string{"/livez", "/readyz"} {
			code, _ = get(path)
			require.Equal(t, http.StatusOK, code, path)
		}
		conn.Close()
		eventlogtest.Eventually(t, "the process is not ready", func() bool { // one check is good for a second
			code, body = get("/readyz")
			return code == http.StatusServiceUnavailable
		})
		require.Equal(t, "not ready: the process's log says why\n", body)
		code, _ = get("/livez")
		require.Equal(t, http.StatusOK, code)
		stop()
		return ctx.Err()
	})
	require.ErrorIs(t, err, context.Canceled)
}
