package projection

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
)

const (
	putPrice, getPrice = 5.0 / 1e6, 0.4 / 1e6 // $ per request
	month              = 30 * 24 * 3600.0     // seconds
)

// priced has the cost in $ a month for a number of updates a second. The figures are from the model by which the
// design's cost was estimated. The model has a commit every second, no reader, and no lookups.
var priced = map[int]float64{10: 13.4, 100: 15.5, 1000: 33}

// pricedRuns are the model's numbers of runs, on average and at most.
const pricedRuns = "4 and 8 with 10,000 objects at 100/s, 9 and 18 with 1,000,000"

func setting(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// TestReplay plays LOGPLANE_REPLAY updates of LOGPLANE_REPLAY_OBJECTS objects, LOGPLANE_REPLAY_RATE per second of
// simulated time. One projector commits every second and compacts. One reader catches up twice a second and reads an
// object. The floor is ten minutes behind the head, and the purge point is LOGPLANE_REPLAY_LOG seconds behind it, by
// default also ten minutes. With LOGPLANE_REPLAY_FOLDER the projector has a cache folder. The test prints the costs
// (docs/run/cost.md) next to the model's figures. A short run checks the promises about the costs.
func TestReplay(t *testing.T) {
	if testing.Short() {
		t.Skip("thousands of commits")
	}
	events, rate := setting("LOGPLANE_REPLAY", max(5_000, 20_000/eventlogtest.Slowdown)), setting("LOGPLANE_REPLAY_RATE", 1000)
	r := newReplay(t, rate, setting("LOGPLANE_REPLAY_OBJECTS", 10_000), setting("LOGPLANE_REPLAY_LOG", 600))
	began := cpuTime()
	for range events / rate {
		r.second()
	}
	t.Logf("%d events at %d/s on %d objects, %d s, %.1f ms of processor a second", events, rate, len(r.last), r.seconds, r.per(int64(cpuTime()-began)/1000)/1000)
	r.printRequests()
	r.printCost()
	compactions := r.booked.putsOf["seg/1"] + r.booked.putsOf["seg/2"] + r.booked.putsOf["seg/9"]
	require.LessOrEqual(t, r.booked.putsOf["root"], int64(r.seconds)+r.uncounted+compactions)
	require.LessOrEqual(t, r.per(r.booked.puts), 4.0)
	require.LessOrEqual(t, r.deepest, 3*runsPerLevel)
	r.checkLast()
}

// replay is a cell under a steady stream of updates.
type replay struct {
	*testing.T
	rng               *rand.Rand
	rate, logSeconds  int
	log               *eventlog.Log
	projector, reader *Projection
	booked, read      *ledger // of the projector and of the reader

	bases, last []Revision // revisions of each object: before the replay, and since
	heads       []Revision // at the end of each second
	purged      Revision
	seconds     int
	raw         int64 // bytes of events
	forgotten   int64 // updates whose object the log has forgotten
	compacting  int64 // GETs of compactions
	runs        int64 // summed over all seconds
	deepest     int   // the maximum
	uncounted   int64 // roots written by aside
}

func newReplay(t *testing.T, rate, objects, logSeconds int) *replay {
	log, filled := filled(t, objects)
	r := &replay{T: t, rng: rand.New(rand.NewPCG(1, 4)), rate: rate, logSeconds: logSeconds, log: log, last: make([]Revision, objects)}
	r.booked, r.read = newLedger(), newLedger()
	r.booked.Bucket, r.read.Bucket = filled.Bucket, filled.Bucket
	config := Config{Log: log, Bucket: r.booked}
	if os.Getenv("LOGPLANE_REPLAY_FOLDER") != "" {
		config.CacheFolder = t.TempDir()
	}
	r.projector, r.reader = r.open(config), r.open(Config{Log: log, Bucket: r.read})
	before := r.open(Config{Log: log, Bucket: filled}).Current()
	for row, err := range before.Scan(t.Context(), "", "", before.Revision()) {
		require.NoError(t, err)
		r.bases = append(r.bases, row.Revision)
	}
	require.Len(t, r.bases, objects)
	return r
}

func (r *replay) open(c Config) *Projection {
	p, err := Open(c)
	require.NoError(r, err)
	_, err = p.Latest(r.Context())
	require.NoError(r, err)
	return p
}

// second plays one second of simulated time.
func (r *replay) second() {
	for half := range 2 {
		for i := half * r.rate / 2; i < (half+1)*r.rate/2; i += 250 {
			r.update(fmt.Sprintf("replay-%d-%d", r.seconds, i), min(250, (half+1)*r.rate/2-i))
		}
		v, err := r.reader.Latest(r.Context())
		require.NoError(r, err)
		_, ok, err := v.Get(r.Context(), benchKey(r.rng.IntN(len(r.last))).RowKey(), v.Revision())
		require.NoError(r, err)
		require.True(r, ok)
	}
	r.project()
	r.seconds++
	if r.seconds%10 == 0 {
		r.purged = r.heads[max(0, r.seconds-1-r.logSeconds)]
		r.aside(func() error { return r.projector.Retain(r.Context(), r.heads[max(0, r.seconds-601)], r.purged) })
	}
	if r.seconds%60 == 0 { // without a grace period of 15 minutes, to bound the memory
		r.aside(func() error { _, err := r.projector.Collect(r.Context(), 0); return err })
	}
}

// aside does work that a real cell does together with its commits, or once in 15 minutes. So the roots of that work do
// not count.
func (r *replay) aside(f func() error) {
	before := r.booked.putsOf["root"]
	require.NoError(r, f())
	r.uncounted += r.booked.putsOf["root"] - before
}

// update appends updates of different objects.
func (r *replay) update(request string, n int) {
	var writes []eventlog.Write
	chosen := r.choose(n)
	for _, o := range chosen {
		w := eventlog.Write{Key: benchKey(o), Op: eventlog.Modified, ContentType: "application/cbor", Body: body(r.rng, o), Base: r.last[o], Precondition: r.last[o]}
		if w.Base == 0 { // filled made the object, whose event was purged from the log since
			w.Base = r.bases[o]
		}
		if w.Precondition <= r.purged {
			w.Precondition = 0
			r.forgotten++
		}
		writes, r.raw = append(writes, w), r.raw+int64(len(w.Body))
	}
	head, err := r.log.Append(r.Context(), eventlog.Basis{}, request, writes...)
	require.NoError(r, err)
	for i, o := range chosen {
		r.last[o] = head - Revision(n-1-i)
	}
}

// choose picks different objects.
func (r *replay) choose(n int) []int {
	chosen := make([]int, 0, n)
	for taken := map[int]bool{}; len(chosen) < n; {
		if o := r.rng.IntN(len(r.last)); !taken[o] {
			chosen, taken[o] = append(chosen, o), true
		}
	}
	return chosen
}

// checkLast reads every hundredth object, and requires that no update was void.
func (r *replay) checkLast() {
	v, err := r.reader.Latest(r.Context())
	require.NoError(r, err)
	for o := 0; o < len(r.last); o += 100 {
		row, ok, err := v.Get(r.Context(), benchKey(o).RowKey(), v.Revision())
		require.NoError(r, err)
		require.True(r, ok)
		require.Equal(r, max(r.last[o], r.bases[o]), row.Revision)
	}
}

// project does the work of a projector in a second.
func (r *replay) project() {
	head, err := r.projector.Commit(r.Context())
	require.NoError(r, err)
	before := r.booked.gets
	for more := true; more; {
		more, err = r.projector.Compact(r.Context())
		require.NoError(r, err)
	}
	r.compacting += r.booked.gets - before
	runs := len(r.projector.Current().snap.runs)
	r.runs, r.deepest, r.heads = r.runs+int64(runs), max(r.deepest, runs), append(r.heads, head)
}

// per is a number per second.
func (r *replay) per(n int64) float64 { return float64(n) / float64(r.seconds) }

func (r *replay) printRequests() {
	merged := -r.booked.bytesOf["seg/0"] // by compactions
	for _, kind := range slices.Sorted(maps.Keys(r.booked.putsOf)) {
		puts := r.booked.putsOf[kind]
		if kind == "root" {
			puts -= r.uncounted
		}
		r.Logf("  %-8s %8.3f PUT/s %10.0f B/s  $%.2f a month", kind, r.per(puts), r.per(r.booked.bytesOf[kind]), month*putPrice*r.per(puts))
		if strings.HasPrefix(kind, "seg/") {
			merged += r.booked.bytesOf[kind]
		}
	}
	r.Logf("runs: %.1f on average, %d at most; the model's: %s", r.per(r.runs), r.deepest, pricedRuns)
	r.Logf("updates of objects that the log had forgotten, which are looked up: %.1f a second", r.per(r.forgotten))
	r.Logf("write amplification: compaction over spilled rows %.2f, all bytes over raw events %.2f; raw %.0f B/s", float64(merged)/float64(max(r.booked.bytesOf["seg/0"], 1)),
		float64(r.booked.bytesWritten)/float64(r.raw), r.per(r.raw))
}

func (r *replay) printCost() {
	puts, gets, reads := r.per(r.booked.puts-r.uncounted), r.per(r.booked.gets), r.per(r.read.gets)
	looked := r.per(r.booked.gets - r.compacting)
	model := "none"
	if m, ok := priced[r.rate]; ok {
		model = fmt.Sprintf("$%.1f", m)
	}
	r.Logf("projector: %.3f PUT/s $%.2f a month; %.3f GET/s $%.2f, of them for lookups %.3f $%.2f and for compactions %.3f $%.2f",
		puts, month*putPrice*puts, gets, month*getPrice*gets, looked, month*getPrice*looked, gets-looked, month*getPrice*(gets-looked))
	r.Logf("$%.2f a month; the model's: %s; without lookups: $%.2f; each reader: %.3f GET/s, $%.2f more", month*(puts*putPrice+gets*getPrice), model,
		month*(puts*putPrice+(gets-looked)*getPrice), reads, month*reads*getPrice)
}
