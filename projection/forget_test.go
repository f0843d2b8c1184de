package projection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/segment"
)

// TestForget: no object of the bucket has a forgotten version, even if other processes have read the version before.
// Every other version, and every moment, is unchanged, and the cell still works.
func TestForget(t *testing.T) {
	quiet(t)
	for seed := range seeds(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			config := func(c *Config) {
				c.InlineBytes = []int{1, 600, 3000}[seed%3]
				c.Checkpoints = []CheckpointRule{{Every: 20 * time.Millisecond, Keep: time.Hour}}
				if seed%2 == 0 {
					c.History = time.Hour
				}
				if seed%4 == 0 {
					c.Checkpoints = nil // the archive's rule makes a checkpoint, onto which later moments are folded
				}
			}
			r := newRandom(newCell(t, config), 150+seed, 20)
			r.Projection = r.over(lax{r.bucket}, config)
			r.rootFooters = int(seed) * 100
			r.partBytes = []int{partBytes, 100}[seed%2]
			r.manyEvents = []int{4, manyEvents, 1}[seed%3]
			r.live(60, time.Millisecond, func(i int) {
				if i%3 == 0 {
					r.tend(r.Projection)
				}
			})
			_, err := r.Commit(r.ctx)
			require.NoError(t, err)

			// Another process has read all of the past, and its caches are warm.
			folder := t.TempDir()
			reader := r.over(lax{r.bucket}, config, func(c *Config) { c.CacheFolder = folder })
			before := map[Revision]map[string]string{}
			for at := Revision(0); at <= r.head; at++ {
				if past, err := reader.at(r.ctx, at); err == nil {
					before[at], err = state(r.ctx, past, at)
					require.NoError(t, err)
				}
			}
			histories := map[string][]Row{}
			for _, name := range r.names {
				histories[name], err = reader.History(r.ctx, podKey(name).RowKey())
				require.NoError(t, err)
			}
			// The test takes the live name and the other name that each have the most kept versions. The number of kept
			// versions depends on the clock.
			var names []string
			for _, live := range []bool{true, false} {
				of := slices.DeleteFunc(slices.Clone(r.names), func(name string) bool { return (r.model.live[name] > 0) != live })
				names = append(names, slices.MaxFunc(of, func(a, b string) int { return cmp.Compare(len(histories[a]), len(histories[b])) }))
			}

			r.fillLog = func(context.Context) (Revision, error) { return r.fill(), nil }
			keys := []string{}
			for _, name := range names {
				keys = append(keys, podKey(name).RowKey())
			}
			done, err := r.Forget(r.ctx, keys, 0)
			require.NoError(t, err)
			require.NotZero(t, done.Versions)
			require.NotZero(t, done.Objects)
			stays := func(name string, rev Revision) bool {
				return !slices.Contains(names, name) || r.model.live[name] > 0 && rev >= r.model.live[name]
			}
			requireForgotten(t, r, stays)
			requireClean(t, r.over(r.bucket, config))
			bounds, err := r.log.Head(r.ctx)
			require.NoError(t, err)
			require.Greater(t, bounds.First, r.head, "the log has barriers and nothing before them")

			for _, p := range []*Projection{reader, r.over(r.bucket, config)} {
				for _, name := range r.names {
					want := slices.DeleteFunc(slices.Clone(histories[name]), func(row Row) bool { return !stays(name, row.Revision) })
					got, err := p.History(r.ctx, podKey(name).RowKey())
					require.NoError(t, err)
					require.Equal(t, revisionsOf(want), revisionsOf(got), name)
					if seed%2 == 0 {
						requireVersions(t, p, podKey(name).RowKey(), got, math.MaxInt)
					}
				}
				for at, want := range before {
					past, err := p.at(r.ctx, at)
					if seed%2 == 1 && errors.Is(err, ErrExpired) {
						continue // the floor has passed the revision, and there is no archive
					}
					require.NoError(t, err, "revision %d", at)
					got, err := state(r.ctx, past, at)
					require.NoError(t, err)
					want = maps.Clone(want)
					for name, value := range want {
						_, rev, _ := strings.Cut(value, "@")
						var made Revision
						_, err := fmt.Sscan(rev, &made)
						require.NoError(t, err)
						if !stays(name, made) {
							delete(want, name)
						}
					}
					require.Equal(t, want, got, "at %d", at)
				}
			}

			there := map[string]bool{}
			for key := range keysOf(t, r.cell) {
				there[path.Base(key)] = true
			}
			for _, name := range filesBelow(t, folder) {
				require.True(t, there[filepath.Base(name)], "%s is on the disk of a process", name)
			}

			again, err := r.Forget(r.ctx, keys, 0)
			require.NoError(t, err)
			require.Zero(t, again.Versions)
			for range 30 {
				r.step()
			}
			r.check(r.ctx, r.Projection, r.Rand)
			_, err = r.Commit(r.ctx)
			require.NoError(t, err)
			require.NoError(t, compactOnly(r.ctx, r.Projection))
			r.check(r.ctx, r.over(r.bucket, config), r.Rand)
			requireClean(t, r.over(r.bucket, config))
		})
	}
}

// fill replaces the log's Fill.
func (r *random) fill() Revision {
	r.barrier()
	bounds, err := r.log.Head(r.ctx)
	require.NoError(r.t, err)
	return bounds.Head
}

func revisionsOf(rows []Row) (out []Revision) {
	for _, r := range rows {
		out = append(out, r.Revision)
	}
	return out
}

// requireForgotten reads every object of the bucket, also those that no root names.
func requireForgotten(t *testing.T, r *random, stays func(name string, rev Revision) bool) {
	look := func(name string, rec *record) {
		if rec.Op != eventlog.Barrier {
			require.True(t, stays(rec.Key.Name, rec.Revision), "%s has %s at revision %d", name, rec.Key.Name, rec.Revision)
		} else {
			require.Empty(t, rec.Body, "%s at revision %d", name, rec.Revision)
		}
	}
	for key := range keysOf(t, r.cell) {
		body, _, err := lax{r.bucket}.Get(r.ctx, key)
		require.NoError(t, err)
		switch folder := strings.Split(key, "/")[1]; folder {
		case "root", "ckpt":
			root, err := decodeRoot(body)
			require.NoError(t, err)
			records, err := root.inlineRecords()
			require.NoError(t, err)
			for _, rec := range records {
				look(key, rec)
			}
		case "seg", "events":
			reader, err := segment.OpenBytes(key, body)
			require.NoError(t, err)
			for rec, err := range recordsOf(r.ctx, reader) {
				require.NoError(t, err)
				look(key, rec)
			}
		case "idx":
			_, err := decodeIndex(body)
			require.NoError(t, err)
		}
	}
}
