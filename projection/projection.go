package projection

import (
	"context"
	"iter"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/bucket"
)

// Revision is the log's.
type Revision = eventlog.Revision

// Config says what a Projection reads and how much it may hold.
type Config struct {
	Log    *eventlog.Log
	Bucket bucket.Bucket
	// Prefix of the cell's objects in the bucket, 'logplane' by default.
	Prefix string
	// InlineBytes is how many compressed bytes of rows the root holds before they spill to a segment; 256 KiB by default.
	InlineBytes int
	// CacheBytes is the budget of decoded segment blocks; 64 MiB by default.
	CacheBytes int64
	// LogRetention, Retention and History are of log time (architecture.md, retention).
	LogRetention, Retention, History time.Duration
}

// Row is one version of an object, or its tombstone.
type Row struct {
	// Key is eventlog.Key.Row().
	Key string
	// Subject-side identity of the key, carried so that a row gives back its eventlog.Key.
	ID eventlog.Key
	// Revision is that of the event that made this version.
	Revision Revision
	// Deleted marks a tombstone; it has no Value.
	Deleted bool
	// Op of the event.
	Op eventlog.Op
	// Base is the live revision that the event replaced.
	Base        Revision
	RequestID   string
	ContentType string
	// Value must not be changed: it is shared by every reader.
	Value []byte
	// Time is the log's timestamp of the event.
	Time time.Time
	// TTL in seconds as written, 0 for ever.
	TTL uint32
}

// Projection reads and commits one cell. Any number of them, in any number of processes, may do both at
// once (invariant 7). It is safe for concurrent use and owns no goroutine.
type Projection struct{}

// Open returns a Projection. It reads nothing; the first view does.
func Open(c Config) (*Projection, error) { panic("todo") }

// Latest returns a view at least as new as every write acknowledged before the call began (invariant 4).
// Concurrent calls share one question to the log and one read of the tail.
func (p *Projection) Latest(ctx context.Context) (*View, error) { panic("todo") }

// Current returns the newest view this process has, without asking anyone; nil before the first Latest.
// After Latest returned V, Current is at least as new as V.
func (p *Projection) Current() *View { panic("todo") }

// AtLeast returns a view not older than rev. It waits for a revision that does not exist yet until ctx
// ends, at most 3 s, then returns ErrFuture.
func (p *Projection) AtLeast(ctx context.Context, rev Revision) (*View, error) { panic("todo") }

// Any returns the current view while it is under 10 s old, else Latest.
func (p *Projection) Any(ctx context.Context) (*View, error) { panic("todo") }

// Learn adds events that the caller read from the log anyway (a follower), so that the next view needs
// no tail read. Events that are not the next one after the newest view are ignored.
func (p *Projection) Learn(events ...eventlog.Event) { panic("todo") }

// Commit folds the events after the root's applied revision into a new root, spilling inline rows to a
// segment as needed, and reports the applied revision afterwards. Losing to another projector is no
// error. With nothing to add it costs no write.
func (p *Projection) Commit(ctx context.Context) (applied Revision, err error) { panic("todo") }

// Events yields every non-void event in (after, upto] in order, from event segments and then the log.
// It fails with ErrExpired when part of the range is below the floor.
func (p *Projection) Events(ctx context.Context, after, upto Revision) iter.Seq2[eventlog.Event, error] {
	panic("todo")
}

// View is the state of a cell at every revision from its floor to its own. It is immutable and safe for
// concurrent use.
type View struct{}

// Revision is the newest revision the view holds: its head.
func (v *View) Revision() Revision { panic("todo") }

// Floor is the oldest revision that can be read.
func (v *View) Floor() Revision { panic("todo") }

// First is the log's first retained revision when the view was made; a writer's precondition is the
// key's last revision if that is not below it, else 0.
func (v *View) First() Revision { panic("todo") }

// Get returns the live row of the key as of the revision, false if there is none. ErrExpired below the
// floor, ErrFuture above the view.
func (v *View) Get(ctx context.Context, key string, at Revision) (Row, bool, error) { panic("todo") }

// Last returns the newest row of the key, tombstones included, false if the key never existed or its
// tombstone was compacted away.
func (v *View) Last(ctx context.Context, key string) (Row, bool, error) { panic("todo") }

// Scan yields the live rows with start <= key < end as of the revision, ascending by key. An empty end is unbounded.
func (v *View) Scan(ctx context.Context, start, end string, at Revision) iter.Seq2[Row, error] {
	panic("todo")
}

// Count is the number of rows that Scan would yield, without values where the segments allow it.
func (v *View) Count(ctx context.Context, start, end string, at Revision) (int, error) { panic("todo") }
