package filesystem

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lock takes the flock of the bucket's folder, shared or exclusive, or waits for it until ctx ends. Every holder opens
// the file anew, so it excludes goroutines of one process as it does other processes, and a process that ends releases
// it.
func (b *Bucket) lock(ctx context.Context, how int) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(b.root, lockName), os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return nil, err
	}
	held := make(chan error, 1)
	go func() { held <- flock(f, how) }()
	select {
	case err := <-held:
		if err != nil {
			f.Close()
			return nil, err
		}
		return func() { f.Close() }, nil
	case <-ctx.Done():
		// A system call cannot be told to stop waiting: the lock is given back as soon as it is ours.
		go func() {
			_ = errors.Join(<-held, f.Close()) // whether it was ever ours does not matter now
		}()
		return nil, ctx.Err()
	}
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
