package main

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// TestInterrupted: a command that is interrupted before its end must not look as if it had succeeded, because an
// operator's next step depends on the result. A command that serves exits with 0 when it is stopped.
func TestInterrupted(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	for _, args := range [][]string{{"fence", "--yes"}, {"inspect", "fsck"}, {"inspect", "head"}, {"init"}} {
		var said bytes.Buffer
		require.Equal(t, 1, run(ctx, append(args, "--data", t.TempDir()), io.Discard, &said), args)
		require.NotEmpty(t, said.String(), args)
	}
	where := []string{"--nats", eventlogtest.Start(t).ConnectedUrl(), "--bucket", "file://" + t.TempDir()}
	for _, command := range []string{"lifecycle", "projector"} {
		require.Equal(t, 1, run(ctx, append([]string{command, "--once"}, where...), io.Discard, io.Discard), command)
		require.Zero(t, run(ctx, append([]string{command}, where...), io.Discard, io.Discard), command)
	}
	require.Zero(t, run(ctx, []string{"dev", "--in-memory", "--listen", "127.0.0.1:0"}, io.Discard, io.Discard))
}

// TestInterruptedStart: most of the start of 'dev' is writes. A write that the interruption cuts off is not a fault,
// and nothing is printed about that write.
func TestInterruptedStart(t *testing.T) {
	for step := range 30 {
		ctx, interrupt := context.WithCancel(t.Context())
		time.AfterFunc(time.Duration(step)*5*time.Millisecond, interrupt)
		var said bytes.Buffer
		require.Zero(t, run(ctx, []string{"dev", "--data", t.TempDir(), "--log-level", "error", "--listen", "127.0.0.1:0"}, io.Discard, &said), said.String())
		require.Empty(t, said.String())
	}
}
