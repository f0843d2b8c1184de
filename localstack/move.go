package localstack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/trust"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
)

// Place is where a cell is: the URL of its log's servers without a password, the log's stream, and the bucket's URL.
type Place struct {
	NATS   string `json:"nats"`
	Stream string `json:"stream"`
	Bucket string `json:"bucket"`
}

func (p Place) String() string {
	return fmt.Sprintf("the log '%s' at '%s' and the bucket '%s'", p.Stream, p.NATS, p.Bucket)
}

// Moved is written into the folder of a log that another log continues. No process opens the old log again.
type Moved struct {
	To Place `json:"to"`
	// Last is the last revision of the old log.
	Last eventlog.Revision `json:"last"`
	Time time.Time         `json:"time"`
}

// Move moves a cell from its data folder to another log, and to another bucket if the cell's bucket is in the folder.
//
//  1. While the cell is served, Copy copies the existing objects. It may be repeated, and left out.
//  2. Run waits until no process uses the folder, folds the old log to its end, and copies the other objects. A crash
//     up to here changes nothing: the old cell goes on, and the next Run begins again.
//  3. Run writes Moved into the old log's folder. This is the point of no return: nobody opens the old log again.
//  4. Run makes the new log begin after the old log's last revision.
//  5. Run copies the root. Only now can processes open the new cell.
//
// After a crash between 3 and 5 nobody serves the cell until Run is repeated. Run may be repeated at any time.
type Move struct {
	// Folder is the data folder. Stream and Prefix are the names of its log.
	Folder, Stream, Prefix string
	// From is the cell's bucket, and BucketPrefix the cell's prefix there. To is the bucket to which the cell moves, or
	// nil if the cell stays in From.
	From, To     bucket.Bucket
	BucketPrefix string
	// Log is the unused log to which the cell moves.
	Log *eventlog.Log
	// Place is the new log and bucket.
	Place Place
	// Wait is called if another process uses the folder, before Run waits for the end of that process.
	Wait func()
}

func (m *Move) transfer() projection.Transfer {
	return projection.Transfer{From: m.From, To: m.To, Prefix: m.BucketPrefix}
}

// Moved returns the Moved that an earlier Run has written in its third step, or nil. It fails if the cell was moved to
// another place.
func (m *Move) Moved() (*Moved, error) {
	if err := checkFolder(m.Folder, logName); err != nil {
		return nil, err
	}
	moved, err := readMoved(m.logFolder())
	if err == nil && moved != nil && moved.To != m.Place {
		err = fmt.Errorf("the cell in '%s' was moved to %s, not to %s: give the --nats, --stream and --bucket of that move", m.Folder, moved.To, m.Place)
	}
	return moved, err
}

// Check fails if the new place is in use. It changes nothing.
func (m *Move) Check(ctx context.Context) error {
	unused, err := m.Log.Unused(ctx)
	if err == nil && !unused {
		err = fmt.Errorf("the log '%s' was used before, so a cell cannot move there: give another --stream and --subject-prefix", m.Place.Stream)
	}
	if err == nil && m.To != nil {
		err = m.transfer().Check(ctx)
	}
	return err
}

// Copy copies the existing objects except the root, and returns how many objects and bytes it has copied.
func (m *Move) Copy(ctx context.Context) (objects, size int64, err error) {
	if m.To == nil {
		return 0, 0, nil
	}
	return m.transfer().Copy(ctx)
}

// Run moves the cell.
func (m *Move) Run(ctx context.Context) (*Moved, error) {
	unlock, err := m.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unlock() }() // the kernel drops the lock in any case
	moved, err := m.Moved()
	if err == nil && moved == nil {
		moved, err = m.leave(ctx)
	}
	if err != nil {
		return nil, err
	}
	err = m.Log.Begin(ctx, moved.Last+1)
	if err == nil && m.To != nil {
		err = m.transfer().Finish(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("the move broke off, and nobody serves the cell until 'logplane move' has run again: %w", err)
	}
	return moved, nil
}

// lockCadence is how often a move tries to lock the folder.
const lockCadence = 20 * time.Millisecond

// lock locks the folder as soon as no other process uses it.
func (m *Move) lock(ctx context.Context) (unlock func() error, err error) {
	unlock, err = Lock(m.Folder)
	if errors.Is(err, errTaken) {
		m.Wait()
	}
	for errors.Is(err, errTaken) && eventlog.Pause(ctx, lockCadence) == nil {
		unlock, err = Lock(m.Folder)
	}
	return unlock, err
}

// leave ends the old log for good, once everything that it has is in the new bucket.
func (m *Move) leave(ctx context.Context) (*Moved, error) {
	if err := m.Check(ctx); err != nil {
		return nil, err
	}
	last, err := m.seal(ctx)
	if err != nil {
		return nil, err
	}
	if _, _, err := m.Copy(ctx); err != nil {
		return nil, err
	}
	moved := &Moved{To: m.Place, Last: last, Time: time.Now().UTC().Truncate(time.Second)}
	if err := writeMoved(m.logFolder(), moved); err != nil {
		return nil, fmt.Errorf("note the move: %w", err)
	}
	return moved, nil
}

// seal folds the old log into the root, and returns the log's last revision.
func (m *Move) seal(ctx context.Context) (eventlog.Revision, error) {
	log, err := OpenLog(m.Folder, m.Prefix)
	if err != nil {
		return 0, err
	}
	defer log.Stop()
	log.Config.Stream = m.Stream
	opened, err := eventlog.Open(ctx, log.Config)
	if err != nil {
		return 0, err
	}
	// No retention is set, so nothing expires. A young cell may have no root yet. But if the bucket comes from a flag,
	// a missing root means that it is the wrong bucket.
	p, err := projection.Open(projection.Config{Log: opened, Bucket: m.From, Prefix: m.BucketPrefix, Founded: m.To == nil})
	if err != nil {
		return 0, err
	}
	return p.Seal(ctx)
}

func (m *Move) logFolder() string { return filepath.Join(m.Folder, logName) }

// movedName is the name of the file that has Moved.
const movedName = "moved.json"

// writeMoved writes Moved. When it returns nil, the file survives a power cut.
func writeMoved(folder string, moved *Moved) error {
	text, err := json.MarshalIndent(moved, "", "  ")
	if err == nil {
		err = trust.WriteNew(filepath.Join(folder, movedName), append(text, '\n'))
	}
	if err != nil {
		return err
	}
	opened, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(opened.Sync(), opened.Close())
}

// readMoved returns nil if the log in the folder was not moved.
func readMoved(folder string) (*Moved, error) {
	path := filepath.Join(folder, movedName)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	moved := &Moved{}
	if err == nil {
		err = json.Unmarshal(text, moved)
	}
	if err != nil {
		return nil, fmt.Errorf("the cell was moved, and '%s', which says where to, cannot be read: %w", path, err)
	}
	return moved, nil
}

// refuseMoved fails if the log in the folder was moved: nobody may write to it again.
func refuseMoved(folder string) error {
	moved, err := readMoved(folder)
	if err != nil || moved == nil {
		return err
	}
	return fmt.Errorf("the cell in '%s' was moved on %s to %s: start its processes there with --nats and --bucket, or run 'logplane move' again if it broke off",
		filepath.Dir(folder), moved.Time.Format(time.RFC3339), moved.To)
}
