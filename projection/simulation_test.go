package projection

import (
	"context"
	"crypto/sha256"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/filesystem"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
)

// weather is a bucket whose requests fail, fail but persist, or stall until many other requests have passed. A stall is
// longer than the grace period of the simulation. The times of listed objects are each skewed differently.
type weather struct {
	bucket.Bucket
	t *testing.T
	// served counts requests, tended the jobs of projectors, swapped the swaps of the root.
	served, tended, swapped atomic.Int64
	// defeatedCommits and defeatedMerges count how often a segment was collected before a root could name the segment.
	defeatedCommits, defeatedMerges atomic.Int64

	mu  sync.Mutex // guards the fields below
	rng *rand.Rand
	// unnamed are the segments of stalled commits and compactions.
	unnamed map[string]bool
	// roots are the hashes of all bodies that were to become the root, each with the ETag of the root that it was to
	// replace.
	roots map[[sha256.Size]byte]string
}

var errStorm = errors.New("the bucket did not answer")

func (w *weather) roll(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.IntN(n)
}

// pass makes a request in this weather: one of 'fair' requests fails, and another one fails but persists.
func (w *weather) pass(write bool, fair int, request func() error) error {
	w.served.Add(1)
	if write && w.roll(12) == 0 {
		w.stallBriefly()
	}
	fate := w.roll(fair)
	if fate == 0 {
		return errStorm
	}
	err := request()
	if write && w.roll(6) == 0 {
		w.stallBriefly()
	}
	if write && fate == 1 {
		return errStorm
	}
	return err
}

// stallBriefly waits until other callers have made some requests.
func (w *weather) stallBriefly() {
	until := w.served.Load() + int64(w.roll(60*(1+3*w.roll(2))))
	w.stall(3*time.Millisecond, func() bool { return w.served.Load() >= until })
}

// stallUntilSwapped waits until another caller has swapped the root. Then the waiting caller's swap is lost, and that
// caller must notice the loss.
func (w *weather) stallUntilSwapped() {
	before, until := w.swapped.Load(), w.tended.Load()+15
	w.stall(time.Second, func() bool { return w.swapped.Load() > before || w.tended.Load() >= until })
}

// stallUntilCollected waits until a segment was collected because no root names it yet, or until a long time has
// passed. Then a commit is defeated by the collector's swap of the root. Because of the nonce, the commit does not take
// its lost swap for won. A compaction whose swap is lost continues with its outputs; the generation defeats such a
// compaction.
func (w *weather) stallUntilCollected(key string) {
	w.mark(key, true)
	until := w.tended.Load() + 15
	w.stall(time.Second, func() bool { return !w.marked(key) || w.tended.Load() >= until })
	w.mark(key, false)
}

func (w *weather) mark(key string, unnamed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unnamed[key] = unnamed
}

func (w *weather) marked(key string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unnamed[key]
}

// defeats is the smaller of two numbers: defeated compactions, and a third of the defeated commits.
func (w *weather) defeats() int64 { return min(w.defeatedCommits.Load()/3, w.defeatedMerges.Load()) }

// unique requires that a root is only ever written over one other root. Otherwise, on a server whose ETags are hashes,
// the root could be there twice.
func (w *weather) unique(root []byte, old string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	sum := sha256.Sum256(root)
	if over, known := w.roots[sum]; known && over != old {
		w.t.Error("the same root was written over two others")
	}
	w.roots[sum] = old
}

// stall waits until something has happened. The deadline is needed if nobody is left who could make it happen.
func (w *weather) stall(longest time.Duration, happened func() bool) {
	for deadline := time.Now().Add(longest); !happened() && time.Now().Before(deadline); {
		time.Sleep(100 * time.Microsecond)
	}
}

// spilled reports whether a key is that of a commit's rows, compacted whether it is that of a compaction's rows.
func spilled(key string) bool   { return strings.Contains(key, "/seg/0/") }
func compacted(key string) bool { return strings.Contains(key, "/seg/") && !spilled(key) }

func (w *weather) Get(ctx context.Context, key string) (body []byte, etag string, err error) {
	err = w.pass(false, 40, func() error { body, etag, err = w.Bucket.Get(ctx, key); return err })
	return body, etag, err
}

func (w *weather) GetRange(ctx context.Context, key string, offset, length int64) (b []byte, err error) {
	err = w.pass(false, 40, func() error { b, err = w.Bucket.GetRange(ctx, key, offset, length); return err })
	return b, err
}

func (w *weather) Create(ctx context.Context, key string, body []byte) (etag string, err error) {
	err = w.pass(true, 40, func() error { etag, err = w.Bucket.Create(ctx, key, body); return err })
	if compacted(key) && w.roll(3) > 0 || spilled(key) && w.roll(4) == 0 {
		w.stallUntilCollected(key)
	}
	return etag, err
}

