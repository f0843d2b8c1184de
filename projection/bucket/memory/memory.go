// Package memory is a bucket in this process's memory, for tests. It can be strict about the projection's promises to
// object storage, and inject faults into any request.
package memory

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/logplane/logplane/projection/bucket"
)

// ErrInjected is the error of a request with an injected fault. The outcome of such a write is unknown.
var ErrInjected = errors.New("injected fault")

// Op names a method of bucket.Bucket.
type Op string

// The methods of bucket.Bucket.
const (
	OpGet      Op = "get"
	OpGetRange Op = "get_range"
	OpCreate   Op = "create"
	OpReplace  Op = "replace"
	OpCopy     Op = "copy"
	OpList     Op = "list"
	OpDelete   Op = "delete"
)

// Fault is the outcome of a request.
type Fault int

const (
	// Works: the request is served normally.
	Works Fault = iota
	// Fails: the request returns ErrInjected, and nothing was written.
	Fails
	// FailsButPersisted: the write happens if its precondition holds, but the caller gets ErrInjected. A read just
	// fails.
	FailsButPersisted
)

// Bucket is a bucket.Bucket. Objects are copied in and out, so no caller shares bytes with it. ETags are hashes of the
// content, as on many servers: an object that is changed and changed back has its old ETag again.
type Bucket struct {
	failer failer // nil: not strict

	mu      sync.Mutex // guards the fields below
	fault   func(op Op, key string) Fault
	objects map[string]object
	deleted map[string]bool // keys that were deleted and not created again
}

// failer is the part of a testing.TB that a strict bucket needs.
type failer interface {
	Helper()
	Errorf(format string, args ...any)
}

type object struct {
	body     []byte
	etag     string
	modified time.Time
}

var _ bucket.Bucket = (*Bucket)(nil)

// New returns an empty bucket.
func New() *Bucket { return Strict(nil) }

// Strict returns an empty bucket that fails the test if the projection breaks a promise. The projection must never
// replace an object other than one named 'root', delete a root, create a different object under a taken key, or read a
// deleted object.
func Strict(t failer) *Bucket {
	return &Bucket{failer: t, objects: map[string]object{}, deleted: map[string]bool{}}
}

// Inject makes the bucket call hook before every request; the hook decides the request's Fault. A nil hook ends the
// injection. Many goroutines may call the hook, one at a time. The hook must not use the bucket.
func (b *Bucket) Inject(hook func(op Op, key string) Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fault = hook
}

// Get implements bucket.Bucket.
func (b *Bucket) Get(ctx context.Context, key string) ([]byte, string, error) {
	o, err := b.do(ctx, OpGet, key, func() (object, error) { return b.read(key) })
	return bytes.Clone(o.body), o.etag, err
}

// GetRange implements bucket.Bucket.
func (b *Bucket) GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	o, err := b.do(ctx, OpGetRange, key, func() (object, error) { return b.read(key) })
	from, to := bucket.Span(int64(len(o.body)), offset, length)
	return bytes.Clone(o.body[from:to]), err
}

// Create implements bucket.Bucket.
func (b *Bucket) Create(ctx context.Context, key string, body []byte) (string, error) {
	o, err := b.do(ctx, OpCreate, key, func() (object, error) {
		o, taken := b.objects[key]
		if taken {
			if !mutable(key) && !bytes.Equal(o.body, body) {
				b.forbid("create of %s with other content than it has", key)
			}
			return object{}, bucket.ErrPrecondition
		}
		return b.write(key, body), nil
	})
	return o.etag, err
}

// Replace implements bucket.Bucket.
func (b *Bucket) Replace(ctx context.Context, key string, body []byte, old string) (string, error) {
	o, err := b.do(ctx, OpReplace, key, func() (object, error) {
		if !mutable(key) {
			b.forbid("replacement of the immutable %s", key)
		}
		o, exists := b.objects[key]
		if !exists {
			return object{}, bucket.ErrNotFound
		}
		if o.etag != old {
			return object{}, bucket.ErrPrecondition
		}
		return b.write(key, body), nil
	})
	return o.etag, err
}

// Copy implements bucket.Bucket.
func (b *Bucket) Copy(ctx context.Context, from, to string) error {
	if err := bucket.CheckKey(from); err != nil {
		return err
	}
	_, err := b.do(ctx, OpCopy, to, func() (object, error) {
		o, err := b.read(from)
		if err != nil {
			return object{}, err
		}
		if _, taken := b.objects[to]; taken {
			b.forbid("copy of %s to the taken %s", from, to)
			return object{}, bucket.ErrPrecondition
		}
		return b.write(to, o.body), nil
	})
	return err
}

// List implements bucket.Bucket.
func (b *Bucket) List(ctx context.Context, prefix string, yield func(bucket.Attributes) error) error {
	var listed []bucket.Attributes
	_, err := b.do(ctx, OpList, prefix, func() (object, error) {
		for _, key := range slices.Sorted(maps.Keys(b.objects)) {
			o := b.objects[key]
			if strings.HasPrefix(key, prefix) {
				listed = append(listed, bucket.Attributes{Key: key, Size: int64(len(o.body)), Modified: o.modified})
			}
		}
		return object{}, nil
	})
	if err != nil {
		return err
	}
	for _, a := range listed {
		if err := yield(a); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// Delete implements bucket.Bucket.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	_, err := b.do(ctx, OpDelete, key, func() (object, error) {
		if mutable(key) {
			b.forbid("deletion of %s", key)
		}
		if _, exists := b.objects[key]; exists {
			delete(b.objects, key)
			b.deleted[key] = true
		}
		return object{}, nil
	})
	return err
}

// do serves one request under the lock, with any injected fault. With an error it returns no object.
func (b *Bucket) do(ctx context.Context, op Op, key string, request func() (object, error)) (object, error) {
	if err := ctx.Err(); err != nil {
		return object{}, err
	}
	check := bucket.CheckKey
	if op == OpList {
		check = bucket.CheckPrefix
	}
	if err := check(key); err != nil {
		return object{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	fault := Works
	if b.fault != nil {
		fault = b.fault(op, key)
	}
	var o object
	err := ErrInjected
	if fault != Fails {
		o, err = request()
	}
	if fault == FailsButPersisted {
		err = ErrInjected
	}
	if err != nil {
		return object{}, fmt.Errorf("%s %s: %w", op, key, err)
	}
	return o, nil
}

// read requires the lock.
func (b *Bucket) read(key string) (object, error) {
	if b.deleted[key] {
		b.forbid("read of the deleted %s", key)
	}
	o, exists := b.objects[key]
	if !exists {
		return object{}, bucket.ErrNotFound
	}
	return o, nil
}

// write requires the lock.
func (b *Bucket) write(key string, body []byte) object {
	o := object{body: slices.Clone(body), etag: fmt.Sprintf("%x", sha256.Sum256(body)), modified: time.Now()}
	b.objects[key] = o
	delete(b.deleted, key)
	return o
}

func (b *Bucket) forbid(format string, args ...any) {
	if b.failer != nil {
		b.failer.Helper()
		b.failer.Errorf("strict bucket: "+format, args...)
	}
}

// mutable reports whether a key names a root, the one mutable object of a cell.
func mutable(key string) bool { return path.Base(key) == "root" }
