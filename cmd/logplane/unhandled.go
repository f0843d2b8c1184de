package main

import (
	"context"
	"log/slog"
	"slices"
	"strings"
)

// logUnhandled logs errors that upstream's code can return to no caller. It replaces upstream's handlers, one of which
// sleeps: a request with an error must not wait for other requests with errors.
func logUnhandled(ctx context.Context, err error, msg string, keysAndValues ...any) {
	level := slog.LevelError
	if clientGone(err) {
		level = slog.LevelDebug
	}
	slog.Default().Log(ctx, level, msg, append([]any{"error", err}, keysAndValues...)...)
}

// clientGone says whether a write failed because its client has gone away. The errors of HTTP/2 are not exported.
func clientGone(err error) bool {
	says := func(text string) bool { return strings.Contains(err.Error(), text) }
	return err != nil && slices.ContainsFunc([]string{"http2: stream closed", "client disconnected", "broken pipe", "connection reset by peer"}, says)
}

// forDebugging has messages of upstream that tell an operator nothing.
var forDebugging = map[string]bool{
	"Couldn't parse request": true, // an ERROR upstream, though the client is wrong and its answer says so
	"allocated clusterIPs":   true, // an INFO upstream, for every Service
}

// upstreamLines passes on the log lines of the Kubernetes libraries, each at the level that it deserves.
type upstreamLines struct{ slog.Handler }

// Handle implements slog.Handler. It checks the level again, because klog has asked only for the line's own level.
func (h upstreamLines) Handle(ctx context.Context, line slog.Record) error {
	if forDebugging[line.Message] {
		line.Level = slog.LevelDebug
		if !h.Enabled(ctx, line.Level) {
			return nil
		}
	}
	return h.Handler.Handle(ctx, line)
}

// WithAttrs implements slog.Handler.
func (h upstreamLines) WithAttrs(attrs []slog.Attr) slog.Handler {
	return upstreamLines{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h upstreamLines) WithGroup(name string) slog.Handler {
	return upstreamLines{h.Handler.WithGroup(name)}
}
