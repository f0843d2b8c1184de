// Package bucket is what the projection asks of object storage: a flat set of keys with conditional writes.
//
// One object, the root, is replaced; all others are created once, read, and at last deleted. What each bucket must
// never do, and buckettest shows that it does not:
//
//   - memory: hand out the bytes it holds. A strict one must not let a broken promise of the projection pass.
//   - filesystem: show a part of an object, or return from a write that a power failure could undo.
//   - s3: send a write twice, or one without its condition.
//
// A server that does not do what Bucket promises is found out by Probe, and must not be used.
package bucket

import (
	"context"
	"errors"
	"time"
)

// Errors of a Bucket, matched with errors.Is. Any other error is an unknown outcome for a write.
var (
	// ErrNotFound: no object has that key.
	ErrNotFound = errors.New("not found in the bucket")
	// ErrPrecondition: the object exists already (Create) or is not the one named (Replace).
	ErrPrecondition = errors.New("the bucket's object is not the expected one")
)

// Attributes describe a listed object.
type Attributes struct {
	Key      string
	Size     int64
	Modified time.Time
}

// Bucket is a set of immutable objects and one mutable one. It is safe for concurrent use, by many processes at once; a
// write that returns nil is durable and seen by every later read (strong consistency). Writes are not retried inside:
// the caller owns the meaning of an unknown outcome.
type Bucket interface {
	// Get returns the whole object and its ETag.
	Get(ctx context.Context, key string) (body []byte, etag string, err error)
	// GetRange returns length bytes from offset; a negative offset counts from the end. Fewer bytes are returned where
	// the object ends earlier.
	GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error)
	// Create writes an object that must not exist yet, else ErrPrecondition.
	Create(ctx context.Context, key string, body []byte) (etag string, err error)
	// Replace writes an object that must exist with this ETag, else ErrPrecondition (ErrNotFound when it is gone).
	Replace(ctx context.Context, key string, body []byte, etag string) (newETag string, err error)
	// Copy makes an object with the content of another, without sending it to and fro; ErrNotFound if that is missing.
	// Neither is harmed when the other is deleted. The new key must be one that was never used: some buckets cannot
	// refuse a taken one (ErrPrecondition). The copy may be listed as being as old as the original.
	Copy(ctx context.Context, from, to string) error
	// List yields the objects under a prefix, ascending by key, until yield fails.
	List(ctx context.Context, prefix string, yield func(Attributes) error) error
	// Delete removes an object; a missing one is no error.
	Delete(ctx context.Context, key string) error
}

// Ensure finds the bucket itself, if its kind needs that: a folder makes itself. It makes one that is missing only if
// it may, and says whether it did.
func Ensure(ctx context.Context, b Bucket, mayMake bool) (made bool, err error) {
	if missing, ok := b.(interface {
		Ensure(ctx context.Context, mayMake bool) (bool, error)
	}); ok {
		return missing.Ensure(ctx, mayMake)
	}
	return false, nil
}

// Reconnect lets the next request of a bucket make a connection of its own, if its kind has connections. It is for a
// process that was frozen: those that it had may have died without a sign. No request may be under way.
func Reconnect(b Bucket) {
	if connected, ok := b.(interface{ Reconnect() }); ok {
		connected.Reconnect()
	}
}
