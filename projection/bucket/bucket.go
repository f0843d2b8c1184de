// Package bucket is the interface of the object storage that the projection needs: a flat set of keys with conditional
// writes.
//
// One object, the root, is replaced. All others are created once, read, and finally deleted. The tests show that each
// kind of bucket never does the following:
//
//   - memory: return the bytes that it holds instead of a copy or, if it is strict, let the projection break a promise.
//   - filesystem: show a part of an object, or return from a write that a power failure could undo.
//   - s3: send a write twice, or send one without its condition.
//
// Probe detects a server that breaks the promises of Bucket. Such a server must not be used.
package bucket

import (
	"context"
	"errors"
	"time"
)

// Errors of a Bucket, matched with errors.Is. After any other error, the outcome of a write is unknown.
var (
	// ErrNotFound: no object has that key.
	ErrNotFound = errors.New("not found in the bucket")
	// ErrPrecondition: the object exists already (Create) or does not have the given ETag (Replace).
	ErrPrecondition = errors.New("the bucket's object is not the expected one")
)

// Attributes describe a listed object.
type Attributes struct {
	Key      string
	Size     int64
	Modified time.Time
}

// Bucket is a set of immutable objects and one mutable object. It is safe for concurrent use, also by many processes. A
// write that returns nil is durable, and every later read sees it (strong consistency). A Bucket does not retry writes,
// because only the caller knows what an unknown outcome means.
type Bucket interface {
	// Get returns the whole object and its ETag.
	Get(ctx context.Context, key string) (body []byte, etag string, err error)
	// GetRange returns length bytes from offset; a negative offset counts from the end. It returns fewer bytes if the
	// object ends earlier.
	GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error)
	// Create writes an object that must not exist yet, else it returns ErrPrecondition.
	Create(ctx context.Context, key string, body []byte) (etag string, err error)
	// Replace writes an object that must exist with this ETag, else it returns ErrPrecondition (ErrNotFound if the
	// object is gone).
	Replace(ctx context.Context, key string, body []byte, etag string) (newETag string, err error)
	// Copy makes an object with the content of another inside the bucket; ErrNotFound if that other object is missing.
	// The new key must never have been used: some buckets cannot refuse a taken key (ErrPrecondition). The copy may be
	// listed with the age of the original.
	Copy(ctx context.Context, from, to string) error
	// List yields the objects under a prefix, ascending by key, until yield fails.
	List(ctx context.Context, prefix string, yield func(Attributes) error) error
	// Delete removes an object. Deleting a missing object is not an error.
	Delete(ctx context.Context, key string) error
}

// Ensure makes sure that the bucket itself exists, if its kind needs that; opening a folder makes the folder. Ensure
// makes a missing bucket only if mayMake is set, and says whether it made one.
func Ensure(ctx context.Context, b Bucket, mayMake bool) (made bool, err error) {
	if missing, ok := b.(interface {
		Ensure(ctx context.Context, mayMake bool) (bool, error)
	}); ok {
		return missing.Ensure(ctx, mayMake)
	}
	return false, nil
}

// Reconnect makes the next request use a new connection, if the bucket's kind has connections. It is for a process that
// was frozen, whose connections may have died unnoticed. No request may be in progress.
func Reconnect(b Bucket) {
	if connected, ok := b.(interface{ Reconnect() }); ok {
		connected.Reconnect()
	}
}
