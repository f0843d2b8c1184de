package projection

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/filesystem"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// weather is a bucket whose requests fail, fail but persist, and stall until many others have passed, which is longer than the
// grace period of the simulation; and whose clock is skewed differently each time it is asked.
type weather struct {
	bucket.Bucket
	served atomic.Int64

	mu  sync.Mutex // guards rng
	rng *rand.Rand
}

var errStorm = errors.New("the bucket did not answer")

func (w *weather) roll(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.IntN(n)
}

// pass does a request in whatever weather there is.
func (w *weather) pass(write bool, request func() error) error {
	w.served.Add(1)
	if write && w.roll(12) == 0 {
		w.stall()
	}
	fate := w.roll(40)
	if fate == 0 {
		return errStorm
	}
	err := request()
	if write && w.roll(6) == 0 { // between a segment and the root that names it is where a stall does most harm
		w.stall()
	}
	if write && fate == 1 {
		return errStorm
	}
	return err
}

// stall waits until others have made some requests; the deadline is for when there are no others left.
func (w *weather) stall() {
	until, deadline := w.served.Load()+int64(w.roll(60*(1+3*w.roll(2)))), time.Now().Add(50*time.Millisecond)
	for w.served.Load() < until && time.Now().Before(deadline) {
		time.Sleep(100 * time.Microsecond)
	}
}

func (w *weather) Get(ctx context.Context, key string) (body []byte, etag string, err error) {
	err = w.pass(false, func() error { body, etag, err = w.Bucket.Get(ctx, key); return err })
	return body, etag, err
}

func (w *weather) GetRange(ctx context.Context, key string, offset, length int64) (b []byte, err error) {
	err = w.pass(false, func() error { b, err = w.Bucket.GetRange(ctx, key, offset, length); return err })
	return b, err
}

func (w *weather) Create(ctx context.Context, key string, body []byte) (etag string, err error) {
	err = w.pass(true, func() error { etag, err = w.Bucket.Create(ctx, key, body); return err })
	return etag, err
}

func (w *weather) Replace(ctx context.Context, key string, body []byte, old string) (etag string, err error) {
	err = w.pass(true, func() error { etag, err = w.Bucket.Replace(ctx, key, body, old); return err })
	return etag, err
}

func (w *weather) List(ctx context.Context, prefix string, yield func(bucket.Attributes) error) error {
	return w.pass(false, func() error {
		return w.Bucket.List(ctx, prefix, func(a bucket.Attributes) error {
			a.Modified = a.Modified.Add(time.Duration(w.roll(20)-10) * simulatedGrace)
			return yield(a)
		})
	})
}

func (w *weather) Delete(ctx context.Context, key string) error {
	return w.pass(true, func() error { return w.Bucket.Delete(ctx, key) })
}

var _ bucket.Bucket = (*weather)(nil)

// simulatedGrace is far shorter than a stall.
const simulatedGrace = time.Millisecond

// Four projectors commit, compact, collect, checkpoint, raise the floor and purge at once, crash and start again, over a
// bucket that fails, lies and stalls; readers check random revisions, the past among them, against the model (invariants 5, 6,
// 7, 11, 13). Without the swap before garbage is deleted it fails at once, without the generation in every few runs. LOGPLANE_SOAK is how many reads it has at least; 1,500 otherwise.
func TestSimulation(t *testing.T) {
	reads := 1500
	if testing.Short() {
		reads = 600
	}
	if n, err := strconv.Atoi(os.Getenv("LOGPLANE_SOAK")); err == nil {
		reads = n
	}
	t.Run("memory", func(t *testing.T) { simulate(t, memory.New(), reads) })
	t.Run("filesystem", func(t *testing.T) {
		b, err := filesystem.Open(t.TempDir())
		require.NoError(t, err)
		simulate(t, b, reads/2)
	})
	t.Run("minio", func(t *testing.T) {
		if testing.Short() {
			t.Skip("a container")
		}
		simulate(t, minioBucket(t), reads/5)
	})
}

