package projection

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/segment"
)

// TestTrim: some objects of the model are of resources with a rule. Versions that the rule does not keep are in no
// archived event, and in no checkpoint that the rule has passed; reading them gives ErrTrimmed. Every later moment is
// unchanged. For all other objects every moment is unchanged. Both hold through compactions, further trims and
// collections.
func TestTrim(t *testing.T) {
	quiet(t)
	for seed := range seeds(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			config := func(c *Config) {
				c.InlineBytes = []int{1, 600, 3000}[seed%3]
				c.Checkpoints = []CheckpointRule{{Every: 15 * time.Millisecond, Keep: time.Hour}}
				c.History = time.Hour
				c.HistoryRules = []HistoryRule{{Prefix: "/leases", Keep: 0}, {Prefix: "/events", Keep: 200 * time.Millisecond}}
			}
			r := newRandom(newCell(t, config), 250+seed, 20)
			r.prefix = func(name string) string { return []string{"/pods", "/leases", "/events", "/leasesbeyond"}[name[2]%4] }
			r.Projection = r.over(lax{r.bucket}, config)
			r.rootFooters = int(seed) * 100
			r.partBytes = []int{partBytes, 100}[seed%2]
			r.manyEvents = []int{4, manyEvents, 1}[seed%3]
			trims := 0
			r.live(120, 4*time.Millisecond, func(i int) {
				if i%3 == 0 {
					r.tend(r.Projection)
				}
				if i%4 == 0 {
					v := r.latest()
					require.NoError(t, r.Retain(r.ctx, v.Applied()-min(v.Applied(), 10), 0))
					trimmed, err := r.Trim(r.ctx)
					require.NoError(t, err)
					if trimmed {
						trims++
					}
				}
			})
			require.Greater(t, trims, 2)
			trimmed, err := r.Trim(r.ctx)
			require.NoError(t, err)
			again, err := r.Trim(r.ctx)
			require.NoError(t, err)
			require.False(t, trimmed && again)
			_, err = r.Collect(r.ctx, 0)
			require.NoError(t, err)

			root := r.latest().snap.root
			leases, events := root.trimmedUpTo("/leases"), root.trimmedUpTo("/events")
			require.GreaterOrEqual(t, leases, events)
			require.NotZero(t, events)
			keptFrom := map[string]Revision{"/leases": leases, "/events": events}
			p := r.over(r.bucket, config)
			requireTrimmed(t, r, keptFrom)
			requireClean(t, p)
			for at := Revision(0); at <= r.latest().Revision(); at++ {
				past, err := p.at(r.ctx, at)
				require.NoError(t, err, "revision %d", at)
				want := r.model.at(at)
				for _, prefix := range []string{"/pods", "/leases", "/events", "/leasesbeyond"} {
					got := map[string]string{}
					var failed error
					for row, err := range past.Scan(r.ctx, "main"+prefix+"/", PrefixEnd("main"+prefix+"/"), at) {
						if err != nil {
							failed = err
							break
						}
						got[row.ID.Name] = fmt.Sprintf("%s@%d", row.Value, row.Revision)
					}
					if at < keptFrom[prefix] {
						require.ErrorIs(t, failed, ErrTrimmed, "%s at %d", prefix, at)
						continue
					}
					require.NoError(t, failed)
					of := map[string]string{}
					for name, value := range want {
						if r.prefix(name) == prefix {
							of[name] = value
						}
					}
					require.Equal(t, of, got, "%s at %d", prefix, at)
				}
				name := r.names[r.IntN(len(r.names))]
				row, ok, err := p.GetAt(r.ctx, r.key(name).RowKey(), at)
				if at < keptFrom[r.prefix(name)] {
					require.ErrorIs(t, err, ErrTrimmed)
					continue
				}
				require.NoError(t, err)
				value, live := want[name]
				require.Equal(t, live, ok)
				if ok {
					require.Equal(t, value, fmt.Sprintf("%s@%d", row.Value, row.Revision))
				}
			}
			for _, name := range r.names {
				var want []string
				for rev, e := range r.model.after(keptFrom[r.prefix(name)]) {
					if len(e) > 5 && e[2:5] == name {
						want = append(want, fmt.Sprint(rev))
					}
				}
				var got []string
				for below := ^Revision(0); below > 0; {
					rows, next, err := p.Versions(r.ctx, r.key(name).RowKey(), below, 3, nil)
					require.NoError(t, err)
					for _, row := range rows {
						if row.Revision > keptFrom[r.prefix(name)] {
							got = append(got, fmt.Sprint(row.Revision))
						}
					}
					below = next
				}
				slices.Reverse(got)
				require.Equal(t, want, got, name)
			}
		})
	}
}

// requireTrimmed reads the event segments that the root and its pages list, and the checkpoints.
func requireTrimmed(t *testing.T, r *random, keptFrom map[string]Revision) {
	root := r.latest().snap.root
	paged, err := r.paged(r.ctx, root)
	require.NoError(t, err)
	require.Equal(t, len(root.Pages) > 0, len(paged) > 0)
	for _, ref := range append(paged, root.Events...) {
		body, _, err := r.bucket.Get(r.ctx, ref.Key)
		require.NoError(t, err)
		reader, err := segment.OpenBytes(ref.Key, body)
		require.NoError(t, err)
		for rec, err := range recordsOf(r.ctx, reader) {
			require.NoError(t, err)
			if rec.Op != eventlog.Barrier {
				require.Greater(t, rec.Revision, keptFrom[rec.Key.Prefix], rec.key)
			}
		}
	}
	dropped := 0
	for _, c := range root.Checkpoints {
		snap, err := r.pastSnapshot(r.ctx, c)
		require.NoError(t, err)
		for prefix, from := range keptFrom {
			if c.Revision >= from {
				continue
			}
			dropped++
			for _, part := range snap.events {
				reader, err := part.open(r.ctx)
				require.NoError(t, err)
				for rec, err := range recordsOf(r.ctx, reader) {
					require.NoError(t, err)
					require.NotEqual(t, prefix, rec.Key.Prefix, "an event in a checkpoint of revision %d", c.Revision)
				}
			}
			for row, err := range viewOf(snap).Scan(r.ctx, "", "", snap.root.Applied) {
				require.NoError(t, err)
				require.False(t, strings.HasPrefix(row.Key, "main"+prefix+"/"), "%s in a checkpoint of revision %d", row.Key, c.Revision)
			}
		}
	}
	require.NotZero(t, dropped)
}
