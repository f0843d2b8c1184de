package serving

import (
	"context"
	"log/slog"
	"time"
)

// lastSpans bounds how long a stopping process waits for a collector.
const lastSpans = 3 * time.Second

// StopTracing sends the remaining spans. The provider must not be used afterwards.
func StopTracing(provider interface{ Shutdown(context.Context) error }) {
	ctx, cancel := context.WithTimeout(context.Background(), lastSpans)
	defer cancel()
	if err := provider.Shutdown(ctx); err != nil {
		slog.Warn("the last spans did not reach the collector", "error", err)
	}
}
