package filesystem

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lock is the bucket folder's flock. Every holder opens the file anew, so it excludes goroutines of one process as it
// does other processes, and a process that ends releases it.
type lock struct {
	path string
	// turn has one place: of one process's writers at most one waits in the system call, on a thread.
	turn chan struct{}
}

func newLock(path string) lock { return lock{path: path, turn: make(chan struct{}, 1)} }

// exclusive waits until it holds the lock alone or ctx ends.
func (l lock) exclusive(ctx context.Context) (unlock func(), err error) {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	release, err := l.take(ctx, unix.LOCK_EX)
	if err != nil {
		<-l.turn
		return nil, err
	}
	return func() { release(); <-l.turn }, nil
}

// take waits until it holds the lock, shared or alone, or ctx ends.
func (l lock) take(ctx context.Context, how int) (release func(), err error) {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_RDONLY, 0o600)
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
