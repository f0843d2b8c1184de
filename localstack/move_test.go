package localstack_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/localstack"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/filesystem"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// moving is a move of a stopped cell to a log and a bucket of this process.
type moving struct {
	*localstack.Move
	to   *memory.Bucket
	url  string
	link *eventlogtest.Link // between the move and the new log
}

// newMoving prepares a move of a copy of the folder.
func newMoving(t *testing.T, source string) moving {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "cell")
	require.NoError(t, os.CopyFS(folder, os.DirFS(source)))
	from, err := filesystem.Open(filepath.Join(folder, "bucket"))
	require.NoError(t, err)
	server := eventlogtest.Run(t, t.TempDir())
	eventlogtest.Open(t, eventlog.Config{Conn: eventlogtest.Connect(t, server)}) // creates it
	conn, link := eventlogtest.ConnectThrough(t, server)
	to := memory.Strict(t)
	m := moving{to: to, url: server.ClientURL(), link: link, Move: &localstack.Move{
		Folder: folder, Stream: "logplane", Prefix: "logplane", From: from, To: to, BucketPrefix: "logplane",
		Log:   eventlogtest.Open(t, eventlog.Config{Conn: conn, Timeout: time.Second}),
		Place: localstack.Place{NATS: "nats://new", Stream: "logplane", Bucket: "s3://new"},
	}}
	return m
}

// all takes the steps of 'logplane move'.
func (m moving) all(ctx context.Context) error {
	moved, err := m.Moved()
	if err != nil {
		return err
	}
	if moved == nil {
		if err := m.Check(ctx); err != nil {
			return err
		}
		if _, _, err := m.Copy(ctx); err != nil {
			return err
		}
	}
	_, err = m.Run(ctx)
	return err
}

// old opens the cell that moves, as every command that writes to it does.
func (m moving) old(t *testing.T) error {
	t.Helper()
	_, closeFolder, err := localstack.OpenFolder(t.Context(), m.Folder)
	if err == nil {
		require.NoError(t, closeFolder())
	}
	return err
}

// rows are the revisions of all objects.
func rows(t *testing.T, p *projection.Projection) map[string]projection.Revision {
	t.Helper()
	v, err := p.Latest(t.Context())
	require.NoError(t, err)
	all := map[string]projection.Revision{}
	for row, err := range v.Scan(t.Context(), "", "", v.Revision()) {
		require.NoError(t, err)
		all[row.Key] = row.Revision
	}
	return all
}

// stoppedCell returns the folder of a stopped cell, and the revisions of its objects. Its log has events that its
// bucket does not have yet.
func stoppedCell(t *testing.T) (folder string, want map[string]projection.Revision) {
	t.Helper()
	folder = filepath.Join(t.TempDir(), "cell")
	dev, err := localstack.Start(t.Context(), localstack.Config{Folder: folder, Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	require.NoError(t, dev.Stop())
	cell, closeFolder, err := localstack.OpenFolder(t.Context(), folder)
	require.NoError(t, err)
	want = rows(t, cell.Projection)
	require.NoError(t, closeFolder())
	return folder, want
}

// TestMoveThatBreaksOff: a move may fail at each of its requests to the new bucket and each of its messages to the new
// log, whether the request took effect or not. The old cell and the new one can never both be opened. The next move
// completes the first one, and nothing is lost.
func TestMoveThatBreaksOff(t *testing.T) {
	source, want := stoppedCell(t)
	require.NotEmpty(t, want)
	complete := func(t *testing.T, m moving) {
		t.Helper()
		if root(t, m.to) {
			require.ErrorContains(t, m.old(t), "was moved on")
		}
		m.to.Inject(nil)
		conn, err := eventlog.Connect(eventlog.Servers{URL: m.url})
		require.NoError(t, err)
		defer conn.Close()
		m.Log = eventlogtest.Open(t, eventlog.Config{Conn: conn})
		for range 2 { // a complete move may be repeated too
			require.NoError(t, m.all(t.Context()))
			require.ErrorContains(t, m.old(t), "was moved on")
		}
		p, err := projection.Open(projection.Config{Log: m.Log, Bucket: m.to, Founded: true})
		require.NoError(t, err)
		require.Equal(t, want, rows(t, p))
	}
	for _, fault := range []memory.Fault{memory.Fails, memory.FailsButPersisted} {
		for step, broke := 0, true; broke; step++ {
			t.Run(fmt.Sprintf("bucket %d %v", step, fault), func(t *testing.T) {
				m, n := newMoving(t, source), 0
				broke = false
				m.to.Inject(func(memory.Op, string) memory.Fault {
					n++
					if n-1 != step {
						return memory.Works
					}
					broke = true
					return fault
				})
				require.Equal(t, broke, m.all(t.Context()) != nil)
				complete(t, m)
			})
		}
	}
	for _, answered := range []bool{false, true} {
		for message, broke := 1, true; broke; message++ {
			t.Run(fmt.Sprintf("log %d answered %v", message, answered), func(t *testing.T) {
				m := newMoving(t, source)
				m.link.FailAt(message, answered, eventlogtest.Cuts)
				failed := m.all(t.Context())
				broke = m.link.HasFailed()
				require.True(t, broke || failed == nil, "%v", failed)
				complete(t, m)
			})
		}
	}
}

// root reports whether a cell can be opened in the bucket.
func root(t *testing.T, b *memory.Bucket) bool {
	t.Helper()
	b.Inject(nil)
	_, _, err := b.Get(t.Context(), "logplane/root")
	return err == nil
}

// TestMoveWaits: a move waits until the process that uses the folder has stopped. Then no command opens the folder's
// log, and the cell does not move to a second place.
func TestMoveWaits(t *testing.T) {
	source, _ := stoppedCell(t)
	m := newMoving(t, source)
	dev, err := localstack.Start(t.Context(), localstack.Config{Folder: m.Folder, Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	waits, done := make(chan struct{}), make(chan error)
	m.Wait = func() { close(waits) }
	go func() { done <- m.all(t.Context()) }()
	<-waits
	require.False(t, root(t, m.to))
	require.NoError(t, dev.Stop())
	require.NoError(t, <-done)

	_, err = localstack.Start(t.Context(), localstack.Config{Folder: m.Folder, Listen: "127.0.0.1:0"})
	require.ErrorContains(t, err, "was moved on")
	require.ErrorContains(t, err, "the log 'logplane' at 'nats://new' and the bucket 's3://new'")
	m.Place.Bucket = "s3://another"
	require.ErrorContains(t, m.all(t.Context()), "was moved to the log 'logplane' at 'nats://new' and the bucket 's3://new', not to")
}
