package projection

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// worn is a bucket in which one bit of an object has flipped. worn counts how often the object was read.
type worn struct {
	lax
	key  string
	read atomic.Int64
}

func (b *worn) flip(key string, body []byte, err error) ([]byte, error) {
	if key == b.key && len(body) > 64 {
		b.read.Add(1)
		body = slices.Clone(body)
		body[len(body)/2] ^= 1
	}
	return body, err
}

func (b *worn) Get(ctx context.Context, key string) ([]byte, string, error) {
	body, etag, err := b.lax.Get(ctx, key)
	body, err = b.flip(key, body, err)
	return body, etag, err
}

func (b *worn) GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	body, err := b.lax.GetRange(ctx, key, offset, length)
	return b.flip(key, body, err)
}

// garbageOf are the objects that no root needs.
func (c *cell) garbageOf() []string { return c.garbageFor(lax{c.bucket}) }

// garbageFor is garbageOf for a process that sees the bucket b.
func (c *cell) garbageFor(b bucket.Bucket) []string {
	c.t.Helper()
	root := c.newest()
	needed, err := c.over(b).needed(c.ctx, root, nil)
	require.NoError(c.t, err)
	var unnamed []string
	for _, key := range slices.Sorted(maps.Keys(keysOf(c.t, c))) {
		if key != c.rootKey() && !needed.has(key) {
			unnamed = append(unnamed, key)
		}
	}
	return unnamed
}

func tending(c *Config) { c.InlineBytes, c.Grace = 1, 1 }

// withBase is a cell with a base of several parts, and enough runs above it to be compacted. The runs touch all parts.
func withBase(t *testing.T) *cell {
	c := newCell(t, tending)
	for i := range 3 * runsPerLevel {
		c.put(fmt.Sprintf("n%02d", i), incompressible(1<<20+i))
	}
	c.commit()
	require.NoError(t, c.flatten(c.ctx))
	for i := range runsPerLevel {
		c.put(fmt.Sprintf("n%02d", 3*i), incompressible(1<<20+100+i))
		c.commit()
	}
	_, err := c.Collect(c.ctx, 0)
	require.NoError(t, err)
	_, base := splitBase(c.latest().snap.runs)
	require.Greater(t, len(base), 2)
	require.Empty(t, c.garbageOf())
	return c
}

// TestADamagedSegmentStopsOneJob: a damaged or lost segment stops only its own compaction. The objects that this
// compaction wrote are deleted again, other runs are merged, garbage is collected, and the error names the segment.
// Each attempt runs in a new process.
func TestADamagedSegmentStopsOneJob(t *testing.T) {
	quiet(t)
	for _, how := range []string{"damaged", "lost"} {
		t.Run(how, func(t *testing.T) {
			c := withBase(t)
			_, base := splitBase(c.latest().snap.runs)
			b := &worn{lax: lax{c.bucket}}
			last, want := base[len(base)-1].ref.Key, ErrDamaged
			if how == "damaged" {
				b.key = last
			} else {
				require.NoError(t, c.bucket.Delete(c.ctx, last))
				want = bucket.ErrNotFound
			}
			failures := 0
			for range 3 * runsPerLevel {
				p := c.over(b, tending)
				crashed := p.segmentKey("seg/0", 1, 1)
				_, err := c.bucket.Create(c.ctx, crashed, []byte("garbage of a crash"))
				require.NoError(t, err)
				tick := c.put("z", incompressible(1<<20))
				applied, _, err := p.Once(c.ctx)
				if err != nil {
					require.ErrorIs(t, err, want)
					require.ErrorContains(t, err, last)
					failures++
				}
				require.Equal(t, tick, applied)
				require.Less(t, len(p.Current().snap.runs), 2*runsPerLevel)
				there := keysOf(t, c)
				require.False(t, there[crashed])
				for _, part := range base {
					delete(there, part.ref.Key)
				}
				for key := range there {
					require.NotContains(t, key, "seg/9/", "a part of a base that is not completed")
				}
			}
			require.Greater(t, failures, 2)
		})
	}
}

