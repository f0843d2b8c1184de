package e2e

import (
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
	"github.com/logplane/logplane/test/servers"
)

// doctor runs 'logplane doctor', and returns its exit code and its output.
func doctor(t *testing.T, flags ...string) (code int, said string) {
	t.Helper()
	p := product.Run(t, append([]string{"doctor"}, flags...)...)
	<-p.Exited
	return p.Cmd.ProcessState.ExitCode(), p.Output()
}

// TestDoctor: the doctor reports the checks that pass and each problem, and leaves nothing behind.
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
	require.Regexp(t, `(?m)^warn  +sync .*give --nats-monitoring`, said)
	require.Regexp(t, `(?m)^ok +bucket .*conditional writes hold`, said)
	require.Regexp(t, `(?m)^ok +versions .*sync what they acknowledge`, said)
	require.Regexp(t, `(?m)^ok +quorum +the log acknowledges an append .* than a round trip`, said)
	require.Regexp(t, `(?m)^ok +snapshot .*holds all of the log`, said)
	for _, job := range []string{"collect", "trim", "join", "compact"} {
		require.Regexp(t, `(?m)^ok +`+job+` `, said)
	}
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

	old := servers.Older(t, unsynced, "2.12.9")
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

// TestClockIsSetBack: if a cell's clock is ahead, the doctor notices, and an operator can set the clock back.
func TestClockIsSetBack(t *testing.T) {
	s := eventlogtest.Run(t, t.TempDir())
	folder := t.TempDir()
	where := product.Init(t, s.ClientURL(), folder)
	name := filepath.Join(folder, "logplane", "root")
	root, err := os.ReadFile(name)
	require.NoError(t, err)
	fields := map[int]cbor.RawMessage{} // docs/format.md: 12 bytes, and a map, in which the clock is key 5
	require.NoError(t, cbor.Unmarshal(root[12:], &fields))
	fields[5], err = cbor.Marshal(time.Now().Add(48 * time.Hour).UnixNano())
	require.NoError(t, err)
	encoding, err := cbor.CoreDetEncOptions().EncMode()
	require.NoError(t, err)
	body, err := encoding.Marshal(fields)
	require.NoError(t, err)
	table := crc32.MakeTable(crc32.Castagnoli)
	head := binary.LittleEndian.AppendUint32(root[:8:8], crc32.Update(crc32.Checksum(root[:8], table), table, body))
	require.NoError(t, os.WriteFile(name, append(head, body...), 0o600))

	code, said := doctor(t, where...)
	require.Equal(t, 1, code, said)
	require.Regexp(t, `(?m)^FAIL +clock +the cell's is 4\dh\S+ ahead`, said)
	clock := func(flags ...string) (int, string) {
		p := product.Run(t, slices.Concat([]string{"clock"}, where, flags)...)
		<-p.Exited
		return p.Cmd.ProcessState.ExitCode(), p.Output()
	}
	code, said = clock()
	require.Equal(t, 1, code, said)
	require.Contains(t, said, "give --yes")
	code, said = clock("--yes")
	require.Zero(t, code, said)
	require.Regexp(t, `set back by 4\dh`, said)
	code, said = clock("--yes")
	require.Zero(t, code, said)
	require.Contains(t, said, "is not ahead")
	code, said = doctor(t, where...)
	require.Zero(t, code, said)
}
