package projection

import (
	crand "crypto/rand"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/cache"
)

// TestCheckpointsAreKeptByRule: there is one checkpoint an hour for a day, and one a day for a month.
func TestCheckpointsAreKeptByRule(t *testing.T) {
	hour, day := int64(time.Hour), int64(24*time.Hour)
	var marks []checkpoint
	for h := range int64(24 * 60) {
		clock := h*hour + 5
		marks = kept(marks, clock, DefaultCheckpoints, nil)
		if due(marks, clock, DefaultCheckpoints) {
			marks = append(marks, checkpoint{Revision: Revision(h), Time: clock, Key: fmt.Sprint(h)})
		}
	}
	last := marks[len(marks)-1].Time
	hourly, daily := 0, 0
	for i, c := range marks {
		if last-c.Time < day {
			hourly++
		}
		if i == 0 || marks[i-1].Time/day != c.Time/day {
			daily++
		}
	}
	require.Equal(t, 24, hourly)
	require.Equal(t, 30, daily)
	require.LessOrEqual(t, len(marks), 24+31)
	require.Equal(t, "3", kept([]checkpoint{{Key: "3", Revision: 3}, {Key: "4", Revision: 4}}, 100*day, DefaultCheckpoints, []Revision{3})[0].Key)
}

// TestTheArchiveAgesByLogTime: a wrong setting cannot discard an archive at once, and there is no archive unless it is
// configured.
func TestTheArchiveAgesByLogTime(t *testing.T) {
	with := func(history, retention time.Duration) *Projection {
		return &Projection{config: Config{History: history, Retention: retention}}
	}
	at := func(p *Projection, r root, after time.Duration) *root {
		r.AppliedTime = r.Clock + int64(after)
		p.age(&r, time.Now())
		return &r
	}
	start := root{Clock: int64(999 * time.Hour)}
	r := at(with(24*time.Hour, time.Hour), start, time.Hour)
	require.EqualValues(t, 976*time.Hour, r.Archive)
	r = at(with(24*time.Hour, time.Hour), *r, time.Hour)
	require.EqualValues(t, 977*time.Hour, r.Archive)
	r = at(with(0, time.Hour), *r, time.Minute)
	require.EqualValues(t, 977*time.Hour+2*time.Minute, r.Archive)
	r = at(with(0, 0), *r, time.Hour)
	require.EqualValues(t, 977*time.Hour+2*time.Minute, r.Archive)
	for range 30 {
		r = at(with(0, time.Hour), *r, time.Hour)
	}
	require.Equal(t, r.Horizon, r.Archive)
}

// TestThePastIsExact: every revision that can be read from a checkpoint, the segments above the checkpoint or archived
// events is exact, and every other revision has expired. Both hold after compactions, collections and purges, with void
// events and barriers, and for lists, gets and times.
func TestThePastIsExact(t *testing.T) {
	quiet(t)
	for seed := range seeds(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			archive := seed%2 == 0
			config := func(c *Config) {
				c.InlineBytes = []int{1, 600, 3000}[seed%3]
				c.Checkpoints = []CheckpointRule{{Every: 20 * time.Millisecond, Keep: time.Hour}}
				if archive {
					c.History = time.Hour
				}
			}
			r := newRandom(newCell(t, config), 50+seed, 20)
			r.Projection = r.over(lax{r.bucket}, config)
			times := map[Revision]time.Time{}
			r.live(60, time.Millisecond, func(i int) {
				if i%3 == 0 {
					r.tend(r.Projection)
				}
			})
			v := r.latest()
			require.NoError(t, r.Retain(r.ctx, v.Applied()-5, v.Applied()-5))
			segments := len(r.latest().snap.root.Events)
			r.manyEvents = 1
			r.compactAll()
			if archive && seed%3 == 0 {
				require.LessOrEqual(t, len(r.latest().snap.root.Events), segments/joinAtLeast+2*joinAtLeast, "joined")
				require.Greater(t, segments, 3*joinAtLeast)
			}
			_, err := r.Collect(r.ctx, 0)
			require.NoError(t, err)
			v = r.latest()
			require.Greater(t, len(v.snap.root.Checkpoints), 3)
			p := r.over(r.bucket, config)
			covered, expired := 0, 0
			for at := Revision(0); at <= v.Revision(); at++ {
				past, err := p.at(r.ctx, at)
				if err != nil {
					require.ErrorIs(t, err, ErrExpired)
					require.False(t, archive, "revision %d", at)
					expired++
					continue
				}
				covered++
				want := r.model.at(at)
				got, err := state(r.ctx, past, at)
				require.NoError(t, err)
				require.Equal(t, want, got, "at %d", at)
				name := r.names[r.IntN(len(r.names))]
				row, ok, err := p.GetAt(r.ctx, podKey(name).RowKey(), at)
				require.NoError(t, err)
				value, live := want[name]
				require.Equal(t, live, ok)
				if ok {
					require.Equal(t, value, fmt.Sprintf("%s@%d", row.Value, row.Revision))
					times[row.Revision] = row.Time
				}
			}
			t.Logf("%d covered, %d expired, %d checkpoints", covered, expired, len(v.snap.root.Checkpoints))
			require.Greater(t, covered, 10)
			if archive {
				for rev, at := range times {
					found, err := p.RevisionAt(r.ctx, at)
					require.NoError(t, err)
					got, err := p.at(r.ctx, found)
					require.NoError(t, err)
					require.GreaterOrEqual(t, found, rev)
					s, err := state(r.ctx, got, found)
					require.NoError(t, err)
					require.Equal(t, r.model.at(found), s)
				}
				name := r.names[rand.IntN(len(r.names))]
				rows, err := p.History(r.ctx, podKey(name).RowKey())
				require.NoError(t, err)
				requireVersions(t, p, podKey(name).RowKey(), rows, []int{1, 2, math.MaxInt}[seed%3])
				versions := 0
				for _, e := range r.model.events {
					if len(e) > 4 && e[2:5] == name {
						versions++
					}
				}
				valid := 0
				for _, row := range rows {
					if !row.Void {
						valid++
					}
				}
				require.Equal(t, versions, valid, name)
			}
			requireClean(t, p)
		})
	}
}