func (w *weather) Replace(ctx context.Context, key string, body []byte, old string) (etag string, err error) {
	w.unique(body, old)
	if w.roll(8) == 0 {
		w.stallUntilSwapped()
	}
	err = w.pass(true, 4, func() error { etag, err = w.Bucket.Replace(ctx, key, body, old); return err })
	if err == nil {
		w.swapped.Add(1)
	}
	return etag, err
}

func (w *weather) List(ctx context.Context, prefix string, yield func(bucket.Attributes) error) error {
	return w.pass(false, 40, func() error {
		return w.Bucket.List(ctx, prefix, func(a bucket.Attributes) error {
			a.Modified = a.Modified.Add(time.Duration(w.roll(20)-10) * simulatedGrace)
			return yield(a)
		})
	})
}

func (w *weather) Delete(ctx context.Context, key string) error {
	return w.pass(true, 40, func() error {
		err := w.Bucket.Delete(ctx, key)
		if err == nil && w.marked(key) {
			w.mark(key, false)
			if compacted(key) {
				w.defeatedMerges.Add(1)
			} else {
				w.defeatedCommits.Add(1)
			}
		}
		return err
	})
}

var _ bucket.Bucket = (*weather)(nil)

// simulatedGrace is far shorter than a stall.
const simulatedGrace = time.Millisecond

// TestSimulation: four projectors concurrently commit, compact, collect, checkpoint, raise the floor and purge, crash
// and start again, over a bucket that fails, lies and stalls. Readers compare views at random revisions, also of the
// past, with the model (invariants 5, 6, 7, 11, 13). Without the generation, or the nonce, the test fails nearly every
// time. LOGPLANE_SOAK is the least number of reads on each kind of bucket.
func TestSimulation(t *testing.T) {
	if testing.Short() {
		t.Skip("thousands of reads")
	}
	quiet(t)
	soak, err := strconv.Atoi(os.Getenv("LOGPLANE_SOAK"))
	long := err == nil
	run := func(name string, b func(t *testing.T) bucket.Bucket, reads int, defeats int64) {
		t.Run(name, func(t *testing.T) {
			if long {
				simulate(t, b(t), soak, 100)
				return
			}
			t.Parallel() // it mostly waits
			simulate(t, b(t), reads, defeats)
		})
	}
	run("memory", func(*testing.T) bucket.Bucket { return memory.New() }, 1500, 6)
	run("filesystem", func(t *testing.T) bucket.Bucket {
		b, err := filesystem.Open(t.TempDir())
		require.NoError(t, err)
		return b
	}, 750, 3)
	run("minio", func(t *testing.T) bucket.Bucket {
		return minioBucket(t)
	}, 300, 3)
}

// simulation is the state that all goroutines share.
type simulation struct {
	*random
	storm *weather
	seed  uint64
	mu    sync.RWMutex // guards the model
	// done ends the simulation. The writer waits for turns of readers and projectors, so that all keep the same pace.
	done, read, tended chan struct{}

	commits, reads, past, expired, merges, collected, crashes atomic.Int64
}

func (s *simulation) config(c *Config) {
	c.InlineBytes, c.Budget, c.Grace = []int{1, 1, 300}[s.seed%3], cache.NewBudget(30_000), simulatedGrace
	c.Checkpoints = []CheckpointRule{{Every: 300 * time.Millisecond, Keep: 2 * time.Second}}
	if s.seed%2 == 0 {
		c.History = 2 * time.Second
	}
}

func (s *simulation) open() *Projection { return s.over(s.storm, s.config) }

func (s *simulation) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// simulate ends after this many reads, and this many defeats of commits and compactions.
func simulate(t *testing.T, b bucket.Bucket, reads int, defeats int64) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c := newCell(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	c.ctx = ctx
	s := &simulation{random: newRandom(c, seed, 30), seed: seed, done: make(chan struct{}), read: make(chan struct{}), tended: make(chan struct{}),
		storm: &weather{Bucket: b, t: t, unnamed: map[string]bool{}, roots: map[[sha256.Size]byte]string{}, rng: rand.New(rand.NewPCG(seed, 0))}}
	var all sync.WaitGroup
	for i := range uint64(4) {
		all.Go(func() { s.project(rand.New(rand.NewPCG(seed, 1+i))) })
	}
	for i := range uint64(3) {
		all.Go(func() { s.readOn(rand.New(rand.NewPCG(seed, 10+i))) })
	}
	events := min(reads, 300+reads/10)
	for n := 1; !t.Failed() && (n <= events || s.merges.Load() == 0 || s.storm.defeats() < defeats); n++ {
		s.mu.Lock()
		s.step()
		s.mu.Unlock()
		s.await(s.read, func() bool { return s.reads.Load() >= int64(n*reads/events) })
		s.await(s.tended, func() bool { return s.storm.tended.Load() >= int64(n) })
	}
	close(s.done)
	all.Wait()
	if t.Failed() {
		return
	}
	calm := s.over(b, s.config)
	_, err := calm.Commit(ctx)
	require.NoError(t, err)
	for range 200 {
		s.check(ctx, calm, s.Rand)
	}
	v := calm.Current()
	require.Empty(t, holes(v.snap.root))
	s.checkPreconditions(ctx, v)
	requireClean(t, calm)
	t.Logf("%d events, %d reads of which %d below the floor, 0 wrong, 0 unreadable; besides %d expired; %d commits, %d compactions, %d collected objects, %d commits and %d compactions defeated, %d crashes, serial %d",
		s.head, s.reads.Load(), s.past.Load(), s.expired.Load(), s.commits.Load(), s.merges.Load(), s.collected.Load(), s.storm.defeatedCommits.Load(), s.storm.defeatedMerges.Load(), s.crashes.Load(), v.snap.root.Serial)
}

