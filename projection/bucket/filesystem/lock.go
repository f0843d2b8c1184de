package filesystem

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lock takes the flock of the bucket's folder, shared or exclusive, or waits for it until ctx ends. Every holder opens
// the file anew, so the lock also works between goroutines of one process. At most one writer of a process waits in the
// system call, where it occupies a thread.
func (b *Bucket) lock(ctx context.Context, how int) (unlock func(), err error) {
	next := func() {}
	if how == unix.LOCK_EX {
		select {
		case b.turn <- struct{}{}:
			next = func() { <-b.turn }
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	f, err := b.root.OpenFile(lockName, os.O_CREATE|os.O_RDONLY|unix.O_NONBLOCK, 0o600)
	if err != nil {
		next()
		return nil, err
	}
	release := func() { f.Close(); next() }
	held := make(chan error, 1)
	if err := flock(f, how|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		held <- err
	} else {
		go func() { held <- flock(f, how) }()
	}
	select {
	case err := <-held:
		if err != nil {
			release()
			return nil, err
		}
		return release, nil
	case <-ctx.Done():
		go func() { // the system call cannot be interrupted: release the lock as soon as it is ours
			_ = errors.Join(<-held, f.Close()) // it does not matter whether we got it
			next()
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