// requireVersions reads all versions of a key in pages, each of which ends after this many looks. The versions must be
// the history without void events.
func requireVersions(t *testing.T, p *Projection, key string, history []Row, looks int) {
	var want, got []Revision
	for _, r := range history {
		if !r.Void {
			want = append(want, r.Revision)
		}
	}
	for below := ^Revision(0); below > 0; {
		looked := 0
		rows, next, err := p.Versions(t.Context(), key, below, 3, func(Revision, int) bool {
			looked++
			return looked < looks
		})
		require.NoError(t, err)
		require.LessOrEqual(t, len(rows), 3)
		require.Less(t, next, below)
		for _, r := range rows {
			got = append(got, r.Revision)
		}
		below = next
	}
	require.Equal(t, want, got, "%s, %d looks", key, looks)
}

// TestVersionsHoldSomeMiB: large versions come a few at a time, wherever they are kept.
func TestVersionsHoldSomeMiB(t *testing.T) {
	const size = 1 << 19
	c := newCell(t, func(c *Config) { c.Retention, c.History = time.Millisecond, time.Hour })
	var want []Revision
	for i := range 24 {
		value := make([]byte, size)
		_, _ = crand.Read(value)
		want = append([]Revision{c.put("a", string(value))}, want...)
		if i%8 == 7 {
			time.Sleep(2 * time.Millisecond)
			c.commit()
		}
	}
	var got []Revision
	for below := ^Revision(0); below > 0; {
		looked := 0
		rows, next, err := c.Versions(c.ctx, podKey("a").RowKey(), below, 500, func(_ Revision, bytes int) bool {
			looked += bytes
			return true
		})
		require.GreaterOrEqual(t, looked, len(rows)*size)
		require.NoError(t, err)
		require.LessOrEqual(t, len(rows), versionBytes/size)
		for _, r := range rows {
			got = append(got, r.Revision)
		}
		below = next
	}
	require.Equal(t, want, got)
}

// TestVersionsHoldThemselves: small versions that lie far apart are returned as copies: the copies do not keep in
// memory the blocks from which the versions were read.
func TestVersionsHoldThemselves(t *testing.T) {
	const versions = 64
	c := newCell(t, archived, func(c *Config) { c.Budget = cache.NewBudget(1 << 20) })
	c.put("b", "")
	c.commit() // the first commit makes a checkpoint
	for range versions {
		c.put("a", crand.Text())
		noise := make([]byte, 60<<10) // fills a block together with the version
		_, _ = crand.Read(noise)
		c.put("b", string(noise))
	}
	c.expire()
	held := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	// Memory that earlier tests have left may be freed meanwhile.
	eventlogtest.Eventually(t, "the versions keep no blocks", func() bool {
		rows, _, err := c.Versions(c.ctx, podKey("a").RowKey(), ^Revision(0), versions, nil)
		require.NoError(t, err)
		require.Len(t, rows, versions)
		with := held()
		runtime.KeepAlive(rows)
		return with < held()+1<<20
	})
}

