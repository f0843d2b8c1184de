package projection

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
)

// benchObjects is how many objects of about 1.6 KB the benchmarks have: 10,000, or the numbers in
// LOGPLANE_BENCH_OBJECTS, for example 10000,100000,1000000.
func benchObjects() []int {
	var sizes []int
	for _, s := range strings.Split(os.Getenv("LOGPLANE_BENCH_OBJECTS"), ",") {
		if n, err := strconv.Atoi(s); err == nil {
			sizes = append(sizes, n)
		}
	}
	if sizes == nil {
		return []int{10_000}
	}
	return sizes
}

// ledger is a bucket that counts requests and bytes, and counts writes by folder.
type ledger struct {
	bucket.Bucket

	mu                                  sync.Mutex // guards the fields below
	gets, puts, bytesRead, bytesWritten int64
	putsOf, bytesOf                     map[string]int64
}

func newLedger() *ledger {
	return &ledger{Bucket: memory.New(), putsOf: map[string]int64{}, bytesOf: map[string]int64{}}
}

func (l *ledger) read(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gets++
	l.bytesRead += int64(n)
}

func (l *ledger) wrote(key string, n int) {
	kind := "root"
	if dir := path.Dir(strings.TrimPrefix(key, "logplane/")); dir != "." {
		kind = dir
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.puts++
	l.bytesWritten += int64(n)
	l.putsOf[kind]++
	l.bytesOf[kind] += int64(n)
}

func (l *ledger) Get(ctx context.Context, key string) ([]byte, string, error) {
	b, etag, err := l.Bucket.Get(ctx, key)
	l.read(len(b))
	return b, etag, err
}

func (l *ledger) GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	b, err := l.Bucket.GetRange(ctx, key, offset, length)
	l.read(len(b))
	return b, err
}

func (l *ledger) Create(ctx context.Context, key string, body []byte) (string, error) {
	l.wrote(key, len(body))
	return l.Bucket.Create(ctx, key, body)
}

func (l *ledger) Replace(ctx context.Context, key string, body []byte, etag string) (string, error) {
	l.wrote(key, len(body))
	return l.Bucket.Replace(ctx, key, body, etag)
}

// book measures requests, bytes and processor time of a benchmark.
type book struct {
	b                                   *testing.B
	l                                   *ledger
	gets, puts, bytesRead, bytesWritten int64
	cpu                                 time.Duration
}

func (l *ledger) open(b *testing.B) *book {
	b.ReportAllocs()
	return &book{b, l, l.gets, l.puts, l.bytesRead, l.bytesWritten, cpuTime()}
}

// close reports the measurements, and fails if an operation took more GETs than docs/run/requests.md says.
func (k *book) close(most float64) {
	n := float64(k.b.N)
	if gets := float64(k.l.gets-k.gets) / n; gets > most {
		k.b.Errorf("%.2f GETs instead of %.2f", gets, most)
	}
	k.b.ReportMetric(float64(cpuTime()-k.cpu)/1e6/n, "cpu-ms/op")
	k.b.ReportMetric(float64(k.l.gets-k.gets)/n, "gets/op")
	k.b.ReportMetric(float64(k.l.bytesRead-k.bytesRead)/n, "read-B/op")
	if puts := k.l.puts - k.puts; puts > 0 {
		k.b.ReportMetric(float64(puts)/n, "puts/op")
		k.b.ReportMetric(float64(k.l.bytesWritten-k.bytesWritten)/n, "written-B/op")
	}
}

