package projection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/filesystem"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
)

// rowsOf returns every live row of a view.
func rowsOf(t testing.TB, c *cell, v *View) map[string]Row {
	t.Helper()
	rows := map[string]Row{}
	for row, err := range v.Scan(c.ctx, "", "", v.Revision()) {
		require.NoError(t, err)
		rows[row.Key] = row
	}
	return rows
}

// opened is a restored cell with its own log, after Begin.
func (c *cell) opened(b bucket.Bucket, prefix string) *cell {
	c.t.Helper()
	fresh := &cell{t: c.t, ctx: c.ctx, conn: eventlogtest.Start(c.t), last: map[string]lastEvent{}}
	fresh.log = eventlogtest.Open(c.t, eventlog.Config{Conn: fresh.conn, InMemory: true})
	p, err := Open(Config{Log: fresh.log, Bucket: b, Prefix: prefix, Founded: true})
	require.NoError(c.t, err)
	first, err := p.Begin(c.ctx)
	require.NoError(c.t, err)
	require.NotZero(c.t, first)
	fresh.Projection = p
	return fresh
}

// TestRestoreIsExact: a cell is restored from its bucket at each revision: above the floor, at a checkpoint, between
// two, from the archive, and before there was an archive. The rows of the new cell are exactly the rows that were live
// at that revision.
func TestRestoreIsExact(t *testing.T) {
	quiet(t)
	for seed := range seeds(8) {
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
			r := newRandom(newCell(t, config), 70+seed, 20)
			r.Projection = r.over(lax{r.bucket}, config)
			r.live(40, time.Millisecond, func(i int) {
				if i%3 == 0 {
					r.tend(r.Projection)
				}
				if i%5 == 0 { // so that no checkpoint reaches far back
					v := r.latest()
					require.NoError(t, r.Retain(r.ctx, v.Applied(), v.Applied()))
				}
			})
			v := r.latest()
			require.NoError(t, r.Retain(r.ctx, v.Applied()-5, v.Applied()-5))
			_, err := r.Collect(r.ctx, 0)
			require.NoError(t, err)

			source, err := OpenSource(r.ctx, r.bucket, "logplane", nil)
			require.NoError(t, err)
			newest := source.Newest()
			var into bucket.Bucket // the source's own
			if seed%4 > 1 {
				into = memory.Strict(t)
			}
			restored, gaps := map[Revision]Restored{}, 0
			want := map[Revision]map[string]Row{}
			for at := Revision(0); at <= newest; at++ {
				done, err := source.Restore(r.ctx, at, into, fmt.Sprint("new/", at))
				if err != nil {
					require.ErrorIs(t, err, ErrExpired)
					_, err = r.at(r.ctx, at)
					require.ErrorIs(t, err, ErrExpired)
					require.False(t, archive, "revision %d", at)
					continue
				}
				past, err := r.at(r.ctx, at)
				require.NoError(t, err)
				restored[at], want[at] = done, rowsOf(t, r.cell, past)
				if past.past != nil && at > past.Applied() {
					gaps++
				}
				require.Equal(t, at, done.Revision)
				require.True(t, into == nil || done.Copied == 0, "two buckets")
				require.EqualValues(t, len(want[at]), done.Objects)
			}
			require.Greater(t, len(restored), 5) // the exact number and the kinds depend on the time that has passed
			require.True(t, into != nil || seed%3 != 0 || restored[newest].Copied > 0, "one bucket")
			t.Logf("%d of %d revisions were restored, %d of which from archived events", len(restored), newest, gaps)

			// The source is deleted.
			for key := range keysOf(t, r.cell) {
				if key != r.rootKey() {
					require.NoError(t, r.bucket.Delete(r.ctx, key))
				}
			}
			if into == nil {
				into = r.bucket
			}
			for at, done := range restored {
				copied, err := OpenSource(r.ctx, into, fmt.Sprint("new/", at), nil)
				require.NoError(t, err)
				v := viewOf(copied.newest)
				require.Equal(t, want[at], rowsOf(t, r.cell, v), "at %d", at)
				require.Equal(t, done.Next-1, v.Revision())
				require.Equal(t, v.Revision(), v.Floor())
			}
			at := newest - Revision(r.IntN(5))
			fresh := r.opened(into, fmt.Sprint("new/", at))
			require.Equal(t, want[at], rowsOf(t, r.cell, fresh.latest()))
			require.Equal(t, restored[at].Next, fresh.put("another", "1"))
			fresh.commit()
			requireClean(t, fresh.another(func(c *Config) { c.Bucket, c.Prefix = into, fmt.Sprint("new/", at) }))
			require.EqualValues(t, restored[at].Next, fresh.log.Epoch())
		})
	}
}

