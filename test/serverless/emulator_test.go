package serverless

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
	"github.com/logplane/logplane/test/serverless/emulator"
)

// TestReaped: the platform ends a sandbox that was idle for long, and the next request starts another sandbox.
func TestReaped(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	f := emulator.New(emulator.Config{Program: product.Logplane(t), Handler: "api", Most: 1, Environment: c.environment, Idle: 10 * time.Millisecond})
	t.Cleanup(f.Reap)
	url := serve(t, emulator.Front{Function: f})
	for _, name := range []string{"one", "two"} {
		code, said, err := c.post(url, name)
		require.NoError(t, err)
		require.Equal(t, http.StatusCreated, code, "%s", said)
		eventlogtest.Eventually(t, "no sandbox runs", func() bool { return f.Started() == 0 })
	}
	reports := f.Reports()
	require.Len(t, reports, 2)
	require.Positive(t, reports[1].Start, "it had to start")
}

// TestLateInvocation: on a strict platform, an invocation that runs into the timeout loses its sandbox, but another
// sandbox may then start in place of the lost one.
func TestLateInvocation(t *testing.T) {
	t.Parallel()
	c, p := newCell(t), newPassage(t)
	environment := append(c.environment, "LOGPLANE_NATS=nats://"+p.to(t, strings.TrimPrefix(c.nats, "nats://")))
	f := emulator.New(emulator.Config{Program: product.Logplane(t), Handler: "api", Most: 1, Environment: environment, Timeout: 5 * time.Second, Strict: true})
	t.Cleanup(f.Reap)
	url := serve(t, emulator.Front{Function: f})
	code, said, err := c.post(url, "before")
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, code, "%s", said)
	process := only(t, f)
	p.arm(1, passed, func() { process.Freeze(true) })
	code, said, err = c.post(url, "amid")
	require.NoError(t, err)
	require.Equal(t, http.StatusBadGateway, code, "%s", said)
	p.open()
	code, said, err = c.post(url, "after")
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, code, "%s", said)
	require.NotSame(t, process, only(t, f))
}