// TestVersionsLookSomeEventsFar: if no version names the previous one, as for an object that was gone for long,
// archived events are read in steps. The events and the bytes of a step are bounded.
func TestVersionsLookSomeEventsFar(t *testing.T) {
	for name, size := range map[string]int{"many": 0, "large": 1 << 19} {
		t.Run(name, func(t *testing.T) {
			c := newCell(t, archived)
			c.put("b", "")
			c.commit() // the first commit makes a checkpoint
			want := []Revision{c.put("a", "1")}
			want = append([]Revision{c.remove("a")}, want...)
			others := 3 * gapEvents
			if size > 0 {
				others = 6 * gapBytes / size
			}
			for range others {
				c.put("b", strings.Repeat("x", size))
			}
			want = append([]Revision{c.put("a", "2")}, want...)
			c.expire()
			var got []Revision
			calls := 0
			for below := ^Revision(0); below > 0; calls++ {
				events, bytes := 0, 0
				rows, next, err := c.Versions(c.ctx, podKey("a").RowKey(), below, 10, func(_ Revision, n int) bool {
					events, bytes = events+1, bytes+n
					return events < 10
				})
				require.NoError(t, err)
				require.LessOrEqual(t, events, 2*gapEvents)
				require.LessOrEqual(t, bytes, 4*gapBytes)
				for _, r := range rows {
					got = append(got, r.Revision)
				}
				below = next
			}
			require.Equal(t, want, got)
			require.Greater(t, calls, 2)
		})
	}
}

// TestForgottenCheckpointsAreCollected: objects that a checkpoint pins are collected once no rule wants the checkpoint
// any more.
func TestForgottenCheckpointsAreCollected(t *testing.T) {
	rules := []CheckpointRule{{Every: time.Millisecond, Keep: time.Hour}}
	config := func(c *Config) { c.InlineBytes, c.Checkpoints = 1, rules }
	c := newCell(t, config)
	want := map[string]string{}
	for i := range runsPerLevel {
		name := fmt.Sprint("n", i)
		want[name] = fmt.Sprintf("x@%d", c.put(name, "x"))
		c.commit()
		time.Sleep(2 * time.Millisecond)
	}
	v := c.latest()
	require.NoError(t, c.Retain(c.ctx, v.Applied(), v.Applied()))
	_, err := c.Compact(c.ctx)
	require.NoError(t, err)
	n, err := c.Collect(c.ctx, 0)
	require.NoError(t, err)
	require.Zero(t, n, "checkpoints pin all")
	past, err := c.at(c.ctx, 1)
	require.NoError(t, err)
	got, err := state(c.ctx, past, 1)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"n0": "x@1"}, got)

	rules = []CheckpointRule{{Every: time.Hour, Keep: time.Nanosecond}}
	c.Projection = c.another(config)
	want["last"] = fmt.Sprintf("x@%d", c.put("last", "x"))
	c.commit()
	n, err = c.Collect(c.ctx, 0)
	require.NoError(t, err)
	require.Greater(t, n, 2*runsPerLevel)
	_, err = c.at(c.ctx, 1)
	require.ErrorIs(t, err, ErrExpired)
	c.require(want)
	requireClean(t, c.another())
}

// TestThePastAcrossAFence: moments before a fence can be read like those after it: the archive continues across the
// fence.
func TestThePastAcrossAFence(t *testing.T) {
	for _, inline := range []int{1, 0} {
		config := func(c *Config) { c.InlineBytes, c.History, c.Retention = inline, time.Hour, time.Minute }
		c := newCell(t, config)
		want := map[Revision]map[string]string{}
		now := map[string]string{}
		put := func(name, value string) {
			rev := c.put(name, value)
			now[name] = fmt.Sprintf("%s@%d", value, rev)
			want[rev] = maps.Clone(now)
			c.commit()
		}
		for i := range 4 {
			put(fmt.Sprint("n", i%3), "before")
		}
		operator := c.another(config)
		plan, err := operator.PlanFence(c.ctx, 0)
		require.NoError(t, err)
		require.NoError(t, operator.Fence(c.ctx, plan))
		c.log = eventlogtest.Open(t, eventlog.Config{Conn: c.conn, InMemory: true})
		c.Projection = c.another(config)
		c.latest() // a writer has a view, which has the epoch
		want[plan.To-1] = maps.Clone(now)
		want[plan.To-1000] = maps.Clone(now)
		for i := range 4 {
			put(fmt.Sprint("n", i%3), "after")
		}
		require.NoError(t, c.Retain(c.ctx, c.latest().Applied(), c.latest().Applied()))
		_, err = c.Collect(c.ctx, 0)
		require.NoError(t, err)
		p := c.another(config)
		for rev, want := range want {
			v, err := p.at(c.ctx, rev)
			require.NoError(t, err)
			got, err := state(c.ctx, v, rev)
			require.NoError(t, err)
			require.Equal(t, want, got, "at %d", rev)
		}
		requireClean(t, p)
	}
}