// TestRestoreOfAGapTakesLittleMemory: the events between two checkpoints may be more than a process may hold in memory.
func TestRestoreOfAGapTakesLittleMemory(t *testing.T) {
	const size, objects = 100 << 10, 200
	c := newCell(t, archived)
	c.put("a", "first")
	c.commit()
	want := map[string]string{}
	put := func(name, value string) {
		want[name] = fmt.Sprintf("%x@%d", xxhash.Sum64String(value), c.put(name, value))
	}
	c.put("gone", "soon")
	for i := range objects {
		put(fmt.Sprint("b", i), bulk(size))
		put(fmt.Sprint("b", i/2), bulk(size/10))
	}
	c.remove("gone")
	c.remove("a")
	at := c.commit()
	again := maps.Clone(want)
	c.put("last", "x")
	c.expire()
	source, err := OpenSource(c.ctx, c.bucket, "logplane", cache.NewBudget(1<<20))
	require.NoError(t, err)
	v, err := source.asOf(c.ctx, at)
	require.NoError(t, err)
	require.NotNil(t, v.past)
	_, err = state(c.ctx, v, at)
	require.ErrorIs(t, err, ErrTooMuch)
	for i, into := range []bucket.Bucket{nil, memory.Strict(t)} {
		done, err := source.Restore(c.ctx, at, into, "new")
		require.NoError(t, err)
		require.EqualValues(t, len(want), done.Objects)
		require.Equal(t, i == 0, done.Copied > 0)
		fresh := c.opened(cmp.Or(into, bucket.Bucket(c.bucket)), "new")
		for row, err := range fresh.latest().Scan(c.ctx, "", "", done.Next-1) {
			require.NoError(t, err)
			require.Equal(t, want[row.ID.Name], fmt.Sprintf("%x@%d", xxhash.Sum64(row.Value), row.Revision))
			delete(want, row.ID.Name)
		}
		require.Empty(t, want)
		if i == 0 {
			want = again
		}
	}
}

// TestARestoreThatBreaksOff: restores that stop after any request, in one bucket and between two, leave only garbage or
// the complete new cell. The next restore makes the cell, or finds the complete cell. No garbage outlives a collection,
// and the source is unchanged.
func TestARestoreThatBreaksOff(t *testing.T) {
	quiet(t)
	for _, apart := range []bool{false, true} {
		t.Run(fmt.Sprint("two buckets ", apart), func(t *testing.T) {
			r := newRandom(newCell(t, archived), 7, 10)
			r.Projection = r.another(archived, func(c *Config) { c.InlineBytes = 1 })
			for range 5 {
				for range 5 {
					r.step()
				}
				r.commit()
			}
			before := keysOf(t, r.cell)
			at := r.latest().Applied() - 3
			past, err := r.at(r.ctx, at)
			require.NoError(t, err)
			want := rowsOf(t, r.cell, past)
			n := 0
			try := func(step int, f fate) (*stepped, func() error, string) {
				n++
				life, kill := context.WithCancel(r.ctx)
				t.Cleanup(kill)
				s := &stepped{Bucket: r.bucket, at: -1, fate: f, kill: kill}
				source, err := OpenSource(r.ctx, s, "logplane", nil)
				require.NoError(t, err)
				s.at, s.taken = step, nil
				into := bucket.Bucket(nil)
				if apart {
					s = &stepped{Bucket: memory.Strict(t), at: step, fate: f, kill: kill}
					into = s
				}
				prefix := fmt.Sprint("new/", n)
				return s, func() error { _, err := source.Restore(life, at, into, prefix); return err }, prefix
			}
			clean, restore, _ := try(-1, fails)
			require.NoError(t, restore())
			t.Logf("%d steps: %s", len(clean.taken), strings.Join(clean.taken, ", "))
			require.Contains(t, clean.taken, map[bool]string{false: "copy new", true: "create new"}[apart])
			for step := 0; step < len(clean.taken); step += eventlogtest.Slowdown {
				for f := range fates {
					t.Run(fmt.Sprintf("%d %s", step, f), func(t *testing.T) {
						s, restore, prefix := try(step, f)
						broken := restore()
						again, err := OpenSource(r.ctx, r.bucket, "logplane", nil)
						require.NoError(t, err)
						_, err = again.Restore(r.ctx, at, s.Bucket, prefix)
						if errors.Is(err, errCellExists) {
							t.Logf("it was there: %v", broken)
						} else {
							require.NoError(t, err)
							require.Error(t, broken)
						}
						_, err = again.Restore(r.ctx, at, s.Bucket, prefix)
						require.ErrorIs(t, err, errCellExists)
						fresh := r.opened(s.Bucket, prefix)
						require.Equal(t, want, rowsOf(t, r.cell, fresh.latest()))
						fresh.put("another", "1")
						fresh.commit()
						_, err = fresh.Collect(r.ctx, 0)
						require.NoError(t, err)
						needed, err := fresh.needed(r.ctx, fresh.newest(), nil)
						require.NoError(t, err)
						require.NoError(t, s.Bucket.List(r.ctx, prefix+"/", func(a bucket.Attributes) error {
							require.True(t, a.Key == prefix+"/root" || needed.has(a.Key), "%s is garbage", a.Key)
							return nil
						}))
					})
				}
			}
			require.Equal(t, before, keysOf(t, r.cell))
		})
	}
}

