package localstack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// errTaken: the lock is another process's.
var errTaken = errors.New("another logplane uses the data folder")

// lock makes the folder and takes it for this process. The kernel drops the lock when the process dies, so a kill
// leaves nothing to clean up.
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
	_ = file.Truncate(0) // whoever wants to end the process finds its id here; the lock holds without it
	_, _ = file.WriteAt(fmt.Appendln(nil, os.Getpid()), 0)
	return file.Close, nil
}
