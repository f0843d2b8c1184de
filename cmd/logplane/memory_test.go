package main

import (
	"bytes"
	"context"
	"io"
	"math"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// TestMemoryLimitIsSaid: at its start a process logs the origin and the size of its memory limit. Commands that people
// run in a terminal log the limit only at the level debug.
func TestMemoryLimitIsSaid(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	where := []string{"--nats", eventlogtest.Start(t).ConnectedUrl(), "--bucket", "file://" + t.TempDir(), "--memory-mib", "256"}
	said := func(args ...string) string {
		var said bytes.Buffer
		require.Zero(t, run(t.Context(), args, io.Discard, &said), said.String())
		return said.String()
	}
	const limited = "from=--memory-mib limitMiB=256 heapMiB=176 cachesMiB=32\n"
	require.NotContains(t, said(append([]string{"init"}, where...)...), limited)
	require.Contains(t, said(append([]string{"projector", "--once"}, where...)...), limited)
	require.NotContains(t, said("inspect", "head", where[0], where[1], where[2], where[3]), "memory")

	t.Setenv("GOMEMLIMIT", "off")
	debug.SetMemoryLimit(math.MaxInt64)
	require.Contains(t, said(append([]string{"projector", "--once"}, where...)...), `msg="no memory limit is set" cachesMiB=96`)

	ended, end := context.WithCancel(t.Context())
	end()
	for level, says := range map[string]bool{"info": false, "debug": true} {
		var said bytes.Buffer
		run(ended, []string{"dev", "--in-memory", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--log-level", level}, io.Discard, &said)
		require.Equal(t, says, bytes.Contains(said.Bytes(), []byte("cachesMiB=32")), said.String())
	}
}
