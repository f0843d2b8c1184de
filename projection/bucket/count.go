package bucket

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
)

var requests = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "logplane_bucket_requests_total",
	Help: "Requests to the bucket by kind, failed ones included. A list counts once, whatever its pages.",
}, []string{"kind"})

// Collectors are this package's metrics, for a process to register.
func Collectors() []prometheus.Collector { return []prometheus.Collector{requests} }

// Counts are the requests made through one Counted, by kind, failed ones included.
type Counts struct {
	Get, GetRange, Create, Replace, Copy, List, Delete int64
}

// Counted is a Bucket that counts the requests made through it, for this instance and for the process's metrics.
type Counted struct {
	Bucket
	mu     sync.Mutex // guards counts
	counts Counts
}

// Count wraps a bucket.
func Count(b Bucket) *Counted { return &Counted{Bucket: b} }

// Counts are the counts of this instance so far.
func (c *Counted) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts
}

// Get implements Bucket.
func (c *Counted) Get(ctx context.Context, key string) ([]byte, string, error) {
	ctx, span := c.count(ctx, &c.counts.Get, "get")
	defer span.End()
	return c.Bucket.Get(ctx, key)
}

// GetRange implements Bucket.
func (c *Counted) GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	ctx, span := c.count(ctx, &c.counts.GetRange, "get_range")
	defer span.End()
	return c.Bucket.GetRange(ctx, key, offset, length)
}

// Create implements Bucket.
func (c *Counted) Create(ctx context.Context, key string, body []byte) (string, error) {
	ctx, span := c.count(ctx, &c.counts.Create, "create")
	defer span.End()
	return c.Bucket.Create(ctx, key, body)
}

// Replace implements Bucket.
func (c *Counted) Replace(ctx context.Context, key string, body []byte, etag string) (string, error) {
	ctx, span := c.count(ctx, &c.counts.Replace, "replace")
	defer span.End()
	return c.Bucket.Replace(ctx, key, body, etag)
}

// Copy implements Bucket.
func (c *Counted) Copy(ctx context.Context, from, to string) error {
	ctx, span := c.count(ctx, &c.counts.Copy, "copy")
	defer span.End()
	return c.Bucket.Copy(ctx, from, to)
}

// List implements Bucket.
func (c *Counted) List(ctx context.Context, prefix string, yield func(Attributes) error) error {
	ctx, span := c.count(ctx, &c.counts.List, "list")
	defer span.End()
	return c.Bucket.List(ctx, prefix, yield)
}

// Delete implements Bucket.
func (c *Counted) Delete(ctx context.Context, key string) error {
	ctx, span := c.count(ctx, &c.counts.Delete, "delete")
	defer span.End()
	return c.Bucket.Delete(ctx, key)
}

// Ensure finds or makes the wrapped bucket.
func (c *Counted) Ensure(ctx context.Context, mayMake bool) (bool, error) {
	return Ensure(ctx, c.Bucket, mayMake)
}

// Reconnect reconnects the wrapped bucket.
func (c *Counted) Reconnect() { Reconnect(c.Bucket) }

// count counts a request. Its span is part of ctx's trace, if ctx has a trace.
func (c *Counted) count(ctx context.Context, of *int64, kind string) (context.Context, trace.Span) {
	c.mu.Lock()
	*of++
	c.mu.Unlock()
	requests.WithLabelValues(kind).Inc()
	tracer := trace.SpanFromContext(ctx).TracerProvider().Tracer("github.com/logplane/logplane/projection/bucket")
	return tracer.Start(ctx, "bucket "+kind)
}