// TestFailedWorkBacksOff: a long-lived projector does the same as in TestADamagedSegmentStopsOneJob. For a while it
// avoids a damaged segment, and any job that has failed.
func TestFailedWorkBacksOff(t *testing.T) {
	quiet(t)
	c := newCell(t, tending)
	for range runsPerLevel {
		c.put("a", incompressible(1000))
		c.commit()
	}
	b := &worn{lax: lax{c.bucket}, key: c.latest().snap.root.Segments[3].Key}
	p := c.over(b, tending)
	ctx, stop := context.WithCancel(c.ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx, time.Millisecond) }()
	for i := range 40 {
		if i%10 == 0 {
			_, err := c.bucket.Create(c.ctx, p.segmentKey("seg/0", 1, 1), []byte("garbage of a crash"))
			require.NoError(t, err)
		}
		rev := c.put("tick", fmt.Sprint(i))
		eventlogtest.Eventually(t, "it is committed", func() bool { return c.newest().Applied >= rev })
	}
	for len(c.garbageOf()) > 0 {
		c.put("tick", "again")
	}
	require.Positive(t, b.read.Load())
	require.Less(t, b.read.Load(), int64(10), "reads of the damaged segment, in 40 commits and more")
	stop()
	require.NoError(t, <-ended)

	for range runsPerLevel {
		c.put("b", "above the damaged one")
		_, err := p.Commit(c.ctx)
		require.NoError(t, err)
	}
	done, err := c.over(b, tending).Compact(c.ctx)
	require.ErrorIs(t, err, ErrDamaged)
	require.True(t, done, "what is above it is merged")

	compact := p.jobs()[3]
	require.Equal(t, "compact", compact.name)
	for i := range 40 {
		compact.failures, compact.again = i, time.Time{}
		compact.do = func(context.Context) (bool, error) { return false, errStorm }
		_, err := p.work(c.ctx, compact)
		require.ErrorIs(t, err, errStorm)
		wait := time.Until(compact.again)
		require.LessOrEqual(t, wait, compact.most)
		require.Greater(t, wait, min(compact.pause<<min(i, 20), compact.most)/2-time.Minute)
	}
}

// TestOnceDoesWhatItCan: each job runs even if others fail, and the error joins all failures.
func TestOnceDoesWhatItCan(t *testing.T) {
	quiet(t)
	c := newCell(t, tending)
	for range runsPerLevel {
		c.put("a", "x")
		c.commit()
	}
	_, err := c.bucket.Create(c.ctx, c.segmentKey("seg/0", 1, 1), []byte("garbage of a crash"))
	require.NoError(t, err)
	p := c.over(lax{c.bucket}, tending)
	c.put("a", "y")
	events := fmt.Sprintf("%s/events/", p.config.Prefix)
	c.bucket.Inject(func(op memory.Op, key string) memory.Fault { // no commit can spill
		if op == memory.OpCreate && strings.HasPrefix(key, events) {
			return memory.Fails
		}
		return memory.Works
	})
	_, _, err = p.Once(c.ctx)
	require.ErrorIs(t, err, memory.ErrInjected)
	c.bucket.Inject(nil)
	require.Len(t, c.newest().Segments, 1, "it has compacted")
	_, _, err = p.Once(c.ctx)
	require.NoError(t, err)
	require.Empty(t, c.garbageOf(), "it has collected")
}

// stubborn is a bucket that accepts everything except the root. It may later write a root that it has refused.
type stubborn struct {
	lax
	refuses bool
	later   func()
}

func (b *stubborn) Replace(ctx context.Context, key string, body []byte, etag string) (string, error) {
	if b.refuses {
		b.later = func() { _, _ = b.lax.Replace(ctx, key, body, etag) }
		return "", errors.New("503 Slow Down")
	}
	return b.lax.Replace(ctx, key, body, etag)
}

