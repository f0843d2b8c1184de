package projection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sys/unix"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/cache"
)

// Revision is a revision of the log.
type Revision = eventlog.Revision

// Config says what a Projection reads and how much it may hold.
type Config struct {
	Log    *eventlog.Log
	Bucket bucket.Bucket
	// Prefix of the cell's objects in the bucket, 'logplane' by default.
	Prefix string
	// InlineBytes is how many compressed bytes of rows the root holds before the rows spill to a segment; 256 KiB by
	// default.
	InlineBytes int
	// Budget is the memory that decoded segment blocks share with the process's other caches; 64 MiB by default. The
	// tail counts towards it too. Facts of blocks (Selection) may take an eighth of the budget in addition.
	Budget *cache.Budget
	// CacheFolder keeps bytes of immutable objects on a local disk; empty for none. CacheFolderBytes is its budget, 1
	// GiB by default. Processes may share the folder.
	CacheFolder      string
	CacheFolderBytes int64
	// TailBytes is how many bytes of events may come after the snapshot; by default half of Budget, and at least 32
	// MiB. Latest commits if the tail is longer than a quarter of TailBytes. View.Append refuses writes if the tail is
	// longer than TailBytes.
	TailBytes int
	// ReadOnly keeps Latest from committing.
	ReadOnly bool
	// Founded says that the cell has had a root since it was made. Then every call fails with ErrNoRoot in a bucket
	// without a root: otherwise a commit to a wrong bucket would purge the log's beginning.
	Founded bool
	// LogRetention, Retention and History are of log time (architecture.md, vocabulary). 0 keeps everything.
	LogRetention, Retention, History time.Duration
	// HistoryRules keep the past of some objects for a shorter time than History. All processes of a cell should be
	// given the same rules.
	HistoryRules []HistoryRule
	// Checkpoints say which older roots are kept; none by default. All processes of a cell should be given the same
	// rules, and the same retentions.
	Checkpoints []CheckpointRule
	// Grace is how old garbage must be, by the bucket's clock, before it is deleted; 15 min by default. No commit may
	// take longer, and neither may a list that reads one view.
	Grace time.Duration
	// Tracer gets a span for each traced event that this process commits, in the trace of the request that wrote the
	// event; none by default.
	Tracer trace.Tracer
}

// Projection reads and commits one cell. Any number of Projections, in any number of processes, may read and commit one
// cell at once (invariant 7). A Projection is safe for concurrent use and owns no goroutine.
type Projection struct {
	config Config
	cache  blockCache
	facts  *factCache
	// pasts are the snapshots of checkpoints, by the checkpoint's key.
	pasts *cache.Cache[string, *snapshot]
	// pages are the pages of the archive by key, archived the opened segments of pages.
	pages    *cache.Cache[string, []segmentRef]
	archived *cache.Cache[archivedID, *part]
	// folded are the tails that were folded from archived events.
	folded *cache.Cache[foldedKeys, *tail]
	// branches says where clusters begin.
	branches *cache.Cache[string, *Branch]
	// folder is the folder of the newest generation; nil if none is configured, and before the first view.
	folder atomic.Pointer[folder]

	// view is the newest view. publishing is held while view is replaced, and never across a request.
	view       atomic.Pointer[View]
	publishing sync.Mutex
	// purgeLog, fenceLog and fillLog are the log's methods; tests replace these methods with functions that fail or
	// write less.
	purgeLog, fenceLog func(context.Context, Revision) error
	fillLog            func(context.Context) (Revision, error)
	// rootFooters is how many bytes of footers a root holds itself. manyEvents is how many event segments a root lists
	// before some are joined. partBytes is how many bytes a part of a run has. Tests lower all three, and holdTime.
	rootFooters, manyEvents, partBytes int
	// holdTime is how long a hold lasts without a branch.
	holdTime time.Duration
	// pins maps a checkpoint's key to the names that the checkpoint pins. These names never change.
	pins sync.Map
	// broken maps a segment's key to the time when a compaction could not read it. Compactions avoid the segment for
	// brokenTime.
	broken sync.Map
	// undecided is a draft whose put failed, so that nobody knows whether it is the root. Only swapRoot sets undecided.
	undecided atomic.Pointer[draft]
	// givesUp is set by PlanFence: commits leave out an event that no server has undamaged, and every event after it.
	givesUp atomic.Bool
	// fatal is set once the log is known to be another log (invariant 9). failing is closed at the same time.
	fatal   atomic.Pointer[error]
	failing chan struct{}

	// reading lets one caller read root and tail for all callers that wait. committing lets one caller at a time
	// commit, following lets one follow the log, and relieving lets one shorten a long tail.
	reading, committing, following, relieving gate
	// sparing is a time, in nanoseconds since 1970. Until this time requests ask the bucket only for objects that they
	// need.
	sparing atomic.Int64
}