// cpuTime is the processor time that the process has used. On a busy machine processor time says more than elapsed
// time.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// body resembles an object: one part compresses, the other does not.
func body(rng *rand.Rand, n int) []byte {
	b := []byte(fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"pod-%d","uid":"%x%x"},"spec":`, n, rng.Uint64(), rng.Uint64()))
	for len(b) < 1600 {
		b = fmt.Appendf(b, `{"name":"container-%d","image":"registry.example/app:%d","value":"%x"},`, rng.IntN(4), rng.IntN(100), rng.Uint32())
	}
	return b
}

// filled is a cell with n objects in its snapshot, 1,000 in each namespace, all in the base.
func filled(b testing.TB, n int) (*eventlog.Log, *ledger) {
	ctx := b.Context()
	log := eventlogtest.Open(b, eventlog.Config{Conn: eventlogtest.Start(b)})
	counts := newLedger()
	p, err := Open(Config{Log: log, Bucket: counts})
	require.NoError(b, err)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := 0; i < n; i += 500 {
		var writes []eventlog.Write
		for j := i; j < min(i+500, n); j++ {
			writes = append(writes, eventlog.Write{Key: benchKey(j), Op: eventlog.Added, ContentType: "application/cbor", Body: body(rng, j)})
		}
		rev, err := log.Append(ctx, eventlog.Basis{}, fmt.Sprint("fill-", i), writes...)
		require.NoError(b, err)
		if i%20_000 == 0 || i+500 >= n {
			_, err := p.Commit(ctx)
			require.NoError(b, err)
			require.NoError(b, p.Retain(ctx, rev, rev))
		}
	}
	require.NoError(b, p.flatten(ctx))
	_, err = p.Collect(ctx, 0)
	require.NoError(b, err)
	return log, counts
}

// flatten merges all runs into the base, as compactions eventually do.
func (p *Projection) flatten(ctx context.Context) error {
	v, err := p.gather(ctx)
	if err != nil || len(v.snap.runs) < 2 {
		return err
	}
	out, err := p.merge(ctx, &merge{inputs: v.snap.runs, level: baseLevel, floor: v.Floor(), generation: v.snap.root.Generation})
	if err == nil {
		err = out.commit(ctx)
	}
	return err
}

func benchKey(i int) eventlog.Key {
	k := podKey(fmt.Sprintf("pod-%07d", i))
	k.Namespace = fmt.Sprintf("ns-%04d", i/1000)
	return k
}

// BenchmarkCell measures the costs of a cell with this many objects: reads, cold and warm, a compaction, commits.
func BenchmarkCell(b *testing.B) {
	for _, n := range benchObjects() {
		b.Run(fmt.Sprintf("objects=%d", n), func(b *testing.B) {
			log, counts := filled(b, n)
			benchmarkReads(b, log, counts, n)
			benchmarkMemory(b, log, counts, n)
			b.Run("compaction", func(b *testing.B) { benchmarkCompaction(b, log, counts, n) })
			for _, events := range []int{1, 100, 1000} {
				b.Run(fmt.Sprintf("commit/events=%d", events), func(b *testing.B) { benchmarkCommits(b, log, counts, n, events) })
			}
		})
	}
}

func opened(b *testing.B, c Config) *View {
	p, err := Open(c)
	require.NoError(b, err)
	v, err := p.Latest(b.Context())
	require.NoError(b, err)
	return v
}

func list(b *testing.B, v *View, start, end string, want int) {
	rows := 0
	for _, err := range v.Scan(b.Context(), start, end, v.Revision()) {
		if err != nil {
			b.Fatal(err)
		}
		rows++
	}
	if rows != want {
		b.Fatalf("%d rows instead of %d", rows, want)
	}
}

// benchmarkReads: a cold process has read nothing; a warm one has read everything.
func benchmarkReads(b *testing.B, log *eventlog.Log, counts *ledger, n int) {
	warm := opened(b, Config{Log: log, Bucket: counts, Budget: cache.NewBudget(4 << 30)})
	list(b, warm, "", "", n)
	run := func(name string, cold float64, f func(b *testing.B, v *View, i int)) {
		for _, temperature := range []string{"warm", "cold"} {
			b.Run(name+"/"+temperature, func(b *testing.B) {
				counting, v, most := counts.open(b), warm, 0.0
				for i := 0; b.Loop(); i++ {
					if temperature == "cold" {
						v, most = opened(b, Config{Log: log, Bucket: counts}), cold
					}
					f(b, v, i)
				}
				counting.close(most)
			})
		}
	}
	get, parts := mostGets(warm.snap)
	run("open", 1, func(*testing.B, *View, int) {})
	run("get", get, func(b *testing.B, v *View, i int) {
		if _, ok, err := v.Get(b.Context(), benchKey(i*7919%n).RowKey(), v.Revision()); !ok || err != nil {
			b.Fatal(ok, err)
		}
	})
	run("list1000", get+0.2, func(b *testing.B, v *View, i int) {
		ns := fmt.Sprintf("main/pods/ns-%04d", i%(n/1000))
		list(b, v, ns+"/", ns+"0", 1000)
	})
	run("listAll", parts, func(b *testing.B, v *View, _ int) { list(b, v, "", "", n) })
	b.Run("latest", func(b *testing.B) {
		for b.Loop() {
			if _, err := warm.p.Latest(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// mostGets is how many GETs a cold get and a cold full list may take if the whole snapshot is in the base. The root
// comes first. The footers come next, unless the root has them: from the idx object, or from each of the base's parts.
// Then a get reads one block, and a list reads each part except the first with one GET. A few namespaces lie across two
// parts.
func mostGets(s *snapshot) (get, all float64) {
	parts := float64(len(s.runs[0]))
	switch {
	case len(s.root.indexed()) == 0: // a large base
		return 4, 1 + 2*parts + 2
	case s.root.Index != "":
		return 3, 2 + parts + 2
	case len(s.root.Footers) > 0:
		return 2, 1 + parts + 2
	}
	return 3, 1 + 2*parts + 2
}

// benchmarkMemory measures a process that has listed everything, with the default budget for blocks.
func benchmarkMemory(b *testing.B, log *eventlog.Log, counts *ledger, n int) {
	b.Run("memory", func(b *testing.B) {
		for b.Loop() {
		}
		idle := heap()
		v := opened(b, Config{Log: log, Bucket: counts})
		fresh := heap()
		list(b, v, "", "", n)
		b.ReportMetric(float64(fresh-idle)/(1<<20), "opened-MiB")
		b.ReportMetric(float64(heap()-idle)/(1<<20), "listed-MiB")
		runtime.KeepAlive(v)
	})
}

// heap is the heap memory in use after a garbage collection.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// inserted is the key of a new object that sorts between the keys that filled made.
func inserted(i int, name string) eventlog.Key {
	k := benchKey(i)
	k.Name += "-" + name
	return k
}

func creation(rng *rand.Rand, k eventlog.Key) eventlog.Write {
	return eventlog.Write{Key: k, Op: eventlog.Added, ContentType: "application/cbor", Body: body(rng, rng.IntN(1e7))}
}

// benchmarkCompaction merges the base and eight runs with a tenth of the base's objects into a new base.
func benchmarkCompaction(b *testing.B, log *eventlog.Log, counts *ledger, n int) {
	p, err := Open(Config{Log: log, Bucket: counts, InlineBytes: 1})
	require.NoError(b, err)
	head, err := log.Head(b.Context())
	require.NoError(b, err)
	rng, ctx, raw := rand.New(rand.NewPCG(1, 3)), b.Context(), int64(0)
	for run := range runsPerLevel {
		for i := 0; i < n/80; i += 125 {
			var writes []eventlog.Write
			for j := i; j < i+125; j++ {
				writes = append(writes, creation(rng, inserted((j*runsPerLevel+run)*10, "compacted")))
				raw += int64(len(writes[j-i].Body))
			}
			_, err := log.Append(ctx, basis(log, head), fmt.Sprintf("runs-%d-%d", run, i), writes...)
			require.NoError(b, err)
		}
		_, err := p.Commit(ctx)
		require.NoError(b, err)
	}
	v := p.Current()
	size, parts := int64(0), len(v.snap.runs[len(v.snap.runs)-1])
	for _, r := range v.snap.runs {
		size += r.bytes()
	}
	counting := counts.open(b)
	for b.Loop() {
		m := &merge{inputs: v.snap.runs, level: baseLevel, floor: v.Floor(), generation: v.snap.root.Generation}
		if _, err := p.merge(ctx, m); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(raw * 11) // a tenth of the merged rows is new
	b.ReportMetric(float64(size)/(1<<20), "compressed-MiB")
	counting.close(float64(parts * (1 + 3 + 2*(len(v.snap.runs)-1))))
	_, err = p.Collect(ctx, 0)
	require.NoError(b, err)
}

// benchmarkCommits commits new objects all over the cell. Each key is looked up, and bloom filters nearly always
// suffice.
func benchmarkCommits(b *testing.B, log *eventlog.Log, counts *ledger, objects, events int) {
	v := opened(b, Config{Log: log, Bucket: counts})
	rng := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	write := func() {
		writes := make([]eventlog.Write, events)
		for i := range writes {
			writes[i] = creation(rng, inserted(rng.IntN(objects), fmt.Sprintf("%x", rng.Uint64())))
		}
		_, err := log.Append(b.Context(), eventlog.Basis{Head: v.p.Current().Revision()}, fmt.Sprint("bench-", rng.Uint64()), writes...)
		require.NoError(b, err)
		_, err = v.p.Latest(b.Context())
		require.NoError(b, err)
	}
	commit := func() {
		if _, err := v.p.Commit(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	for range 4 { // a running projector has read footers
		write()
		commit()
	}
	counting := counts.open(b)
	for b.Loop() {
		b.StopTimer()
		write()
		b.StartTimer()
		commit()
	}
	runs := len(v.p.Current().snap.runs)
	counting.close(1 + float64(events*runs)*0.02)
}