// TestARootThatIsNotTaken: while the bucket refuses the root, the commit's objects are written once, however often the
// root is tried. The root decides in the end: objects that it names stay, and the others are deleted.
func TestARootThatIsNotTaken(t *testing.T) {
	quiet(t)
	for name, ends := range map[string]func(c *cell, b *stubborn){
		"taken at last": func(*cell, *stubborn) {},
		"taken after it was given up": func(_ *cell, b *stubborn) {
			b.later()
		},
		"overtaken": func(c *cell, _ *stubborn) { c.commit() },
		"taken late, and gone on from": func(c *cell, b *stubborn) {
			b.later()
			c.put("z", "theirs")
			c.commit()
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCell(t, tending)
			c.put("a", "1")
			c.commit()
			for i := range runsPerLevel {
				c.put(fmt.Sprint("n", i), "x")
			}
			b := &stubborn{lax: lax{c.bucket}, refuses: true}
			counted := bucket.Count(b)
			p := c.over(counted, tending)
			for i := range 2 {
				_, _, err := p.Once(c.ctx)
				require.ErrorContains(t, err, "503")
				require.EqualValues(t, 2, counted.Counts().Create, "rows and events, once")
				require.Zero(t, counted.Counts().Delete, "the root may be taken yet")
				c.put("more", fmt.Sprint(i))
			}
			ends(c, b)
			b.refuses = false
			_, err := p.Commit(c.ctx)
			require.NoError(t, err)
			require.Empty(t, c.garbageOf())
			v, err := p.Latest(c.ctx)
			require.NoError(t, err)
			require.Equal(t, v.Revision(), v.Applied())
			for _, reader := range []*Projection{p, c.another()} {
				got, err := state(c.ctx, must(reader.Latest(c.ctx)), v.Revision())
				require.NoError(t, err)
				require.Len(t, got, len(c.last))
			}
			requireClean(t, c.another())
		})
	}
}

// TestACommitThatFailsLeavesNothing: the objects of a failed commit are deleted, whichever object the commit could not
// write.
func TestACommitThatFailsLeavesNothing(t *testing.T) {
	quiet(t)
	for _, folder := range []string{"seg", "events", "ckpt", "idx"} {
		for _, fault := range []memory.Fault{memory.Fails, memory.FailsButPersisted} {
			t.Run(fmt.Sprint(folder, " ", fault), func(t *testing.T) {
				c := newCell(t, func(c *Config) {
					tending(c)
					c.Checkpoints = []CheckpointRule{{Every: 1, Keep: time.Hour}}
				})
				c.rootFooters = 0
				for i := range 3 {
					c.put("a", fmt.Sprint(i))
					c.commit()
				}
				_, err := c.Collect(c.ctx, 0)
				require.NoError(t, err)
				for i := range 3 {
					creates := 0
					c.bucket.Inject(func(op memory.Op, key string) memory.Fault {
						if op == memory.OpCreate {
							creates++
						}
						if op == memory.OpCreate && strings.HasPrefix(key, "logplane/"+folder) {
							return fault
						}
						return memory.Works
					})
					c.put("a", fmt.Sprint("again", i))
					_, err = c.Commit(c.ctx)
					require.ErrorIs(t, err, memory.ErrInjected)
					require.LessOrEqual(t, creates, 4, "rows, events, checkpoint and index, once")
					c.bucket.Inject(nil)
					require.Empty(t, c.garbageOf())
				}
				c.commit()
			})
		}
	}
}

// withCheckpoint is a cell with a checkpoint that pins objects that compactions have merged since.
func withCheckpoint(t *testing.T) *cell {
	c := newCell(t, func(c *Config) {
		tending(c)
		c.Checkpoints = []CheckpointRule{{Every: time.Hour, Keep: 24 * time.Hour}}
	})
	for i := range 2 * runsPerLevel {
		c.put("a", fmt.Sprint(i))
		c.commit()
		c.compactAll()
	}
	require.Len(t, c.newest().Checkpoints, 1)
	return c
}

// TestALostCheckpointIsDropped: a lost checkpoint pins nothing and is dropped.
func TestALostCheckpointIsDropped(t *testing.T) {
	quiet(t)
	c := withCheckpoint(t)
	require.NoError(t, c.bucket.Delete(c.ctx, c.newest().Checkpoints[0].Key))
	p := c.over(lax{c.bucket}, tending)
	_, _, err := p.Once(c.ctx)
	require.NoError(t, err)
	require.Empty(t, c.newest().Checkpoints)
	require.Empty(t, c.garbageOf())
	requireClean(t, p)
}