// await takes turns until there were enough.
func (s *simulation) await(turns <-chan struct{}, enough func() bool) {
	for !enough() && !s.t.Failed() {
		require.NoError(s.t, s.ctx.Err())
		select {
		case <-turns:
		case <-time.After(time.Second): // all readers may have failed
		}
	}
}

// project is the life of a projector, and of its successors after crashes.
func (s *simulation) project(rng *rand.Rand) {
	for p := s.open(); !s.ended(); {
		life, crash := context.WithCancel(s.ctx)
		if rng.IntN(4) == 0 {
			time.AfterFunc(time.Duration(rng.IntN(3000))*time.Microsecond, crash)
		}
		s.tend(life, p, rng)
		s.storm.tended.Add(1)
		select {
		case s.tended <- struct{}{}:
		default:
		}
		if life.Err() != nil {
			s.crashes.Add(1)
			p = s.open()
		}
		crash()
	}
}

func (s *simulation) readOn(rng *rand.Rand) {
	for p := s.open(); !s.ended(); {
		if rng.IntN(20) == 0 {
			p = s.open()
		}
		err := s.readOnce(p, rng)
		switch {
		case err == nil:
			s.reads.Add(1)
			select {
			case s.read <- struct{}{}:
			case <-s.done:
			}
		case errors.Is(err, ErrExpired):
			s.expired.Add(1)
		case !errors.Is(err, errStorm):
			s.t.Errorf("read: %v", err)
			return
		}
	}
}

// tend does one of a projector's jobs. The job may fail.
func (s *simulation) tend(ctx context.Context, p *Projection, rng *rand.Rand) {
	switch rng.IntN(10) {
	case 0:
		if v, err := p.Latest(ctx); err == nil && v.Applied() > 100 {
			_ = p.Retain(ctx, v.Applied()-Revision(rng.IntN(100)), v.Applied()-Revision(rng.IntN(100)))
		}
	case 1, 2, 3:
		n, _ := p.Collect(ctx, time.Duration(rng.IntN(2))*simulatedGrace)
		s.collected.Add(int64(n))
	case 4, 5:
		if done, _ := p.Compact(ctx); done {
			s.merges.Add(1)
		}
	default:
		if _, err := p.Commit(ctx); err == nil {
			s.commits.Add(1)
		}
	}
}

// readOnce compares a view at one revision, and the events after it, with the model.
func (s *simulation) readOnce(p *Projection, rng *rand.Rand) error {
	v, err := p.Latest(s.ctx)
	if err != nil {
		return err
	}
	if v.Floor() > 0 && rng.IntN(10) == 0 {
		return s.readPast(p, Revision(rng.IntN(int(v.Floor()))))
	}
	at := v.Floor() + Revision(rng.IntN(int(v.Revision()-v.Floor())+1))
	got, err := state(s.ctx, v, at)
	if err != nil {
		return err
	}
	after, n := at, 0
	for e, err := range p.events(s.ctx, Keys{}, at, v.Revision()) {
		if err != nil {
			return err
		}
		if e.Revision <= after {
			return errors.New("an event came twice")
		}
		after = e.Revision
		n++
	}
	s.compare(at, got)
	s.mu.RLock()
	defer s.mu.RUnlock()
	for rev := range s.model.after(at) {
		if rev <= v.Revision() {
			n--
		}
	}
	if n != 0 {
		s.t.Errorf("%d events too many after %d up to %d", n, at, v.Revision())
	}
	return nil
}

// readPast reads a revision below the floor, if the revision is still kept.
func (s *simulation) readPast(p *Projection, at Revision) error {
	v, err := p.at(s.ctx, at)
	if err != nil {
		return err
	}
	got, err := state(s.ctx, v, at)
	if err != nil {
		return err
	}
	s.past.Add(1)
	s.compare(at, got)
	return nil
}

func (s *simulation) compare(at Revision, got map[string]string) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	want := s.model.at(at)
	if !equalStates(got, want) {
		s.t.Errorf("at %d: %v instead of %v", at, got, want)
	}
}

func equalStates(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return true
}