// TestOneOfTwoRestoresWins: one of several concurrent restores wins, and the others change no object that the winner
// made.
func TestOneOfTwoRestoresWins(t *testing.T) {
	c := newCell(t)
	for i := range 5 {
		c.put(fmt.Sprint("n", i), "x")
	}
	at := c.commit()
	into := memory.Strict(t)
	done, failed := make([]Restored, 6), make([]error, 6)
	var all sync.WaitGroup
	for i := range done {
		all.Go(func() {
			source, err := OpenSource(c.ctx, c.bucket, "logplane", nil)
			if err == nil {
				done[i], err = source.Restore(c.ctx, at-Revision(i%2), into, "new")
			}
			failed[i] = err
		})
	}
	all.Wait()
	won := -1
	for i, err := range failed {
		if err == nil {
			require.Negative(t, won, "two have won")
			won = i
		} else {
			require.ErrorIs(t, err, errCellExists)
		}
	}
	require.GreaterOrEqual(t, won, 0)
	fresh := c.opened(into, "new")
	require.Len(t, rowsOf(t, c, fresh.latest()), int(done[won].Objects))
	require.EqualValues(t, done[won].Objects, done[won].Revision)
	require.NoError(t, into.List(c.ctx, "new/", func(a bucket.Attributes) error {
		require.Contains(t, append(slices.Collect(maps.Keys(fresh.newest().names())), "new/root"), a.Key, "of one that has lost")
		return nil
	}))
}

// TestRestoreNamesWhatThereIs: if the bucket does not have a revision, the error names the revisions that the bucket
// has.
func TestRestoreNamesWhatThereIs(t *testing.T) {
	c := newCell(t, func(c *Config) { c.InlineBytes = 1 })
	into := memory.Strict(t)
	_, err := OpenSource(c.ctx, c.bucket, "logplane", nil)
	require.ErrorContains(t, err, "no cell is there, whose root would be 'logplane/root'")
	for _, more := range []int{3, 2} {
		for range more {
			c.put("a", "x")
		}
		c.commit()
	}
	require.NoError(t, c.Retain(c.ctx, 4, 0))
	c.put("a", "only the log has it")
	source, err := OpenSource(c.ctx, c.bucket, "logplane", nil)
	require.NoError(t, err)
	_, err = source.Restore(c.ctx, 6, into, "new")
	require.ErrorIs(t, err, ErrFuture)
	require.ErrorContains(t, err, "the newest revision that the bucket has is 5, of 20")
	_, err = source.Restore(c.ctx, 3, into, "new")
	require.ErrorIs(t, err, ErrExpired)
	require.ErrorContains(t, err, "the nearest that is kept is 4")
	require.NoError(t, into.List(c.ctx, "", func(a bucket.Attributes) error { t.Error(a.Key); return nil }))
	at, err := source.RevisionAt(c.ctx, time.Now())
	require.NoError(t, err)
	require.EqualValues(t, 5, at)
	done, err := source.Restore(c.ctx, 4, into, "new")
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), done.Time, time.Minute)
}