// Open returns a Projection. Open reads nothing; the first view reads root and log.
func Open(c Config) (*Projection, error) {
	if c.Log == nil || c.Bucket == nil {
		return nil, errors.New("open a projection: it needs a log and a bucket")
	}
	if c.Retention > 0 && c.LogRetention > c.Retention {
		return nil, errors.New("open a projection: log retention must not be longer than retention")
	}
	p, err := open(c)
	if err == nil {
		lastBudget.Store(p.config.Budget)
	}
	return p, err
}

// open is Open for callers that may have only the bucket; it does not ask the log.
func open(c Config) (*Projection, error) {
	c.Prefix = cmp.Or(c.Prefix, "logplane")
	c.InlineBytes = cmp.Or(c.InlineBytes, 256<<10)
	if c.Budget == nil {
		c.Budget = cache.NewBudget(64 << 20)
	}
	c.TailBytes = cmp.Or(c.TailBytes, max(int(c.Budget.Limit()/2), 32<<20))
	c.Grace = cmp.Or(c.Grace, 15*time.Minute)
	c.CacheFolderBytes = cmp.Or(c.CacheFolderBytes, 1<<30)
	p := &Projection{config: c, purgeLog: c.Log.Purge, fenceLog: c.Log.Fence, fillLog: c.Log.Fill, rootFooters: rootFooters, manyEvents: manyEvents, partBytes: partBytes, holdTime: holdTime,
		cache: newBlockCache(c.Budget), facts: cache.New[factsID, *facts](cache.NewBudget(c.Budget.Limit() / factShare)),
		pasts: cache.New[string, *snapshot](c.Budget), folded: cache.New[foldedKeys, *tail](c.Budget),
		pages: cache.New[string, []segmentRef](c.Budget), archived: cache.New[archivedID, *part](c.Budget),
		branches: cache.New[string, *Branch](c.Budget),
		reading:  newGate(), committing: newGate(), following: newGate(), relieving: newGate(), failing: make(chan struct{})}
	if c.CacheFolder == "" {
		return p, nil
	}
	if err := os.MkdirAll(c.CacheFolder, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the block cache: %w", err)
	}
	if err := unix.Access(c.CacheFolder, unix.R_OK|unix.W_OK|unix.X_OK); err != nil {
		return nil, fmt.Errorf("--block-cache-folder is '%s', where this user cannot write: make it writable, or give another folder: %w", c.CacheFolder, err)
	}
	return p, nil
}

func (p *Projection) rootKey() string { return p.config.Prefix + "/root" }

// Budget is the byte budget that the caches of the process share.
func (p *Projection) Budget() *cache.Budget { return p.config.Budget }

// Shrink drops most of the decoded blocks, the least recently used first.
func (p *Projection) Shrink() {
	p.cache.blocks.Shrink()
	p.cache.summaries.Shrink()
	p.facts.Shrink()
}

// Current returns the newest view this process has, without asking anyone; nil before the first Latest. After Latest
// returned V, Current is at least as new as V.
func (p *Projection) Current() *View { return p.view.Load() }

// Any returns the current view while that view is under 10 s old, else the view that Latest returns.
func (p *Projection) Any(ctx context.Context) (*View, error) {
	if err := p.failed(); err != nil {
		return nil, err
	}
	v := p.view.Load()
	if v != nil && !v.outdated() && v.Age() < 10*time.Second {
		return v, nil
	}
	return p.Latest(ctx)
}

// failed is the error that every call returns once the log is known to be another log.
func (p *Projection) failed() error {
	if err := p.fatal.Load(); err != nil {
		return *err
	}
	return nil
}

// fail returns the error. ErrDiverged is final: every later call returns it.
func (p *Projection) fail(err error) error {
	if !errors.Is(err, eventlog.ErrDiverged) {
		return err
	}
	if p.fatal.CompareAndSwap(nil, &err) {
		close(p.failing)
	}
	return *p.fatal.Load()
}
