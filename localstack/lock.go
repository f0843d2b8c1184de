package localstack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// errTaken says that another process holds the lock.
var errTaken = errors.New("another logplane uses the data folder")

// lock makes the folder and locks it for this process. The kernel drops the lock when the process dies, so there is
// nothing to clean up after a kill.
func lock(folder string) (unlock func() error, err error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("make the data folder: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the data folder's lock: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w '%s': stop it, or give another --data", errTaken, folder)
		}
		return nil, fmt.Errorf("lock the data folder '%s': %w", folder, err)
	}
	_ = file.Truncate(0) // users find the process's id here; the lock does not need it
	_, _ = file.WriteAt(fmt.Appendln(nil, os.Getpid()), 0)
	return file.Close, nil
}
