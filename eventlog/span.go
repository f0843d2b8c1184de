package eventlog

import (
	"context"

	"go.opentelemetry.io/otel/trace"
)

// span begins a part of the trace that ctx belongs to. Where there is none, it does nothing.
func span(ctx context.Context, name string) (context.Context, trace.Span) {
	return trace.SpanFromContext(ctx).TracerProvider().Tracer("github.com/logplane/logplane/eventlog").Start(ctx, name)
}