// simulation is what happens at once.
type simulation struct {
	*random
	storm *weather
	seed  uint64
	mu    sync.RWMutex // guards the model
	// done ends it; read takes one token for each right read, so that writers do not run away from readers.
	done chan struct{}
	read chan struct{}

	commits, reads, past, expired, merges, collected, crashes atomic.Int64
}

func (s *simulation) config(c *Config) {
	c.InlineBytes, c.CacheBytes, c.Grace = []int{1, 1, 300}[s.seed%3], 30_000, simulatedGrace
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

func simulate(t *testing.T, b bucket.Bucket, reads int) {
	quiet(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c := newCell(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	c.ctx = ctx
	s := &simulation{random: newRandom(c, seed, 30), seed: seed, done: make(chan struct{}), read: make(chan struct{}),
		storm: &weather{Bucket: b, rng: rand.New(rand.NewPCG(seed, 0))}}
	var all sync.WaitGroup
	for i := range uint64(4) {
		all.Go(func() { s.project(rand.New(rand.NewPCG(seed, 1+i))) })
	}
	for i := range uint64(3) {
		all.Go(func() { s.readOn(rand.New(rand.NewPCG(seed, 10+i))) })
	}
	events := min(reads, 600+reads/10)
	for n := 1; n <= events || s.merges.Load() == 0 || s.collected.Load() < 10; n++ {
		s.mu.Lock()
		s.step()
		s.mu.Unlock()
		for s.reads.Load() < int64(n*reads/events) && !t.Failed() && ctx.Err() == nil {
			select {
			case <-s.read:
			case <-time.After(time.Second): // or all readers have failed
			}
		}
	}
	close(s.done)
	all.Wait()
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
	t.Logf("%d events, %d reads of which %d below the floor, 0 wrong, 0 unreadable; besides %d expired; %d commits, %d compactions, %d collected objects, %d crashes, serial %d",
		s.head, s.reads.Load(), s.past.Load(), s.expired.Load(), s.commits.Load(), s.merges.Load(), s.collected.Load(), s.crashes.Load(), v.snap.root.Serial)
}

// project is the life of a projector, and of its successors after crashes.
func (s *simulation) project(rng *rand.Rand) {
	for p := s.open(); !s.ended(); {
		life, crash := context.WithCancel(s.ctx)
		if rng.IntN(4) == 0 {
			time.AfterFunc(time.Duration(rng.IntN(3000))*time.Microsecond, crash)
		}
		s.tend(life, p, rng)
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
			default:
			}
		case errors.Is(err, ErrExpired):
			s.expired.Add(1)
		case !errors.Is(err, errStorm):
			s.t.Errorf("read: %v", err)
			return
		}
	}
}

// tend does one thing that a projector does; it may fail.
func (s *simulation) tend(ctx context.Context, p *Projection, rng *rand.Rand) {
	switch rng.IntN(9) {
	case 0:
		if v, err := p.Latest(ctx); err == nil && v.Applied() > 100 {
			_ = p.Retain(ctx, v.Applied()-Revision(rng.IntN(100)), v.Applied()-Revision(rng.IntN(100)))
		}
	case 1, 2:
		n, _ := p.Collect(ctx, time.Duration(rng.IntN(2))*simulatedGrace)
		s.collected.Add(int64(n))
	case 3, 4:
		if done, _ := p.Compact(ctx); done {
			s.merges.Add(1)
		}
	default:
		if _, err := p.Commit(ctx); err == nil {
			s.commits.Add(1)
		}
	}
}

// readOnce compares one view at one revision, and the events between two, with the model.
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
	for e, err := range p.Events(s.ctx, at, v.Revision()) {
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
	for rev := at + 1; rev <= v.Revision() && int(rev) < len(s.model.events); rev++ {
		if s.model.events[rev] != "" {
			n--
		}
	}
	if n != 0 {
		s.t.Errorf("%d events too many after %d up to %d", n, at, v.Revision())
	}
	return nil
}

// readPast reads a revision below the floor, where something still covers it.
func (s *simulation) readPast(p *Projection, at Revision) error {
	v, err := p.At(s.ctx, at)
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
	want := s.model.states[min(int(at), len(s.model.states)-1)]
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