// TestRestoreOfACellThatGoesOn: if a source is compacted, collected or expires during a restore, the source is read
// again, or the error says which revisions are left.
func TestRestoreOfACellThatGoesOn(t *testing.T) {
	quiet(t)
	for _, apart := range []bool{false, true} {
		c, _ := spilling(t, runsPerLevel)
		at := c.latest().Applied()
		source, err := OpenSource(c.ctx, lax{c.bucket}, "logplane", cache.NewBudget(1))
		require.NoError(t, err)
		want := rowsOf(t, c, c.latest())
		for range 3 {
			c.put("later", "x")
		}
		replaced(t, c)
		into := bucket.Bucket(nil)
		if apart {
			into = memory.Strict(t)
		}
		done, err := source.Restore(c.ctx, at, into, "new")
		require.NoError(t, err)
		require.EqualValues(t, len(want), done.Objects)
		require.NoError(t, c.Retain(c.ctx, at+1, 0))
		for range runsPerLevel {
			c.put("n2", "more")
			c.commit()
		}
		replaced(t, c)
		_, err = source.Restore(c.ctx, at, into, "newer")
		require.ErrorIs(t, err, ErrExpired)
	}
}

// restoredOnce is a cell with one object, restored below 'new', and the result of the restore.
func restoredOnce(t *testing.T) (*cell, Restored) {
	c := newCell(t)
	c.put("a", "x")
	c.commit()
	source, err := OpenSource(c.ctx, c.bucket, "logplane", nil)
	require.NoError(t, err)
	done, err := source.Restore(c.ctx, 1, nil, "new")
	require.NoError(t, err)
	return c, done
}

// TestBeginOnAReplicatedLog: the log of a restored cell may have barriers of processes that wait for the cell. On three
// servers the log has such barriers.
func TestBeginOnAReplicatedLog(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a cluster")
	}
	c, done := restoredOnce(t)
	servers := eventlogtest.Cluster(t)
	for range 3 {
		_, err := servers.Log(1).Head(c.ctx)
		require.NoError(t, err)
	}
	c.log = servers.Log(0)
	p := c.another(func(c *Config) { c.Prefix, c.Founded = "new", true })
	for _, want := range []Revision{done.Next, 0} {
		first, err := p.Begin(c.ctx)
		require.NoError(t, err)
		require.Equal(t, want, first)
	}
	v, err := p.Latest(c.ctx)
	require.NoError(t, err)
	_, found, err := v.Get(c.ctx, podKey("a").RowKey(), v.Revision())
	require.NoError(t, err)
	require.True(t, found)
}

// TestBeginIsForEmptyLogs: Begin does nothing unless the log is the empty log of a restored cell.
func TestBeginIsForEmptyLogs(t *testing.T) {
	c := newCell(t)
	first, err := c.Begin(c.ctx)
	require.NoError(t, err)
	require.Zero(t, first)
	c.put("a", "x")
	at := c.commit()
	first, err = c.Begin(c.ctx)
	require.NoError(t, err)
	require.Zero(t, first)
	source, err := OpenSource(c.ctx, c.bucket, "logplane", nil)
	require.NoError(t, err)
	_, err = source.Restore(c.ctx, at, nil, "new")
	require.NoError(t, err)
	log := eventlogtest.Open(t, eventlog.Config{Conn: c.conn, InMemory: true})
	wrong, err := Open(Config{Log: log, Bucket: c.bucket, Prefix: "new", Founded: true})
	require.NoError(t, err)
	first, err = wrong.Begin(c.ctx) // the log of the source, not of the new cell
	require.NoError(t, err)
	require.Zero(t, first)
	_, err = wrong.Latest(c.ctx)
	require.ErrorIs(t, err, eventlog.ErrDiverged)
	c.require(map[string]string{"a": "x@1"})
}

// TestBeginIsForNoClient: a client chooses how the request ids of its writes begin. A cell whose last applied event is
// such a write is not a restored cell: if the cell's log is lost and made again, the cell's revisions are not reused;
// every process stops instead.
func TestBeginIsForNoClient(t *testing.T) {
	c := newCell(t)
	plan, err := c.PlanFence(c.ctx, 0) // stands for a cell with many events
	require.NoError(t, err)
	require.NoError(t, c.Fence(c.ctx, plan))
	c.Projection = c.another()
	c.latest()
	head, err := c.log.Head(c.ctx)
	require.NoError(t, err)
	_, err = c.log.Append(c.ctx, basis(c.log, head), restoredID+"mine/8d0b7dd3-a0b0-4a93-9d26-1f3a5e4f0f5e", eventlog.Write{Key: podKey("a"), Op: eventlog.Added, ContentType: "application/cbor"})
	require.NoError(t, err)
	c.commit()
	c.put("b", "acknowledged, and not committed")
	c.log = eventlogtest.Open(t, eventlog.Config{Conn: eventlogtest.Start(t), InMemory: true})
	again := c.another(func(c *Config) { c.Founded = true })
	first, err := again.Begin(c.ctx)
	require.NoError(t, err)
	require.Zero(t, first)
	_, err = again.Latest(c.ctx)
	require.ErrorIs(t, err, eventlog.ErrDiverged)
}

