package projection

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
)

const (
	putPrice, getPrice = 5.0 / 1e6, 0.4 / 1e6 // $ a request
	month              = 30 * 24 * 3600.0     // seconds
)

func setting(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// stubborn tries again: the log's server has to share the machine.
func stubborn[T any](f func() (T, error)) (v T, err error) {
	for range 50 {
		if v, err = f(); err == nil {
			break
		}
	}
	return v, err
}

// TestReplay plays updates of LOGPLANE_REPLAY_OBJECTS objects at LOGPLANE_REPLAY_RATE a second of simulated time,
// LOGPLANE_REPLAY in all, to one projector that commits every second and compacts, and one reader that catches up twice a second
// and reads an object. The floor follows ten minutes behind, the purge point one. It prints what
// that costs (docs/operations.md); a short one holds what was promised about it.
func TestReplay(t *testing.T) {
	events, rate, objects := setting("LOGPLANE_REPLAY", 20_000), setting("LOGPLANE_REPLAY_RATE", 1000), setting("LOGPLANE_REPLAY_OBJECTS", 10_000)
	if testing.Short() {
		events = min(events, 5000)
	}
	log, projector := filled(t, objects)
	reader := newLedger()
	reader.Bucket = projector.Bucket
	*projector = ledger{Bucket: projector.Bucket, putsOf: map[string]int64{}, bytesOf: map[string]int64{}}
	p, err := Open(Config{Log: log, Bucket: projector})
	require.NoError(t, err)
	if os.Getenv("LOGPLANE_REPLAY_FOLDER") != "" {
		p, err = Open(Config{Log: log, Bucket: projector, CacheFolder: t.TempDir()})
		require.NoError(t, err)
	}
	r, err := Open(Config{Log: log, Bucket: reader})
	require.NoError(t, err)
	bases := make([]Revision, objects) // before the replay
	all, err := r.Latest(t.Context())
	require.NoError(t, err)
	i := 0
	for row, err := range all.Scan(t.Context(), "", "", all.Revision()) {
		require.NoError(t, err)
		bases[i] = row.Revision
		i++
	}
	require.Equal(t, objects, i)
	uncertain := 0 // updates whose object the log has forgotten
	ctx, rng := t.Context(), rand.New(rand.NewPCG(1, 4))
	last := make([]Revision, objects) // of each object, since the replay began
	var heads []Revision              // of each second
	purged, retained := Revision(0), int64(0)
	raw, seconds, deepest := int64(0), events/rate, 0
	half := func(second, from, upto int) {
		for i := from; i < upto; i += 250 {
			var writes []eventlog.Write
			var chosen []int
			batch := map[int]bool{}
			for range min(250, upto-i) {
				o := rng.IntN(objects)
				for batch[o] {
					o = rng.IntN(objects)
				}
				batch[o] = true
				w := eventlog.Write{Key: benchKey(o), Op: eventlog.Modified, ContentType: "application/cbor", Body: body(rng, o), Base: last[o], Precondition: last[o]}
				if w.Base == 0 { // made by filled, and purged from the log since
					w.Base = bases[o]
				}
				if w.Precondition <= purged {
					w.Precondition = 0
					uncertain++
				}
				writes, chosen = append(writes, w), append(chosen, o)
				raw += int64(len(w.Body))
			}
			head, err := log.Append(ctx, fmt.Sprintf("replay-%d-%d", second, i), writes...)
			require.NoError(t, err)
			for j, o := range chosen {
				last[o] = head - Revision(len(chosen)-1-j)
			}
		}
		v, err := stubborn(func() (*View, error) { return r.Latest(ctx) })
		require.NoError(t, err)
		_, ok, err := v.Get(ctx, benchKey(rng.IntN(objects)).Row(), v.Revision())
		require.NoError(t, err)
		require.True(t, ok)
	}
	_, err = p.Latest(ctx)
	require.NoError(t, err)
	began := cpuTime()
	for second := range seconds {
		half(second, 0, rate/2)
		half(second, rate/2, rate)
		head, err := stubborn(func() (Revision, error) { return p.Commit(ctx) })
		require.NoError(t, err)
		for more := true; more; {
			more, err = p.Compact(ctx)
			require.NoError(t, err)
		}
		deepest = max(deepest, len(p.Current().snap.runs))
		if heads = append(heads, head); second%10 == 9 {
			floor := heads[max(0, second-600)]
			purged = heads[max(0, second-60)]
			retained++ // which is a part of each commit where log time says so
			_, err := stubborn(func() (bool, error) { return true, p.Retain(ctx, floor, purged) })
			require.NoError(t, err)
		}
		if second%60 == 59 {
			_, err = p.Collect(ctx, 0) // grace would be 15 minutes; without it the memory is bounded
			require.NoError(t, err)
		}
	}
	perSecond := func(n int64) float64 { return float64(n) / float64(seconds) }
	t.Logf("%d events at %d/s on %d objects, %d s, %.1f ms of processor a second, at most %d runs", events, rate, objects, seconds,
		float64((cpuTime()-began).Milliseconds())/float64(seconds), deepest)
	var kinds []string
	for kind := range projector.putsOf {
		kinds = append(kinds, kind)
	}
	sort.Strings(kinds)
	rows, merged := int64(0), int64(0)
	for _, kind := range kinds {
		t.Logf("  %-8s %8.3f PUT/s %10.0f B/s", kind, perSecond(projector.putsOf[kind]), perSecond(projector.bytesOf[kind]))
		switch {
		case kind == "seg/0":
			rows += projector.bytesOf[kind]
		case strings.HasPrefix(kind, "seg/"):
			merged += projector.bytesOf[kind]
		}
	}
	puts, gets, reads := perSecond(projector.puts-retained), perSecond(projector.gets), perSecond(reader.gets)
	t.Logf("projector %.3f PUT/s %.3f GET/s, $%.2f a month; each reader %.3f GET/s, $%.2f", puts, gets, month*(puts*putPrice+gets*getPrice), reads, month*reads*getPrice)
	t.Logf("%.1f updates a second were of objects that the log had forgotten: each is looked up in the snapshot", perSecond(int64(uncertain)))
	t.Logf("write amplification: compaction over spilled rows %.2f, all bytes over raw events %.2f; raw %.0f B/s", float64(merged)/float64(max(rows, 1)),
		float64(projector.bytesWritten)/float64(raw), float64(raw)/float64(seconds))
	require.LessOrEqual(t, projector.putsOf["root"], int64(seconds)+projector.putsOf["seg/1"]+projector.putsOf["seg/2"]+projector.putsOf["seg/9"]+int64(seconds)/4)
	require.LessOrEqual(t, puts, 4.0)
	require.LessOrEqual(t, deepest, 3*runsPerLevel)
}