// TestADamagedCheckpointStopsNothing: a damaged checkpoint stays, with every object that it may name, until an operator
// drops it. Newer garbage is collected.
func TestADamagedCheckpointStopsNothing(t *testing.T) {
	quiet(t)
	c := withCheckpoint(t)
	damaged := c.newest().Checkpoints[0]
	pinned, err := c.checkpointed(c.ctx, damaged)
	require.NoError(t, err)
	b := &worn{lax: lax{c.bucket}, key: damaged.Key}
	p := c.over(b, tending)
	for i := range 3 * runsPerLevel {
		c.put("a", fmt.Sprint("later", i))
		_, _, err := p.Once(c.ctx)
		require.NoError(t, err)
	}
	_, _, err = p.Once(c.ctx) // collects the inputs of the last compaction
	require.NoError(t, err)
	require.Contains(t, c.newest().Checkpoints, damaged)
	there := keysOf(t, c)
	for key := range pinned.names() {
		require.True(t, key == "" || there[key], "%s may be pinned", key)
	}
	require.Empty(t, c.garbageFor(b))
	require.Empty(t, c.garbageOf(), "it pins all of the oldest segments")

	said := map[string]error{}
	require.NoError(t, p.Tending(c.ctx, func(job, _ string, problem error) { said[job] = problem }))
	require.ErrorContains(t, said["collect"], damaged.Key)
	var problems []error
	_, err = p.Verify(c.ctx, func(problem error) { problems = append(problems, problem) })
	require.NoError(t, err)
	require.Len(t, problems, 1)
	require.ErrorContains(t, problems[0], "--drop-checkpoint "+damaged.Key)
	_, err = p.Forget(c.ctx, []string{podKey("a").RowKey()}, 0)
	require.ErrorContains(t, err, "--drop-checkpoint "+damaged.Key, "it may have what is to be forgotten")

	require.ErrorIs(t, p.DropCheckpoint(c.ctx, "logplane/ckpt/other"), bucket.ErrNotFound)
	require.NoError(t, p.DropCheckpoint(c.ctx, damaged.Key))
	_, err = p.Forget(c.ctx, []string{podKey("a").RowKey()}, 0)
	require.NoError(t, err)
	require.Empty(t, c.garbageOf())
	requireClean(t, p)
}

// TestTrimPassesADamagedCheckpoint: a rule trims the checkpoints that can be read, and leaves the others as they are.
func TestTrimPassesADamagedCheckpoint(t *testing.T) {
	quiet(t)
	config := func(c *Config) {
		tending(c)
		c.Checkpoints, c.History = []CheckpointRule{{Every: 1, Keep: time.Hour}}, time.Hour
		c.HistoryRules = []HistoryRule{{Prefix: "/pods"}}
	}
	for _, how := range []string{"damaged", "lost"} {
		t.Run(how, func(t *testing.T) {
			c := newCell(t, config)
			for i := range 4 {
				c.put("a", fmt.Sprint(i))
				c.commit()
			}
			require.NoError(t, c.Retain(c.ctx, c.latest().Applied(), 0))
			b, first := &worn{lax: lax{c.bucket}}, c.newest().Checkpoints[1]
			if how == "damaged" {
				b.key = first.Key
			} else {
				require.NoError(t, c.bucket.Delete(c.ctx, first.Key))
			}
			p := c.over(b, config)
			trimmed, err := p.Trim(c.ctx)
			require.NoError(t, err)
			require.True(t, trimmed)
			require.Contains(t, c.newest().Checkpoints, first)
			_, err = p.Collect(c.ctx, 0)
			require.NoError(t, err)
			require.Equal(t, how == "damaged", slices.Contains(c.newest().Checkpoints, first))
		})
	}
}

// TestTrimAndCommitAgree: if a cell was idle for longer than its history, the next commit drops the trims of a past
// that nobody can read, and no later trim makes the same trims again.
func TestTrimAndCommitAgree(t *testing.T) {
	c := newCell(t, func(c *Config) {
		tending(c)
		c.History, c.Retention = 150*time.Millisecond, 30*time.Millisecond
		c.HistoryRules = []HistoryRule{{Prefix: "/leases", Keep: 100 * time.Millisecond}}
	})
	for i := range 10 {
		c.put("a", fmt.Sprint(i))
		c.commit()
	}
	time.Sleep(250 * time.Millisecond) // of log time
	trims, dropped := map[Revision]int{}, 0
	for i := range 60 {
		c.put("a", fmt.Sprint("later", i))
		before := c.newest().trimmedUpTo("/leases")
		c.commit()
		if before > 0 && c.newest().trimmedUpTo("/leases") == 0 {
			dropped++
		}
		trimmed, err := c.Trim(c.ctx)
		require.NoError(t, err)
		if trimmed {
			upto := c.newest().trimmedUpTo("/leases")
			require.Zero(t, trims[upto], "trimmed up to %d again", upto)
			trims[upto]++
		}
		time.Sleep(5 * time.Millisecond)
	}
	require.NotEmpty(t, trims)
}
