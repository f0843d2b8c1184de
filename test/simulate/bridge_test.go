package simulate

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/filesystem"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/bucket/s3"
	"github.com/logplane/logplane/projection/bucket/s3/miniotest"
)

// bridge is a bucket that serves its requests outside of the bubble of testing/synctest, because the goroutines of an
// HTTP client cannot live inside a bubble. The ages of listed objects are in the bubble's time.
type bridge struct {
	inner   bucket.Bucket
	written sync.Map // by key, when the object was written
	free    chan *bay
	busy    atomic.Int64
	// served gets a value after each request.
	served chan struct{}
}

// bay carries one request at a time out of the bubble.
type bay struct {
	serve chan func()
	done  chan struct{}
}

// newBridge must be called outside of all bubbles.
func newBridge(t *testing.T, inner bucket.Bucket) *bridge {
	const bays = 64
	b := &bridge{inner: inner, free: make(chan *bay, bays), served: make(chan struct{}, 1)}
	for range bays {
		one := &bay{serve: make(chan func()), done: make(chan struct{})}
		go func() {
			for serve := range one.serve {
				serve()
				b.busy.Add(-1)
				select {
				case b.served <- struct{}{}:
				default:
				}
				one.done <- struct{}{}
			}
		}()
		t.Cleanup(func() { close(one.serve) })
		b.free <- one
	}
	return b
}

func (b *bridge) cross(serve func()) {
	one := <-b.free
	b.busy.Add(1)
	one.serve <- serve
	<-one.done
	b.free <- one
}

func (b *bridge) Get(ctx context.Context, key string) (body []byte, etag string, err error) {
	b.cross(func() { body, etag, err = b.inner.Get(detached, key) })
	return body, etag, err
}

func (b *bridge) GetRange(ctx context.Context, key string, offset, length int64) (part []byte, err error) {
	b.cross(func() { part, err = b.inner.GetRange(detached, key, offset, length) })
	return part, err
}

func (b *bridge) Create(ctx context.Context, key string, body []byte) (etag string, err error) {
	b.written.LoadOrStore(key, time.Now())
	b.cross(func() { etag, err = b.inner.Create(detached, key, body) })
	return etag, err
}

func (b *bridge) Replace(ctx context.Context, key string, body []byte, old string) (etag string, err error) {
	b.cross(func() { etag, err = b.inner.Replace(detached, key, body, old) })
	if err == nil {
		b.written.Store(key, time.Now())
	}
	return etag, err
}

func (b *bridge) Copy(ctx context.Context, from, to string) (err error) {
	b.written.LoadOrStore(to, time.Now())
	b.cross(func() { err = b.inner.Copy(detached, from, to) })
	return err
}

func (b *bridge) List(ctx context.Context, prefix string, yield func(bucket.Attributes) error) (err error) {
	b.cross(func() {
		err = b.inner.List(detached, prefix, func(a bucket.Attributes) error {
			if at, known := b.written.Load(a.Key); known {
				a.Modified, _ = at.(time.Time)
			}
			return yield(a)
		})
	})
	return err
}

func (b *bridge) Delete(ctx context.Context, key string) (err error) {
	b.cross(func() { err = b.inner.Delete(detached, key) })
	return err
}

// cells returns a function that makes each world's bucket. Each cell has its own prefix, because all cells may share
// one bucket.
func cells(t *testing.T) func() bucket.Bucket {
	var inner bucket.Bucket
	switch kind := os.Getenv("BUCKET"); kind {
	case "", "memory":
		return func() bucket.Bucket { return memory.New() }
	case "filesystem":
		b, err := filesystem.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		inner = b
	case "minio":
		server := miniotest.Start(t)
		b, err := s3.Open(t.Context(), s3.Config{Endpoint: server.Endpoint, Region: miniotest.Region, Bucket: "cells",
			AccessKey: miniotest.AccessKey, SecretKey: miniotest.SecretKey, PathStyle: true})
		if err == nil {
			_, err = b.Ensure(t.Context(), true)
		}
		if err != nil {
			t.Fatal(err)
		}
		inner = b
	default:
		t.Fatalf("BUCKET is %q: it must be 'memory', 'filesystem' or 'minio'", kind)
	}
	return func() bucket.Bucket { return newBridge(t, inner) }
}
