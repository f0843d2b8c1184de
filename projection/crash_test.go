package projection

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// fate is the outcome of one step.
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

// stepped is the access of one process to bucket and log. Each request is a step; one of them has a fate.
type stepped struct {
	*memory.Bucket
	mu    sync.Mutex
	taken []string
	at    int // the step with a fate; -1 for none
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

func (s *stepped) Copy(ctx context.Context, from, to string) error {
	return s.step(stepName(memory.OpCopy, to), func() error { return s.Bucket.Copy(ctx, from, to) })
}

func (s *stepped) Delete(ctx context.Context, key string) error {
	return s.step(stepName(memory.OpDelete, key), func() error { return s.Bucket.Delete(ctx, key) })
}

func (s *stepped) List(ctx context.Context, prefix string, yield func(bucket.Attributes) error) error {
	return s.step("list", func() error { return s.Bucket.List(ctx, prefix, yield) })
}

// crashScene is an action of a projector or an operator, in a cell that makes the action take all of its steps.
type crashScene struct {
	name   string
	config func(*Config)
	// before runs without faults, act with them.
	before, act func(ctx context.Context, p *Projection) error
	// fresh: nothing was committed before.
	fresh bool
	// indexed: footers go to idx objects at once. joins: enough event segments were committed to join some. pages: the
	// root lists few event segments, and a page lists others.
	indexed, joins, pages bool
	// fence: the scene ends the epoch of every process. Then the operator fences again, in a new process, until the
	// cell opens.
	fence bool
}

func nothing(context.Context, *Projection) error { return nil }

func plain(*Config) {}

func commitOnly(ctx context.Context, p *Projection) error { _, err := p.Commit(ctx); return err }

func compactOnly(ctx context.Context, p *Projection) error {
	for {
		if more, err := p.compactOrJoin(ctx); err != nil || !more {
			return err
		}
	}
}

func collectOnly(ctx context.Context, p *Projection) error { _, err := p.Collect(ctx, 0); return err }

func commitAndCollect(ctx context.Context, p *Projection) error {
	return errors.Join(commitOnly(ctx, p), collectOnly(ctx, p))
}

func retainAll(ctx context.Context, p *Projection) error {
	v, err := p.Latest(ctx)
	if err != nil {
		return err
	}
	return p.Retain(ctx, v.Applied()-3, v.Applied()-2)
}

// compactAgain is a compaction during which another process collects other garbage. So the outputs of the compaction
// are written again.
func compactAgain(ctx context.Context, p *Projection) error {
	v, err := p.Latest(ctx)
	if err != nil {
		return err
	}
	m := v.choose()
	if m == nil {
		return nil
	}
	out, err := p.merge(ctx, m)
	if err != nil {
		return err
	}
	if err := p.beginGeneration(ctx); err != nil {
		return err
	}
	return out.commit(ctx)
}

func fenceIt(ctx context.Context, p *Projection) error {
	plan, err := p.PlanFence(ctx, 3*eventlog.FenceGap)
	if err != nil {
		return err
	}
	return p.Fence(ctx, plan)
}

var crashScenes = []crashScene{
	{name: "first commit", config: plain, before: nothing, act: commitOnly, fresh: true},
	{name: "commit", config: func(c *Config) { c.InlineBytes = 100_000 }, before: nothing, act: commitOnly},
	{name: "spill", config: plain, before: nothing, act: commitOnly},
	{name: "compaction and spill", config: plain, before: nothing, act: func(ctx context.Context, p *Projection) error {
		return errors.Join(compactOnly(ctx, p), commitOnly(ctx, p))
	}},
	{name: "index", config: plain, before: nothing, act: commitAndCollect, indexed: true},
	{name: "age and purge", config: func(c *Config) { c.Retention, c.LogRetention = 2, 1 }, before: nothing, act: commitOnly},
	{name: "retain and purge", config: plain, before: commitOnly, act: retainAll},
	{name: "compaction", config: plain, before: commitOnly, act: compactOnly},
	{name: "join", config: archived, before: func(ctx context.Context, p *Projection) error {
		return errors.Join(commitOnly(ctx, p), retainAll(ctx, p))
	}, act: compactOnly, indexed: true, joins: true, pages: true},
	{name: "renewal", config: plain, before: commitOnly, act: compactAgain},
	{name: "collection", config: plain, before: func(ctx context.Context, p *Projection) error {
		return errors.Join(commitOnly(ctx, p), retainAll(ctx, p), compactOnly(ctx, p))
	}, act: collectOnly},
	{name: "checkpoint", config: func(c *Config) { c.Checkpoints = []CheckpointRule{{Every: 1, Keep: time.Hour}} }, before: nothing, act: commitOnly},
	{name: "forgotten checkpoints", config: func(c *Config) {
		c.Checkpoints, c.History = []CheckpointRule{{Every: 1, Keep: 1}}, 1
	}, before: commitOnly, act: func(ctx context.Context, p *Projection) error {
		return errors.Join(commitOnly(ctx, p), compactOnly(ctx, p), collectOnly(ctx, p))
	}},
	{name: "forget", config: func(c *Config) {
		c.Checkpoints, c.History = []CheckpointRule{{Every: 1, Keep: time.Hour}}, time.Hour
	}, before: func(ctx context.Context, p *Projection) error {
		return errors.Join(retainAll(ctx, p), compactOnly(ctx, p))
	}, act: func(ctx context.Context, p *Projection) error {
		_, err := p.Forget(ctx, []string{podKey("n00").RowKey(), podKey("n01").RowKey()}, 0)
		return err
	}, indexed: true, pages: true},
	{name: "trim", config: func(c *Config) {
		c.Checkpoints, c.History = []CheckpointRule{{Every: 1, Keep: time.Hour}}, time.Hour
		c.HistoryRules = []HistoryRule{{Prefix: "/pods"}}
	}, before: func(ctx context.Context, p *Projection) error {
		return errors.Join(commitOnly(ctx, p), retainAll(ctx, p))
	}, act: func(ctx context.Context, p *Projection) error {
		if _, err := p.Latest(ctx); err != nil {
			return err
		}
		_, err := p.Trim(ctx)
		return err
	}, indexed: true},
	{name: "fence", config: plain, before: nothing, act: fenceIt, fence: true},
}

func (scene *crashScene) set(c *Config) { c.InlineBytes = 1; scene.config(c) }

func (scene *crashScene) over(r *random, b bucket.Bucket) *Projection {
	p := r.over(b, scene.set)
	if scene.indexed {
		p.rootFooters = 0
	}
	if scene.pages {
		p.manyEvents = 5
	}
	return p
}

// run makes a cell, brings it to the beginning of the scene, and runs the scene with a fate at one step.
func (scene *crashScene) run(t *testing.T, at int, f fate) (*random, *stepped) {
	r := newRandom(newCell(t), 1, 10)
	r.Projection = scene.over(r, r.bucket)
	commits := runsPerLevel
	if scene.joins {
		commits = joinAtLeast + 4
	}
	for range commits {
		for range 3 {
			r.step()
		}
		if !scene.fresh {
			require.NoError(t, commitOnly(r.ctx, r.Projection))
		}
	}
	for range 4 {
		r.step()
	}
	require.NoError(t, scene.before(r.ctx, r.Projection))
	life, kill := context.WithCancel(r.ctx)
	defer kill()
	s := &stepped{Bucket: r.bucket, at: at, fate: f, kill: kill}
	p := scene.over(r, s)
	p.purgeLog = func(ctx context.Context, upto Revision) error {
		return s.step("purge", func() error { return r.log.Purge(context.WithoutCancel(ctx), upto) })
	}
	p.fillLog = func(ctx context.Context) (last Revision, err error) {
		err = s.step("fill", func() error { last = r.fill(); return nil })
		return last, err
	}
	p.fenceLog = func(ctx context.Context, to Revision) error {
		return s.step("fence", func() error { return r.log.Fence(context.WithoutCancel(ctx), to) })
	}
	err := scene.act(life, p)
	if at < 0 {
		require.NoError(t, err)
		return r, s
	}
	if scene.fence {
		r.open(scene)
	} else if !s.dead { // the process continues
		require.NoError(t, scene.act(r.ctx, p))
	}
	return r, s
}

// open opens the cell again after an attempt to fence it, as an operator does.
func (r *random) open(scene *crashScene) {
	for try := range Revision(5) {
		r.log = eventlogtest.Open(r.t, eventlog.Config{Conn: r.conn, InMemory: true})
		r.Projection = scene.over(r, r.bucket)
		_, err := r.Latest(r.ctx)
		if err == nil {
			return
		}
		require.ErrorIs(r.t, err, ErrHole)
		plan, err := r.PlanFence(r.ctx, (5+2*try)*eventlog.FenceGap)
		require.NoError(r.t, err)
		require.NoError(r.t, r.Fence(r.ctx, plan))
	}
	require.Fail(r.t, "the cell does not open")
}

// readable requires that a new process reads every revision from the floor to the head as in the model.
func (r *random) readable(config func(*Config)) *Projection {
	p := r.over(r.bucket, config)
	v, err := p.Latest(r.ctx)
	require.NoError(r.t, err)
	require.GreaterOrEqual(r.t, v.Revision(), r.head, "an acknowledged event is missing")
	for at := v.Floor(); at <= v.Revision(); at++ {
		got, err := state(r.ctx, v, at)
		require.NoError(r.t, err)
		require.Equal(r.t, r.model.at(at), got, "at %d", at)
	}
	require.True(r.t, r.checkEvents(r.ctx, p, v.Floor(), v.Revision()))
	if v.snap.etag != "" { // the first commit may be missing
		requireClean(r.t, p)
	}
	return p
}

// TestCrashTable: every step of a projector fails, fails but persists, or is the last of its process (invariant 6).
// Afterwards the cell always opens, no acknowledged event is missing, and the check finds nothing. The next projector
// continues the work and leaves no garbage. A run without faults shows which steps there are.
func TestCrashTable(t *testing.T) {
	quiet(t)
	for _, scene := range crashScenes {
		t.Run(scene.name, func(t *testing.T) {
			t.Parallel()
			_, clean := scene.run(t, -1, fails)
			t.Logf("%d steps: %s", len(clean.taken), strings.Join(clean.taken, ", "))
			stride := eventlogtest.Slowdown
			if testing.Short() {
				stride = 24
			}
			for at := 0; at < len(clean.taken); at += stride {
				for f := range fates {
					t.Run(fmt.Sprintf("%s %d %s", strings.ReplaceAll(clean.taken[at], "/", "_"), at, f), func(t *testing.T) {
						r, _ := scene.run(t, at, f)
						scene.goOn(t, r)
					})
				}
			}
		})
	}
}

// goOn requires that no event is missing, also after the cell's next writes and jobs, and that these leave no garbage.
func (scene *crashScene) goOn(t *testing.T, r *random) {
	p := r.readable(scene.set)
	for range 3 {
		r.step()
	}
	require.NoError(t, commitOnly(r.ctx, p))
	require.NoError(t, compactOnly(r.ctx, p))
	require.NoError(t, collectOnly(r.ctx, p))
	p = r.readable(scene.set)
	needed, err := p.needed(r.ctx, p.Current().snap.root, nil)
	require.NoError(t, err)
	for key := range keysOf(t, r.cell) {
		require.True(t, key == r.rootKey() || needed.has(key), "%s is garbage", key)
	}
}

// TestTheCrashTableIsWhole: the scenes take every step that the code has. They write every kind of object that the code
// counts, and create and delete objects in every folder that the code collects.
func TestTheCrashTableIsWhole(t *testing.T) {
	quiet(t)
	before := countWritings()
	taken := map[string]bool{}
	for _, scene := range crashScenes {
		_, s := scene.run(t, -1, fails)
		for _, step := range s.taken {
			taken[step] = true
		}
	}
	wanted := []string{"create root", "get root", "replace root", "list", "purge", "fence"}
	for folder := range collected {
		wanted = append(wanted, "create "+folder, "delete "+folder)
	}
	for _, step := range wanted {
		require.True(t, taken[step], "no scene takes the step '%s'", step)
	}
	after := countWritings()
	require.Len(t, after, len(writings), "what is written is in the list of writings")
	for _, what := range writings {
		require.Greater(t, after[what], before[what], "no scene writes '%s'", what)
	}
}

// countWritings is the number of objects written so far, by kind.
func countWritings() map[string]float64 {
	collect, counted := make(chan prometheus.Metric, 100), map[string]float64{}
	writes.Collect(collect)
	close(collect)
	for m := range collect {
		var out dto.Metric
		if err := m.Write(&out); err != nil {
			panic(err) // it is a counter that was just read
		}
		counted[out.GetLabel()[0].GetValue()] = out.GetCounter().GetValue()
	}
	return counted
}
