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
	"github.com/logplane/logplane/projection/bucket/memory"
)

// weather is a bucket whose requests fail, fail but persist, and stall until many others have passed: longer than the
// grace period of the simulation, which is none.
type weather struct {
	*memory.Bucket
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
	if write && fate == 1 {
		return errStorm
	}
	return err
}

// stall waits until others have made some requests; the deadline is for when there are no others left.
func (w *weather) stall() {
	until, deadline := w.served.Load()+int64(w.roll(60)), time.Now().Add(50*time.Millisecond)
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

func (w *weather) Delete(ctx context.Context, key string) error {
	return w.pass(true, func() error { return w.Bucket.Delete(ctx, key) })
}

var _ bucket.Bucket = (*weather)(nil)

// Four projectors commit, compact, collect, raise the floor and purge at once, crash and start again, over a bucket that
// fails, lies and stalls; readers check random revisions against the model (invariants 5, 6, 7, 11, 13). Without the
// generation, or without the nonce, it fails. LOGPLANE_SOAK is how many events it has; 1,500 otherwise.
func TestSimulation(t *testing.T) {
	quiet(t)
	events := 1500
	if testing.Short() {
		events = 600
	}
	if n, err := strconv.Atoi(os.Getenv("LOGPLANE_SOAK")); err == nil {
		events = n
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c := newCell(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	c.ctx = ctx
	storm := &weather{Bucket: memory.New(), rng: rand.New(rand.NewPCG(seed, 0))}
	small := func(c *Config) { c.InlineBytes, c.CacheBytes = 700, 30_000 }
	r := newRandom(c, seed, 30)
	var mu sync.RWMutex // guards the model
	done := make(chan struct{})
	var all sync.WaitGroup
	var commits, reads, merges, collected atomic.Int64
	for i := range uint64(4) {
		rng := rand.New(rand.NewPCG(seed, 1+i))
		all.Go(func() {
			for p := c.over(storm, small); ; {
				select {
				case <-done:
					return
				default:
				}
				life, crash := context.WithCancel(ctx)
				if rng.IntN(4) == 0 {
					time.AfterFunc(time.Duration(rng.IntN(3000))*time.Microsecond, crash)
				}
				project(life, p, rng, &commits, &merges, &collected)
				if life.Err() != nil {
					p = c.over(storm, small)
				}
				crash()
			}
		})
	}
	for i := range uint64(3) {
		rng := rand.New(rand.NewPCG(seed, 10+i))
		all.Go(func() {
			for p := c.over(storm, small); ; {
				select {
				case <-done:
					return
				default:
				}
				if rng.IntN(20) == 0 {
					p = c.over(storm, small)
				}
				if err := r.read(ctx, p, rng, &mu); err == nil {
					reads.Add(1)
				} else if !errors.Is(err, errStorm) && !errors.Is(err, ErrExpired) {
					t.Errorf("read: %v", err)
					return
				}
			}
		})
	}
	for range events {
		mu.Lock()
		r.step()
		mu.Unlock()
	}
	close(done)
	all.Wait()
	calm := c.over(storm.Bucket, small)
	_, err := calm.Commit(ctx)
	require.NoError(t, err)
	for range 200 {
		r.check(ctx, calm, r.Rand)
	}
	v := calm.Current()
	require.Empty(t, holes(v.snap.root))
	r.checkPreconditions(ctx, v)
	_, err = calm.Verify(ctx, func(problem error) { t.Error(problem) })
	require.NoError(t, err)
	t.Logf("%d commits, %d compactions, %d collected objects, %d reads, serial %d", commits.Load(), merges.Load(), collected.Load(), reads.Load(), v.snap.root.Serial)
	require.Positive(t, merges.Load())
	require.Greater(t, collected.Load(), int64(10))
}

// project does one thing that a projector does; it may fail.
func project(ctx context.Context, p *Projection, rng *rand.Rand, commits, merges, collected *atomic.Int64) {
	switch rng.IntN(8) {
	case 0:
		if v, err := p.Latest(ctx); err == nil && v.Applied() > 100 {
			_ = p.Retain(ctx, v.Applied()-Revision(rng.IntN(100)), v.Applied()-Revision(rng.IntN(100)))
		}
	case 1:
		n, _ := p.Collect(ctx, 0)
		collected.Add(int64(n))
	case 2, 3:
		if done, _ := p.Compact(ctx); done {
			merges.Add(1)
		}
	default:
		if _, err := p.Commit(ctx); err == nil {
			commits.Add(1)
		}
	}
}

// read compares one view at one revision, and the events between two, with the model.
func (r *random) read(ctx context.Context, p *Projection, rng *rand.Rand, mu *sync.RWMutex) error {
	v, err := p.Latest(ctx)
	if err != nil {
		return err
	}
	at := v.Floor() + Revision(rng.IntN(int(v.Revision()-v.Floor())+1))
	got, err := state(ctx, v, at)
	if err != nil {
		return err
	}
	after, n := at, 0
	for e, err := range p.Events(ctx, at, v.Revision()) {
		if err != nil {
			return err
		}
		if e.Revision <= after {
			return errors.New("an event came twice")
		}
		after = e.Revision
		n++
	}
	mu.RLock()
	defer mu.RUnlock()
	want := r.model.states[min(int(at), len(r.model.states)-1)]
	if !equalStates(got, want) {
		r.t.Errorf("at %d of %d to %d: %v instead of %v", at, v.Floor(), v.Revision(), got, want)
	}
	for rev := at + 1; rev <= v.Revision() && int(rev) < len(r.model.events); rev++ {
		if r.model.events[rev] != "" {
			n--
		}
	}
	if n != 0 {
		r.t.Errorf("%d events too many after %d up to %d", n, at, v.Revision())
	}
	return nil
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
