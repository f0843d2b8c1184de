package buckettest

import (
	"context"
	"sync/atomic"

	"github.com/logplane/logplane/projection/bucket"
)

// Counted counts what is read of a bucket, lists aside.
type Counted struct {
	bucket.Bucket
	Reads atomic.Int64
}

// Get implements bucket.Bucket.
func (c *Counted) Get(ctx context.Context, key string) ([]byte, string, error) {
	c.Reads.Add(1)
	return c.Bucket.Get(ctx, key)
}

// GetRange implements bucket.Bucket.
func (c *Counted) GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	c.Reads.Add(1)
	return c.Bucket.GetRange(ctx, key, offset, length)
}
