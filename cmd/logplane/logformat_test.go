package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"log/slog"
	"os"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"github.com/logplane/logplane/cmd/logplane/values"
)

// logged returns the lines of a log in JSON.
func logged(t *testing.T, said string) (lines []map[string]any) {
	t.Helper()
	for line := range strings.Lines(said) {
		require.False(t, strings.ContainsFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return !unicode.IsPrint(r) }), "%q", line)
		var read map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &read), line)
		require.Contains(t, read, "time")
		lines = append(lines, read)
	}
	return lines
}

// TestLogFormat: with --log-format json, our lines and those of upstream's and Go's libraries are objects of JSON that
// do a terminal no harm.
func TestLogFormat(t *testing.T) {
	var said bytes.Buffer
	logTo(&said, slog.LevelInfo, values.JSON)
	t.Cleanup(func() { logTo(os.Stderr, slog.LevelInfo, values.Text) })
	const ugly = "a\u009b31m\nb\u202e"
	slog.Info("ours", "name", ugly)
	klog.ErrorS(errors.New(ugly), "of klog", "pod", klog.KRef("default", "web"))
	utilruntime.HandleErrorWithContext(t.Context(), errors.New(ugly), "unhandled")
	log.Print("of Go")
	lines := logged(t, said.String())
	require.Len(t, lines, 4)
	for i, msg := range []string{"ours", "of klog", "unhandled", "of Go"} {
		require.Equal(t, msg, lines[i]["msg"])
	}
	require.Equal(t, ugly, lines[0]["name"])
	require.Equal(t, "ERROR", lines[1]["level"])
	require.Equal(t, ugly, lines[1]["err"])
	require.Equal(t, ugly, lines[2]["error"])
}

// TestLogFormatOfAProcess: a process logs everything in the format of its flag, from its start to the error that ends
// it.
func TestLogFormatOfAProcess(t *testing.T) {
	t.Setenv("LOGPLANE_LOG_FORMAT", "json")
	ended, end := context.WithCancel(t.Context())
	end()
	var said bytes.Buffer
	require.Zero(t, run(ended, []string{"dev", "--in-memory", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--log-level", "debug"}, io.Discard, &said))
	require.NotEmpty(t, logged(t, said.String()))

	said.Reset()
	require.Equal(t, 1, run(t.Context(), []string{"front", "--api", "https://a"}, io.Discard, &said))
	lines := logged(t, said.String())
	require.Equal(t, "ERROR", lines[len(lines)-1]["level"])
	require.Contains(t, lines[len(lines)-1]["msg"], "--watcher is missing")
}
