package projection

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// fate is what becomes of one step.
type fate int

const (
	fails fate = iota
	failsButPersisted
	diesBefore
	diesAfter
	fates
)

func (f fate) String() string {
	return [...]string{"fails", "fails but persisted", "dies before", "dies after"}[f]
}

var errDead = errors.New("the process is dead")

// stepped is a process's way to bucket and log. Each request is a step; one of them has a fate.
type stepped struct {
	*memory.Bucket
	mu    sync.Mutex
	taken []string
	at    int // the step with a fate, -1 for none
	fate  fate
	dead  bool
	kill  context.CancelFunc
}

func (s *stepped) step(name string, request func() error) error {
	s.mu.Lock()
	if s.dead {
		s.mu.Unlock()
		return errDead
	}
	met := len(s.taken) == s.at
	s.taken = append(s.taken, name)
	s.mu.Unlock()
	if !met {
		return request()
	}
	if s.fate == failsButPersisted || s.fate == diesAfter {
		_ = request()
	}
	if s.fate == diesBefore || s.fate == diesAfter {
		s.mu.Lock()
		s.dead = true
		s.mu.Unlock()
		s.kill()
		return errDead
	}
	return errStorm
}

func stepName(op memory.Op, key string) string {
	folder, _, _ := strings.Cut(strings.TrimPrefix(key, "logplane/"), "/")
	return fmt.Sprintf("%s %s", op, folder)
}

func (s *stepped) Get(ctx context.Context, key string) (body []byte, etag string, err error) {
	err = s.step(stepName(memory.OpGet, key), func() error { body, etag, err = s.Bucket.Get(ctx, key); return err })
	return body, etag, err
}

func (s *stepped) GetRange(ctx context.Context, key string, offset, length int64) (b []byte, err error) {
	err = s.step(stepName(memory.OpGetRange, key), func() error { b, err = s.Bucket.GetRange(ctx, key, offset, length); return err })
	return b, err
}

func (s *stepped) Create(ctx context.Context, key string, body []byte) (etag string, err error) {
	err = s.step(stepName(memory.OpCreate, key), func() error { etag, err = s.Bucket.Create(ctx, key, body); return err })
	return etag, err
}

func (s *stepped) Replace(ctx context.Context, key string, body []byte, old string) (etag string, err error) {
	err = s.step(stepName(memory.OpReplace, key), func() error { etag, err = s.Bucket.Replace(ctx, key, body, old); return err })
	return etag, err
}

func (s *stepped) Delete(ctx context.Context, key string) error {
	return s.step(stepName(memory.OpDelete, key), func() error { return s.Bucket.Delete(ctx, key) })
}

func (s *stepped) List(ctx context.Context, prefix string, yield func(bucket.Attributes) error) error {
	return s.step("list", func() error { return s.Bucket.List(ctx, prefix, yield) })
}

// crashScene is something that a projector does, in a cell where all of its steps are met.
type crashScene struct {
	name   string
	config func(*Config)
	// before is done in good weather, act in bad.
	before, act func(ctx context.Context, p *Projection) error
}

func nothing(context.Context, *Projection) error { return nil }

func commitOnly(ctx context.Context, p *Projection) error { _, err := p.Commit(ctx); return err }

func compactOnly(ctx context.Context, p *Projection) error {
	for {
		if more, err := p.Compact(ctx); err != nil || !more {
			return err
		}
	}
}

func collectOnly(ctx context.Context, p *Projection) error { _, err := p.Collect(ctx, 0); return err }

func retainAll(ctx context.Context, p *Projection) error {
	v, err := p.Latest(ctx)
	if err != nil {
		return err
	}
	return p.Retain(ctx, v.Applied()-3, v.Applied()-2)
}

