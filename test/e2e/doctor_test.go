package e2e

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

// doctor runs 'logplane doctor' and returns its exit code and what it said.
func doctor(t *testing.T, flags ...string) (code int, said string) {
	t.Helper()
	p := product.Run(t, append([]string{"doctor"}, flags...)...)
	<-p.Exited
	return p.Cmd.ProcessState.ExitCode(), p.Output()
}

// The doctor sees what is well, and each thing that is not, and leaves nothing.
func TestDoctor(t *testing.T) {
	monitored := func(change func(*server.Options)) (*server.Server, []string) {
		s := eventlogtest.Run(t, t.TempDir(), func(o *server.Options) {
			o.HTTPHost, o.HTTPPort = "127.0.0.1", -1
			change(o)
		})
		return s, []string{"--nats-monitoring", "http://" + s.MonitorAddr().String()}
	}
	s, monitoring := monitored(func(o *server.Options) { o.SyncAlways = true })
	where := product.Init(t, s.ClientURL(), t.TempDir())

	code, said := doctor(t, where...)
	require.Zero(t, code, said)
	require.Regexp(t, `(?m)^(ok|warn)  +sync .*round trip`, said)
	require.Regexp(t, `(?m)^ok +bucket .*conditional writes hold`, said)
	require.Regexp(t, `(?m)^ok +versions .*sync what they acknowledge`, said)
	require.Regexp(t, `(?m)^ok +quorum +the log acknowledges`, said)
	require.Regexp(t, `(?m)^ok +snapshot .*holds all of the log`, said)
	streams, err := s.JszAccount(&server.JSzOptions{Account: server.DEFAULT_GLOBAL_ACCOUNT, Streams: true})
	require.NoError(t, err)
	require.Len(t, streams.Streams, 1, "a stream stays")

	projector := product.Run(t, append([]string{"projector"}, where...)...)
	product.Run(t, append([]string{"lifecycle"}, where...)...)
	eventlogtest.Eventually(t, "both are connected", func() bool { return s.NumClients() == 2 })
	code, said = doctor(t, slices.Concat(where, monitoring)...)
	require.Zero(t, code, said)
	require.Regexp(t, `(?m)^ok +sync .*before it is acknowledged`, said)
	require.Regexp(t, `(?m)^ok +processes .*1 lifecycle \S+, 1 projector \S+`, said)
	projector.Kill()
	eventlogtest.Eventually(t, "the projector is gone", func() bool { return s.NumClients() == 1 })
	code, said = doctor(t, slices.Concat(where, monitoring)...)
	require.Zero(t, code, said)
	require.Regexp(t, `(?m)^warn +processes +there is no projector`, said)

	unsynced, monitoring := monitored(func(o *server.Options) { o.SyncAlways, o.SyncInterval = false, 2*time.Minute })
	where = product.Init(t, unsynced.ClientURL(), t.TempDir())
	code, said = doctor(t, slices.Concat(where, monitoring)...)
	require.Equal(t, 1, code, said)
	require.Regexp(t, `(?m)^FAIL +sync .*every 2m0s.*sync_interval: always`, said)

	old := eventlogtest.Older(t, unsynced, "2.12.9")
	code, said = doctor(t, "--nats", old, "--bucket", where[3])
	require.Equal(t, 1, code, said)
	require.Regexp(t, `(?m)^FAIL +versions .*nats-server "2.12.9" may lose what it has acknowledged.*upgrade it to`, said)

	empty := t.TempDir()
	code, said = doctor(t, "--nats", s.ClientURL(), "--bucket", "file://"+empty)
	require.Equal(t, 1, code, said)
	require.Regexp(t, `(?m)^FAIL +bucket +.* has no root below`, said)
	require.NoDirExists(t, filepath.Join(empty, "logplane"), "the bucket was written")

	code, said = doctor(t, "--nats", "nats://127.0.0.1:1", "--bucket", where[3])
	require.Equal(t, 1, code, said)
	require.Regexp(t, `(?m)^FAIL +log `, said)
	require.Regexp(t, `(?m)^ok +bucket `, said)
}