// TestRestoreHasAnUpperBound: a restored cell can be restored again, but not beyond the last revision.
func TestRestoreHasAnUpperBound(t *testing.T) {
	c, done := restoredOnce(t)
	copied, err := OpenSource(c.ctx, c.bucket, "new", nil)
	require.NoError(t, err)
	again, err := copied.Restore(c.ctx, done.Next-1, nil, "newer")
	require.NoError(t, err)
	require.EqualValues(t, 1, again.Objects)
	require.Equal(t, done.Time, again.Time)
	require.Equal(t, done.Next-1+eventlog.FenceGap, again.Next)
	viewOf(copied.newest).snap.root.Applied = lastFence - 5
	_, err = copied.Restore(c.ctx, done.Next-1, nil, "newest")
	require.ErrorContains(t, err, "at most")
}

// TestRestoreInRealBuckets: restores next to the source and elsewhere, in real buckets: the new cells are complete
// after the source was deleted, and the source is complete after a new cell was deleted.
func TestRestoreInRealBuckets(t *testing.T) {
	for name, open := range map[string]func(*testing.T) bucket.Bucket{"filesystem": folderBucket, "minio": minioBucket} {
		t.Run(name, func(t *testing.T) {
			b := bucket.Count(open(t))
			c := newCell(t, func(c *Config) { c.Bucket, c.InlineBytes = b, 1 })
			for i := range 2 * runsPerLevel {
				for j := range 5 {
					c.put(fmt.Sprint("n", (i+j)%12), fmt.Sprint("v", i))
				}
				c.remove(fmt.Sprint("n", i%12))
				c.commit()
			}
			require.NoError(t, compactOnly(c.ctx, c.Projection))
			source, err := OpenSource(c.ctx, b, "logplane", nil)
			require.NoError(t, err)
			newest := source.Newest()
			other := open(t)
			want := map[string]map[string]Row{}
			for i, at := range []Revision{newest, newest - 7, newest / 2, 1} {
				past, err := c.at(c.ctx, at)
				require.NoError(t, err)
				near, elsewhere := fmt.Sprint("near/", i), fmt.Sprint("elsewhere/", i)
				want[near] = rowsOf(t, c, past)
				want[elsewhere] = want[near]
				done, err := source.Restore(c.ctx, at, nil, near)
				require.NoError(t, err)
				require.True(t, at < newest || done.Copied > 0 && done.Written == 0)
				_, err = source.Restore(c.ctx, at, other, elsewhere)
				require.NoError(t, err)
			}
			require.NotZero(t, b.Counts().Copy)
			discard := func(prefix string) {
				var keys []string
				require.NoError(t, b.List(c.ctx, prefix, func(a bucket.Attributes) error { keys = append(keys, a.Key); return nil }))
				require.NotEmpty(t, keys)
				for _, key := range keys {
					require.NoError(t, b.Delete(c.ctx, key))
				}
			}
			discard("near/3/")
			delete(want, "near/3")
			requireClean(t, c.another(func(c *Config) { c.Bucket = b }))
			discard("logplane/")
			for prefix, rows := range want {
				in := other
				if strings.HasPrefix(prefix, "near") {
					in = b
				}
				fresh := c.opened(in, prefix)
				require.Equal(t, rows, rowsOf(t, c, fresh.latest()))
				fresh.put("another", "1")
				fresh.commit()
				require.NoError(t, compactOnly(c.ctx, fresh.Projection))
				requireClean(t, fresh.Projection)
			}
		})
	}
}

func folderBucket(t *testing.T) bucket.Bucket {
	b, err := filesystem.Open(t.TempDir())
	require.NoError(t, err)
	return b
}

