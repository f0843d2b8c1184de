package bucket

import (
	"context"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

var requests = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "logplane_bucket_requests_total",
	Help: "Requests to the bucket by kind, failed ones included. A list counts once, whatever its pages.",
}, []string{"kind"})

// Collectors are this package's metrics, for a process to register.
func Collectors() []prometheus.Collector { return []prometheus.Collector{requests} }

// Counts are requests made through one Counted, by kind, failed ones included.
type Counts struct {
	Get, GetRange, Create, Replace, List, Delete int64
}

// Counted is a Bucket that counts the requests made through it, for this instance and for the process's metrics.
type Counted struct {
	Bucket
	get, getRange, create, replace, list, delete atomic.Int64
}

// Count wraps a bucket.
func Count(b Bucket) *Counted { return &Counted{Bucket: b} }

// Counts of this instance so far.
func (c *Counted) Counts() Counts {
	return Counts{
		Get: c.get.Load(), GetRange: c.getRange.Load(), Create: c.create.Load(),
		Replace: c.replace.Load(), List: c.list.Load(), Delete: c.delete.Load(),
	}
}

// Get implements Bucket.
func (c *Counted) Get(ctx context.Context, key string) ([]byte, string, error) {
	count(&c.get, "get")
	return c.Bucket.Get(ctx, key)
}

// GetRange implements Bucket.
func (c *Counted) GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	count(&c.getRange, "get_range")
	return c.Bucket.GetRange(ctx, key, offset, length)
}

// Create implements Bucket.
func (c *Counted) Create(ctx context.Context, key string, body []byte) (string, error) {
	count(&c.create, "create")
	return c.Bucket.Create(ctx, key, body)
}

// Replace implements Bucket.
func (c *Counted) Replace(ctx context.Context, key string, body []byte, etag string) (string, error) {
	count(&c.replace, "replace")
	return c.Bucket.Replace(ctx, key, body, etag)
}

// List implements Bucket.
func (c *Counted) List(ctx context.Context, prefix string, yield func(Attributes) error) error {
	count(&c.list, "list")
	return c.Bucket.List(ctx, prefix, yield)
}

// Delete implements Bucket.
func (c *Counted) Delete(ctx context.Context, key string) error {
	count(&c.delete, "delete")
	return c.Bucket.Delete(ctx, key)
}

// Ensure makes what it wraps.
func (c *Counted) Ensure(ctx context.Context) error { return Ensure(ctx, c.Bucket) }

func count(of *atomic.Int64, kind string) {
	of.Add(1)
	requests.WithLabelValues(kind).Inc()
}
