package simulate

import (
	"context"
	"errors"
	"path"
	"strings"

	"github.com/logplane/logplane/projection/bucket"
)

// errFault is what the schedule makes of a bucket's answer.
var errFault = errors.New("the simulated bucket did not answer")

// remote is a process's way to the bucket: a request waits before it is served and before it is answered.
type remote struct {
	process *process
	bucket.Bucket
}

func (b *remote) pass(ctx context.Context, op, key string, serve func() error) error {
	w := b.process.world
	_, folder, _ := strings.Cut(path.Dir(key), "/")
	what := op + " " + folder
	if path.Base(key) == "root" {
		what = op + " root"
	}
	fault, err := w.wait(ctx, &step{from: b.process.name + " bucket", what: what, request: true})
	if err != nil {
		return err
	}
	err = errFault
	if fault != fails {
		err = serve()
	}
	if fault != works {
		ownerOf(ctx).faults.Add(1)
		err = errFault
	}
	if _, late := w.wait(ctx, &step{from: b.process.name + " bucket", what: what + ", answered"}); late != nil {
		return late
	}
	return err
}

func (b *remote) Get(ctx context.Context, key string) (body []byte, etag string, err error) {
	err = b.pass(ctx, "get", key, func() error { body, etag, err = b.Bucket.Get(detached, key); return err })
	if err != nil {
		return nil, "", err
	}
	return body, etag, nil
}

func (b *remote) GetRange(ctx context.Context, key string, offset, length int64) (part []byte, err error) {
	err = b.pass(ctx, "read", key, func() error { part, err = b.Bucket.GetRange(detached, key, offset, length); return err })
	return part, err
}

func (b *remote) Create(ctx context.Context, key string, body []byte) (etag string, err error) {
	err = b.pass(ctx, "create", key, func() error { etag, err = b.Bucket.Create(detached, key, body); return err })
	return etag, err
}

func (b *remote) Replace(ctx context.Context, key string, body []byte, old string) (etag string, err error) {
	err = b.pass(ctx, "replace", key, func() error { etag, err = b.Bucket.Replace(detached, key, body, old); return err })
	return etag, err
}

func (b *remote) Copy(ctx context.Context, from, to string) error {
	return b.pass(ctx, "copy", to, func() error { return b.Bucket.Copy(detached, from, to) })
}

func (b *remote) List(ctx context.Context, prefix string, yield func(bucket.Attributes) error) error {
	var listed []bucket.Attributes
	err := b.pass(ctx, "list", prefix, func() error {
		return b.Bucket.List(detached, prefix, func(a bucket.Attributes) error { listed = append(listed, a); return nil })
	})
	for _, a := range listed {
		if err == nil {
			err = yield(a)
		}
	}
	return err
}

func (b *remote) Delete(ctx context.Context, key string) error {
	return b.pass(ctx, "delete", key, func() error { return b.Bucket.Delete(detached, key) })
}

// detached is what a request that has arrived is served with: its client's going away does not stop it.
var detached = context.Background()
