package eventlog

import (
	"context"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// span begins a span of the trace that ctx belongs to. Without a trace it does nothing.
func span(ctx context.Context, name string) (context.Context, trace.Span) {
	return trace.SpanFromContext(ctx).TracerProvider().Tracer("github.com/logplane/logplane/eventlog").Start(ctx, name)
}

// mark makes the events carry the trace that ctx belongs to, if somebody records that trace.
func mark(ctx context.Context, msgs []*nats.Msg) {
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	for _, msg := range msgs {
		msg.Header[headerTrace] = []string{carrier["traceparent"]}
	}
}

// Traced returns ctx in the trace of the request that wrote the event. It returns false if nobody traced that request.
func (e Event) Traced(ctx context.Context) (context.Context, bool) {
	if e.Trace == "" {
		return ctx, false
	}
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": e.Trace})
	return ctx, trace.SpanContextFromContext(ctx).IsSampled()
}
