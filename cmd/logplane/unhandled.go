package main

import (
	"context"
	"log/slog"
	"strings"
)

// logUnhandled logs what upstream has nobody to tell. It takes the place of upstream's handlers, of which one sleeps: a
// request that meets an error must not wait for others that do.
func logUnhandled(ctx context.Context, err error, msg string, keysAndValues ...any) {
	level := slog.LevelError
	if clientGone(err) {
		level = slog.LevelDebug
	}
	slog.Default().Log(ctx, level, msg, append([]any{"error", err}, keysAndValues...)...)
}

// clientGone says whether a write failed because its client has gone away. The errors of HTTP/2 are not exported.
func clientGone(err error) bool {
	if err == nil {
		return false
	}
	for _, gone := range []string{"http2: stream closed", "client disconnected", "broken pipe", "connection reset by peer"} {
		if strings.Contains(err.Error(), gone) {
			return true
		}
	}
	return false
}