var crashScenes = []crashScene{
	{"commit", func(c *Config) { c.InlineBytes = 100_000 }, nothing, commitOnly},
	{"spill", func(*Config) {}, nothing, commitOnly},
	{"spill and index", func(*Config) {}, nothing, func(ctx context.Context, p *Projection) error {
		return errors.Join(compactOnly(ctx, p), commitOnly(ctx, p))
	}},
	{"age and purge", func(c *Config) { c.Retention, c.LogRetention = 2, 1 }, nothing, commitOnly},
	{"retain and purge", func(*Config) {}, commitOnly, retainAll},
	{"compaction", func(*Config) {}, commitOnly, compactOnly},
	{"collection", func(*Config) {}, func(ctx context.Context, p *Projection) error {
		return errors.Join(commitOnly(ctx, p), retainAll(ctx, p), compactOnly(ctx, p))
	}, collectOnly},
	{"checkpoint", func(c *Config) { c.Checkpoints = []CheckpointRule{{Every: 1, Keep: time.Hour}} }, nothing, commitOnly},
	{"forgotten checkpoints", func(c *Config) {
		c.Checkpoints, c.History = []CheckpointRule{{Every: 1, Keep: 1}}, 1
	}, commitOnly, func(ctx context.Context, p *Projection) error {
		return errors.Join(commitOnly(ctx, p), compactOnly(ctx, p), collectOnly(ctx, p))
	}},
}

// run makes a cell, brings it to where the scene begins, and does the scene with a fate at one step.
func (scene *crashScene) run(t *testing.T, at int, f fate) (*random, *stepped) {
	config := func(c *Config) { c.InlineBytes = 1; scene.config(c) }
	r := newRandom(newCell(t, config), 1, 10)
	for range runsPerLevel {
		for range 3 {
			r.step()
		}
		require.NoError(t, commitOnly(r.ctx, r.Projection))
	}
	for range 4 {
		r.step()
	}
	require.NoError(t, scene.before(r.ctx, r.Projection))
	life, kill := context.WithCancel(r.ctx)
	defer kill()
	s := &stepped{Bucket: r.bucket, at: at, fate: f, kill: kill}
	p := r.over(s, config)
	p.purgeLog = func(ctx context.Context, upto Revision) error {
		return s.step("purge", func() error { return r.log.Purge(context.WithoutCancel(ctx), upto) })
	}
	err := scene.act(life, p)
	if at < 0 {
		require.NoError(t, err)
	}
	if len(s.taken) > at && !s.dead { // the process goes on
		require.NoError(t, scene.act(r.ctx, p))
	}
	return r, s
}

// readable requires that every revision from the floor to the head is as the model has it, for one who knows nothing.
func (r *random) readable(config func(*Config)) *Projection {
	p := r.over(r.bucket, config)
	v, err := p.Latest(r.ctx)
	require.NoError(r.t, err)
	require.GreaterOrEqual(r.t, v.Revision(), r.head, "an acknowledged event is missing")
	for at := v.Floor(); at <= v.Revision(); at++ {
		got, err := state(r.ctx, v, at)
		require.NoError(r.t, err)
		require.Equal(r.t, r.model.states[min(int(at), len(r.model.states)-1)], got, "at %d", at)
	}
	r.checkEvents(r.ctx, p, v.Floor(), v.Revision())
	requireClean(r.t, p)
	return p
}

// Every step of what a projector does fails, fails but persists, or is its process's last (invariant 6): the cell opens,
// no acknowledged event is missing, the check finds nothing, and the next projector goes on and leaves no
// garbage. The steps are those that a run in good weather takes.
func TestCrashTable(t *testing.T) {
	quiet(t)
	for _, scene := range crashScenes {
		t.Run(scene.name, func(t *testing.T) {
			t.Parallel()
			_, clean := scene.run(t, -1, fails)
			t.Logf("%d steps: %s", len(clean.taken), strings.Join(clean.taken, ", "))
			stride := 1
			if testing.Short() {
				stride = 3
			}
			for at := 0; at < len(clean.taken); at += stride {
				for f := range fates {
					t.Run(fmt.Sprintf("%s %d %s", strings.ReplaceAll(clean.taken[at], "/", "_"), at, f), func(t *testing.T) {
						config := func(c *Config) { c.InlineBytes = 1; scene.config(c) }
						r, _ := scene.run(t, at, f)
						p := r.readable(config)
						for range 3 {
							r.step()
						}
						require.NoError(t, commitOnly(r.ctx, p))
						require.NoError(t, compactOnly(r.ctx, p))
						require.NoError(t, collectOnly(r.ctx, p))
						p = r.readable(config)
						needed, err := p.needed(r.ctx, p.Current().snap.root)
						require.NoError(t, err)
						for key := range keysOf(t, r.cell) {
							require.True(t, key == r.rootKey() || needed[key], "%s is garbage", key)
						}
					})
				}
			}
		})
	}
}
