package localstack

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/trust"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
)

// A fixture is a file with the objects of a cell, without their past: a tar archive of the bucket of a restored cell
// (projection.Source.Restore). A cell in memory can begin with the fixture.

const (
	// commitTimeout is how long a running cell may take to commit its newest events.
	commitTimeout = time.Minute
	// commitCheck is the time between two looks at the root of a running cell.
	commitCheck = 100 * time.Millisecond
	// rootKey is the key of the root in a fixture.
	rootKey = "logplane/root"
)

// SaveFixture writes the present objects of a 'logplane dev' to a file. Dev may be running on the folder or be stopped.
func SaveFixture(ctx context.Context, folder, file string) (projection.Restored, error) {
	d := &Dev{}
	cell, err := d.openFolder(ctx, Config{Folder: folder})
	if errors.Is(err, errTaken) {
		return saveRunning(ctx, folder, file)
	}
	if err == nil {
		_, err = cell.Projection.Commit(ctx)
	}
	var done projection.Restored
	if err == nil {
		done, err = saveFixture(ctx, d.bucket, file)
	}
	return done, errors.Join(err, d.Stop())
}

// saveRunning waits for the running cell to commit what has been written so far.
func saveRunning(ctx context.Context, folder, file string) (projection.Restored, error) {
	cell, detach, err := Attach(ctx, folder)
	if err != nil {
		return projection.Restored{}, err
	}
	defer detach()
	waiting, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	if err := awaitCommit(waiting, cell); err != nil {
		return projection.Restored{}, fmt.Errorf("wait for the newest events in the bucket: %w", err)
	}
	b, err := openBucket(ctx, Config{Folder: folder})
	if err != nil {
		return projection.Restored{}, err
	}
	return saveFixture(ctx, b, file)
}

func awaitCommit(ctx context.Context, cell kubestore.Cell) error {
	v, err := cell.Projection.Latest(ctx)
	if err != nil {
		return err
	}
	for {
		root, err := cell.Projection.Root(ctx)
		if err != nil {
			return err
		}
		pending, err := changesAfter(ctx, v, root.Applied)
		if err != nil || !pending {
			return err
		}
		if err := eventlog.Pause(ctx, commitCheck); err != nil {
			return err
		}
	}
}

// changesAfter reports whether the view has an event after the revision that changes something.
func changesAfter(ctx context.Context, v *projection.View, after projection.Revision) (bool, error) {
	for e, err := range v.EventsOf(ctx, projection.Keys{}, after, v.Revision()) {
		if err != nil || e.Op != eventlog.Barrier {
			return true, err
		}
	}
	return false, nil
}

// SaveFixture writes the present objects of the cell to a file.
func (d *Dev) SaveFixture(ctx context.Context, file string) error {
	if _, err := d.projection.Commit(ctx); err != nil {
		return err
	}
	_, err := saveFixture(ctx, d.bucket, file)
	return err
}

// saveFixture writes the objects that a bucket has to a file.
func saveFixture(ctx context.Context, b bucket.Bucket, file string) (projection.Restored, error) {
	source, err := projection.OpenSource(ctx, b, "", cache.NewBudget(32<<20))
	if err != nil {
		return projection.Restored{}, err
	}
	restored := memory.New()
	done, err := source.Restore(ctx, source.Newest(), restored, "")
	if err != nil {
		return done, err
	}
	var archive bytes.Buffer
	to := tar.NewWriter(&archive)
	write := func(key string) error {
		body, _, err := restored.Get(ctx, key)
		if err != nil {
			return err
		}
		err = to.WriteHeader(&tar.Header{Name: key, Mode: 0o600, Size: int64(len(body))})
		if err == nil {
			_, err = to.Write(body)
		}
		return err
	}
	err = restored.List(ctx, "", func(a bucket.Attributes) error {
		if a.Key == rootKey {
			return nil
		}
		return write(a.Key)
	})
	if err == nil {
		err = write(rootKey) // last, so that a file that was cut off has no root
	}
	if err = errors.Join(err, to.Close()); err == nil {
		err = trust.Replace(file, archive.Bytes())
	}
	if err != nil {
		return done, fmt.Errorf("write the fixture: %w", err)
	}
	return done, nil
}

// loadFixture returns a bucket with the content of the file.
func loadFixture(ctx context.Context, file string) (*memory.Bucket, error) {
	archive, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("--fixture: %w", err)
	}
	defer archive.Close()
	b := memory.New()
	from := tar.NewReader(archive)
	for {
		header, err := from.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && !isPlain(header) {
			err = fmt.Errorf("'%s' is not a plain file", header.Name)
		}
		var body []byte
		if err == nil {
			body, err = io.ReadAll(from)
		}
		if err == nil {
			_, err = b.Create(ctx, header.Name, body)
		}
		if err != nil {
			return nil, notAFixture(file, err)
		}
	}
	if _, err := projection.OpenSource(ctx, b, "", nil); err != nil {
		return nil, notAFixture(file, err)
	}
	return b, nil
}

// isPlain reports whether an entry has all its bytes in the archive. A few bytes of a sparse entry fill any memory with
// zeros.
func isPlain(header *tar.Header) bool {
	for record := range header.PAXRecords {
		if strings.HasPrefix(record, "GNU.sparse.") {
			return false
		}
	}
	return header.Typeflag == tar.TypeReg
}

func notAFixture(file string, err error) error {
	return fmt.Errorf("--fixture is '%s', which is not a whole file of 'logplane fixture save': make it again: %w", file, err)
}
