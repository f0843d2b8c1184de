package serve

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/cmd/logplane/cells"
	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/kubestore"
)

// TestProbes: a process that serves no API answers probes while it works, and is not ready once it has lost the log.
func TestProbes(t *testing.T) {
	RegisterMetrics()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	conn := eventlogtest.Connect(t, eventlogtest.Run(t, t.TempDir()))
	log := eventlogtest.Open(t, eventlog.Config{Conn: conn})
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
	err = p.alongside(ctx, (&cells.Cell{Cell: kubestore.Cell{Log: log}}).Ready, func(ctx context.Context) error {
		defer stop() // a failed assertion must end the serving, too
		code, body := get("/metrics")
		require.Equal(t, http.StatusOK, code)
		require.Contains(t, body, "logplane_")
		for _, path := range []string{"/livez", "/readyz"} {
			code, _ = get(path)
			require.Equal(t, http.StatusOK, code, path)
		}
		conn.Close()
		eventlogtest.Eventually(t, "the process is not ready", func() bool { // a result is kept for a second
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

// TestNotReadyWhileTheLogIsStuck: a process is not ready while the log's servers acknowledge nothing, even if the
// process is connected to the servers' leader, and the leader says that all is well. This holds also for a process that
// trusts the leader for reads.
func TestNotReadyWhileTheLogIsStuck(t *testing.T) {
	c := eventlogtest.Cluster(t)
	leaderReads := func(c *eventlog.Config) { c.LeaderReads, c.Timeout = true, time.Second }
	c.Log(0)
	leader := c.Leader()
	ready := (&cells.Cell{Cell: kubestore.Cell{Log: c.Log(leader, leaderReads)}}).Ready
	require.NoError(t, ready(t.Context()))
	c.Stall(leader)
	require.ErrorContains(t, ready(t.Context()), "answers, and no server acknowledges anything")
	c.Resume(leader)
	eventlogtest.Eventually(t, "the process is ready again", func() bool { return ready(t.Context()) == nil })
}
