package main

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// TestClientsThatLeaveAreNoErrors: what upstream cannot tell a client that has left is not logged as a fault.
func TestClientsThatLeaveAreNoErrors(t *testing.T) {
	var said bytes.Buffer
	logTo(&said, slog.LevelInfo)
	t.Cleanup(func() { logTo(os.Stderr, slog.LevelInfo) })
	utilruntime.HandleErrorWithContext(t.Context(), errors.New("http2: stream closed"), "Failed to encode watch event")
	require.Empty(t, said.String())
	utilruntime.HandleErrorWithContext(t.Context(), errors.New("no such kind"), "Failed to encode watch event")
	require.Contains(t, said.String(), `level=ERROR msg="Failed to encode watch event" error="no such kind"`)
}
