package projection

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// benchObjects is how many objects of about 1.6 KB the benchmarks have: 10,000, or LOGPLANE_BENCH_OBJECTS.
func benchObjects() int {
	if n, err := strconv.Atoi(os.Getenv("LOGPLANE_BENCH_OBJECTS")); err == nil {
		return n
	}
	return 10_000
}

// counted counts requests.
type counted struct {
	bucket.Bucket
	gets, puts int
}

func (c *counted) Get(ctx context.Context, key string) ([]byte, string, error) {
	c.gets++
	return c.Bucket.Get(ctx, key)
}

func (c *counted) GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	c.gets++
	return c.Bucket.GetRange(ctx, key, offset, length)
}

func (c *counted) Create(ctx context.Context, key string, body []byte) (string, error) {
	c.puts++
	return c.Bucket.Create(ctx, key, body)
}

func (c *counted) Replace(ctx context.Context, key string, body []byte, etag string) (string, error) {
	c.puts++
	return c.Bucket.Replace(ctx, key, body, etag)
}

// body resembles an object: part of it compresses, part does not.
func body(rng *rand.Rand, n int) []byte {
	b := []byte(fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"pod-%d","uid":"%x%x"},"spec":`, n, rng.Uint64(), rng.Uint64()))
	for len(b) < 1600 {
		b = fmt.Appendf(b, `{"name":"container-%d","image":"registry.example/app:%d","value":"%x"},`, rng.IntN(4), rng.IntN(100), rng.Uint32())
	}
	return b
}

// filled is a cell with n objects in its snapshot, 1,000 in each namespace.
func filled(b *testing.B, n int) (*eventlog.Log, *counted) {
	ctx := b.Context()
	log := eventlogtest.Open(b, eventlog.Config{Conn: eventlogtest.Start(b), InMemory: true})
	counts := &counted{Bucket: memory.New()}
	p, err := Open(Config{Log: log, Bucket: counts})
	require.NoError(b, err)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := 0; i < n; i += 500 {
		var writes []eventlog.Write
		for j := i; j < min(i+500, n); j++ {
			writes = append(writes, eventlog.Write{Key: benchKey(j), Op: eventlog.Added, ContentType: "application/cbor", Body: body(rng, j)})
		}
		rev, err := log.Append(ctx, fmt.Sprint("fill-", i), writes...)
		require.NoError(b, err)
		if i%20_000 == 0 || i+500 >= n {
			_, err := p.Commit(ctx)
			require.NoError(b, err)
			require.NoError(b, p.Retain(ctx, 0, rev))
		}
	}
	require.NoError(b, p.flatten(ctx))
	return log, counts
}

// flatten merges all runs into the base, as compactions do at last.
func (p *Projection) flatten(ctx context.Context) error {
	v, err := p.gather(ctx)
	if err != nil || len(v.snap.runs) < 2 {
		return err
	}
	out, err := p.merge(ctx, &merge{inputs: v.snap.runs, level: baseLevel, floor: v.Floor(), generation: v.snap.root.Generation})
	if err == nil {
		_, err = p.swap(ctx, func(ctx context.Context, v *View) (*root, error) { return out.rebase(ctx, v.snap.root) })
	}
	return err
}

func benchKey(i int) eventlog.Key {
	k := podKey(fmt.Sprintf("pod-%07d", i))
	k.Namespace = fmt.Sprintf("ns-%04d", i/1000)
	return k
}

// cpuTime is what the process has used of its processors: on a busy machine it says more than the time of day.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkRead(b *testing.B) {
	n := benchObjects()
	log, counts := filled(b, n)
	open := func() *View {
		p, err := Open(Config{Log: log, Bucket: counts, CacheBytes: 1 << 30})
		require.NoError(b, err)
		v, err := p.Latest(b.Context())
		require.NoError(b, err)
		return v
	}
	list := func(b *testing.B, v *View, start, end string) {
		rows := 0
		for _, err := range v.Scan(b.Context(), start, end, v.Revision()) {
			if err != nil {
				b.Fatal(err)
			}
			rows++
		}
		b.ReportMetric(float64(rows), "rows")
	}
	warm := open()
	list(b, warm, "", "")
	for _, temperature := range []string{"warm", "cold"} {
		run := func(name string, f func(b *testing.B, v *View, i int)) {
			b.Run(name+"/"+temperature, func(b *testing.B) {
				b.ReportAllocs()
				before, cpu := counts.gets, cpuTime()
				for i := 0; b.Loop(); i++ {
					v := warm
					if temperature == "cold" {
						v = open()
					}
					f(b, v, i)
				}
				b.ReportMetric(float64(counts.gets-before)/float64(b.N), "gets/op")
				b.ReportMetric(float64(cpuTime()-cpu)/1e6/float64(b.N), "cpu-ms/op")
			})
		}
		run("get", func(b *testing.B, v *View, i int) {
			if _, ok, err := v.Get(b.Context(), benchKey(i*7919%n).Row(), v.Revision()); !ok || err != nil {
				b.Fatal(ok, err)
			}
		})
		run("list1000", func(b *testing.B, v *View, i int) {
			ns := fmt.Sprintf("main/pods/ns-%04d", i%(n/1000))
			list(b, v, ns+"/", ns+"0")
		})
		run("listAll", func(b *testing.B, v *View, i int) { list(b, v, "", "") })
	}
	b.Run("latest", func(b *testing.B) {
		for b.Loop() {
			if _, err := warm.p.Latest(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkCommit(b *testing.B) {
	for _, events := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(events), func(b *testing.B) {
			log, counts := filled(b, 1000)
			p, err := Open(Config{Log: log, Bucket: counts})
			require.NoError(b, err)
			rng, n, before := rand.New(rand.NewPCG(1, 2)), 1_000_000, counts.puts
			_, err = p.Latest(b.Context())
			require.NoError(b, err)
			for b.Loop() {
				b.StopTimer()
				var writes []eventlog.Write
				for range events {
					n++
					writes = append(writes, eventlog.Write{Key: benchKey(n), Op: eventlog.Added, ContentType: "application/cbor", Body: body(rng, n)})
				}
				_, err := log.Append(b.Context(), fmt.Sprint("bench-", n), writes...)
				require.NoError(b, err)
				_, err = p.Latest(b.Context())
				require.NoError(b, err)
				b.StartTimer()
				if _, err := p.Commit(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(counts.puts-before)/float64(b.N), "puts/op")
		})
	}
}
