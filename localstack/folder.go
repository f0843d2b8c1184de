package localstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/embedded"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// OpenFolder opens the cell of a stopped 'logplane dev' without serving it. The caller must call closeFolder.
func OpenFolder(ctx context.Context, folder string) (cell kubestore.Cell, closeFolder func() error, err error) {
	if err := checkFolder(folder, "log"); err != nil {
		return kubestore.Cell{}, nil, err
	}
	d := &Dev{}
	unlock, err := lock(folder)
	if err != nil {
		return kubestore.Cell{}, nil, err
	}
	d.onStop(unlock)
	if cell, err = d.openCell(ctx, Config{Folder: folder, readOnly: true}); err != nil {
		return kubestore.Cell{}, nil, errors.Join(err, d.Stop())
	}
	return cell, d.Stop, nil
}

// Attach opens the cell of a running 'logplane dev' to read it. The cell stays open while dev is restarted. The caller
// must call detach.
func Attach(ctx context.Context, folder string) (cell kubestore.Cell, detach func(), err error) {
	if err := checkFolder(folder, "lock"); err != nil {
		return kubestore.Cell{}, nil, err
	}
	unlock, err := lock(folder)
	if err == nil {
		return kubestore.Cell{}, nil, errors.Join(fmt.Errorf("no 'logplane dev' runs on '%s': start it, or look into the folder with 'logplane inspect'", folder), unlock())
	}
	if !errors.Is(err, errTaken) {
		return kubestore.Cell{}, nil, err
	}
	door := filepath.Join(folder, doorName)
	if _, err := os.Stat(door); err != nil {
		return kubestore.Cell{}, nil, fmt.Errorf("the 'logplane dev' on '%s' keeps its log in memory, or only now starts: %w", folder, err)
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
	b, err := openBucket(Config{Folder: folder})
	if err != nil {
		return kubestore.Cell{}, err
	}
	p, err := projection.Open(projection.Config{Log: log, Bucket: b, ReadOnly: true})
	if err != nil {
		return kubestore.Cell{}, err
	}
	return kubestore.Cell{Log: log, Projection: p, Cluster: cluster, Objects: kubestore.NewObjects(p.Budget())}, nil
}

// checkFolder fails if dev has never made the folder's content. Otherwise locking would make a folder.
func checkFolder(folder, holding string) error {
	if _, err := os.Stat(filepath.Join(folder, holding)); err != nil {
		return fmt.Errorf("'%s' is not a data folder of 'logplane dev': %w", folder, err)
	}
	return nil
}