// TestRestoreTakesWholeBatches: a restore of a moment inside an atomic batch restores the whole batch, both above the
// floor and between two checkpoints.
func TestRestoreTakesWholeBatches(t *testing.T) {
	c := newCell(t, archived)
	c.put("a", "1")
	c.commit()
	c.put("b", "1")
	bounds, err := c.log.Head(c.ctx)
	require.NoError(t, err)
	var batch []eventlog.Write
	for _, name := range []string{"c", "d", "e"} {
		batch = append(batch, eventlog.Write{Key: podKey(name), Op: eventlog.Added, Body: []byte("x"), ContentType: "application/cbor"})
	}
	last, err := c.log.Append(c.ctx, basis(c.log, bounds), "batch", batch...)
	require.NoError(t, err)
	c.put("f", "1")
	c.put("g", "1")
	restored := func(round string) {
		for at, want := range map[Revision]int{1: 1, last - 3: 2, last - 2: 5, last - 1: 5, last: 5, last + 1: 6} {
			source, err := OpenSource(c.ctx, c.bucket, "logplane", nil)
			require.NoError(t, err)
			for i, into := range []bucket.Bucket{nil, memory.Strict(t)} {
				done, err := source.Restore(c.ctx, at, into, fmt.Sprint(round, at, "/", i))
				require.NoError(t, err)
				require.EqualValues(t, want, done.Objects, "at %d", at)
			}
		}
	}
	c.commit()
	restored("above the floor/")
	c.put("later", "1")
	c.expire()
	restored("in a gap/")
}

// TestRestoreOfATrimmedPast: a restore leaves out each object whose state at the restore's moment a rule has trimmed,
// and has all other objects. At the moments from which the rule keeps the past, the restore has the objects of the rule
// too.
func TestRestoreOfATrimmedPast(t *testing.T) {
	quiet(t)
	for seed := range seeds(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			config := func(c *Config) {
				c.InlineBytes = []int{1, 600}[seed%2]
				c.Checkpoints = []CheckpointRule{{Every: 15 * time.Millisecond, Keep: time.Hour}}
				c.History = time.Hour
				c.HistoryRules = []HistoryRule{{Prefix: "/leases"}}
			}
			r := newRandom(newCell(t, config), 350+seed, 20)
			r.prefix = func(name string) string { return []string{"/pods", "/leases"}[name[2]%2] }
			r.Projection = r.over(lax{r.bucket}, config)
			r.live(40, 4*time.Millisecond, func(i int) {
				if i%4 == 0 {
					v := r.latest()
					require.NoError(t, r.Retain(r.ctx, v.Applied()-min(v.Applied(), 10), 0))
					_, err := r.Trim(r.ctx)
					require.NoError(t, err)
				}
			})
			from := r.latest().snap.root.trimmedUpTo("/leases")
			require.NotZero(t, from)
			source, err := OpenSource(r.ctx, r.bucket, "logplane", nil)
			require.NoError(t, err)
			for at := Revision(0); at <= r.latest().Applied(); at++ {
				for i, into := range []bucket.Bucket{nil, memory.Strict(t)} {
					prefix := fmt.Sprint("new/", at, "/", i)
					done, err := source.Restore(r.ctx, at, into, prefix)
					require.NoError(t, err)
					want := maps.Clone(r.model.at(at))
					if at < from {
						require.Equal(t, []string{"/leases"}, done.Trimmed)
						maps.DeleteFunc(want, func(name, _ string) bool { return r.prefix(name) == "/leases" })
					} else {
						require.Empty(t, done.Trimmed)
					}
					made, err := OpenSource(r.ctx, cmp.Or(into, bucket.Bucket(r.bucket)), prefix, nil)
					require.NoError(t, err)
					got, err := state(r.ctx, viewOf(made.newest), done.Next-1)
					require.NoError(t, err)
					require.Equal(t, want, got, "at %d", at)
				}
			}
		})
	}
}

// forgetful is a bucket that loses the objects of a restore once they are read.
type forgetful struct{ lax }

func (b forgetful) GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	if strings.HasPrefix(key, "copy/seg") {
		return nil, fmt.Errorf("get range of %s: %w", key, bucket.ErrNotFound)
	}
	return b.lax.GetRange(ctx, key, offset, length)
}

// TestARestoreLosesItsSegments: a restore whose segments disappear fails, even after it has read the root again,
// because it has no log to ask.
func TestARestoreLosesItsSegments(t *testing.T) {
	c := newCell(t, func(c *Config) { c.InlineBytes = 1 })
	c.put("a", "1")
	at := c.commit()
	source, err := OpenSource(c.ctx, forgetful{lax{c.bucket}}, "logplane", nil)
	require.NoError(t, err)
	_, err = source.Restore(c.ctx, at, nil, "copy")
	require.ErrorIs(t, err, bucket.ErrNotFound)
	for key := range keysOf(t, c) {
		require.False(t, strings.HasPrefix(key, "copy/"), "%s is left", key)
	}
}
