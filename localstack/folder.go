package localstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/embedded"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// OpenFolder opens the cell of a stopped 'logplane dev' without serving it. The caller must call closeFolder.
func OpenFolder(ctx context.Context, folder string) (cell kubestore.Cell, closeFolder func() error, err error) {
	d := &Dev{}
	if cell, err = d.openFolder(ctx, Config{Folder: folder, readOnly: true}); err != nil {
		return kubestore.Cell{}, nil, errors.Join(err, d.Stop())
	}
	return cell, d.Stop, nil
}

// OpenFolderLog opens the log below the folder of a stopped 'logplane serve'. The caller must call closeLog.
func OpenFolderLog(folder, prefix string) (log eventlog.Config, closeLog func() error, err error) {
	if err := checkFolder(folder, "lock"); err != nil {
		return eventlog.Config{}, nil, err
	}
	unlock, err := Lock(folder)
	if err != nil {
		return eventlog.Config{}, nil, err
	}
	opened, err := OpenLog(folder, prefix)
	if err != nil {
		return eventlog.Config{}, nil, errors.Join(err, unlock())
	}
	return opened.Config, func() error { opened.Stop(); return unlock() }, nil
}

func (d *Dev) openFolder(ctx context.Context, c Config) (kubestore.Cell, error) {
	if err := checkFolder(c.Folder, logName); err != nil {
		return kubestore.Cell{}, err
	}
	unlock, err := Lock(c.Folder)
	if err != nil {
		return kubestore.Cell{}, err
	}
	d.onStop(unlock)
	return d.openCell(ctx, c)
}

// Attach opens the cell of a running 'logplane dev' to read it. The cell stays open while dev is restarted. The caller
// must call detach.
func Attach(ctx context.Context, folder string) (cell kubestore.Cell, detach func(), err error) {
	if err := checkFolder(folder, "lock"); err != nil {
		return kubestore.Cell{}, nil, err
	}
	unlock, err := Lock(folder)
	if err == nil {
		return kubestore.Cell{}, nil, errors.Join(fmt.Errorf("no 'logplane dev' runs on '%s': start it, or look into the folder with 'logplane inspect'", folder), unlock())
	}
	if !errors.Is(err, errTaken) {
		return kubestore.Cell{}, nil, err
	}
	door := filepath.Join(folder, doorName)
	if _, err := os.Stat(door); err != nil {
		return kubestore.Cell{}, nil, fmt.Errorf("the log of the 'logplane dev' on '%s' cannot be read, because it is in memory or dev is only starting: try again, or leave out --in-memory: %w", folder, err)
	}
	conn, err := embedded.Enter(door)
	if err != nil {
		return kubestore.Cell{}, nil, err
	}
	if cell, err = openAttached(ctx, folder, eventlog.Config{Conn: conn, Prefix: subjectPrefix}); err != nil {
		conn.Close()
		return kubestore.Cell{}, nil, err
	}
	return cell, conn.Close, nil
}

func openAttached(ctx context.Context, folder string, c eventlog.Config) (kubestore.Cell, error) {
	log, err := eventlog.Open(ctx, c)
	if err != nil {
		return kubestore.Cell{}, err
	}
	b, err := openBucket(ctx, Config{Folder: folder})
	if err != nil {
		return kubestore.Cell{}, err
	}
	return kubestore.Open(projection.Config{Log: log, Bucket: b, ReadOnly: true}, cluster)
}

// checkFolder fails if no cell was ever made in the folder. Without this check, Lock would make the folder.
func checkFolder(folder, holding string) error {
	if _, err := os.Stat(filepath.Join(folder, holding)); err != nil {
		return fmt.Errorf("'%s' is not a data folder of 'logplane dev' or 'logplane serve': give the one that was given to it: %w", folder, err)
	}
	return nil
}

// errTaken says that another process holds the lock.
var errTaken = errors.New("another logplane uses the data folder")

// Lock makes the folder and locks it for this process. The kernel drops the lock when the process dies, so there is
// nothing to clean up after a kill.
func Lock(folder string) (unlock func() error, err error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("make the data folder: %w", err)
	}
	// Through a link of another user, Lock would truncate any file.
	file, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
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
