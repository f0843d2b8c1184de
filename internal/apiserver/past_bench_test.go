package apiserver

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
)

// day is a cell of 10,000 ConfigMaps of 1 KiB that were changed for 24 hours. The changes do not take a day of real
// time. But checkpoints and floors are those of a day: each hour ends with a checkpoint, and the floor is an hour old.
type day struct {
	log    *eventlog.Log
	bucket *bucket.Counted
	// hours are the revisions at the end of each hour.
	hours []projection.Revision
}

const pastObjects = 10_000

func newDay(t testing.TB, events int) *day {
	d := &day{log: eventlogtest.Log(t), bucket: bucket.Count(memory.New())}
	p := d.open(t, func(c *projection.Config) {
		c.Checkpoints, c.TailBytes = []projection.CheckpointRule{{Every: time.Nanosecond, Keep: time.Hour}}, 1<<30
	})
	encoder := scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), corev1.SchemeGroupVersion)
	random := rand.New(rand.NewPCG(1, 1))
	text := strings.Repeat("some value ", 90)
	key := func(n int) eventlog.Key {
		return eventlog.Key{Cluster: "main", Resource: "configmaps", Prefix: "/configmaps", Namespace: "default", Name: fmt.Sprintf("c%05d", n)}
	}
	batch := 0
	write := func(names []int) {
		batch++
		v, err := p.Latest(t.Context())
		require.NoError(t, err)
		writes := make([]projection.Write, 0, len(names))
		for _, n := range names {
			state, err := v.State(t.Context(), key(n))
			require.NoError(t, err)
			object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: key(n).Name, Namespace: "default", UID: "u"}, Data: map[string]string{
				"text": text, "n": fmt.Sprint(batch)}}
			body, err := kruntime.Encode(encoder, object)
			require.NoError(t, err)
			writes = append(writes, state.Put("application/vnd.kubernetes.protobuf", body, 0).By(eventlog.Author{User: "filler"}))
		}
		_, err = v.Append(t.Context(), fmt.Sprint("day-", batch), writes...)
		require.NoError(t, err)
	}
	const together = 100
	for n := 0; n < pastObjects; n += together {
		names := make([]int, together)
		for i := range names {
			names[i] = n + i
		}
		write(names)
	}
	for hour := range 24 {
		for n := 0; n < events/24; n += together {
			names := random.Perm(pastObjects - 1)[:together] // the last object is changed once every two hours
			if n == 0 && hour%2 == 0 {
				names[0] = pastObjects - 1
			}
			write(names)
		}
		_, err := p.Commit(t.Context())
		require.NoError(t, err)
		v, err := p.Latest(t.Context())
		require.NoError(t, err)
		if len(d.hours) > 0 {
			require.NoError(t, p.Retain(t.Context(), d.hours[len(d.hours)-1], d.hours[len(d.hours)-1]))
		}
		d.hours = append(d.hours, v.Applied())
		for merged := true; merged; {
			merged, err = p.Compact(t.Context())
			require.NoError(t, err)
		}
	}
	return d
}

func (d *day) open(t testing.TB, change func(*projection.Config)) *projection.Projection {
	c := projection.Config{Log: d.log, Bucket: d.bucket, History: 24 * time.Hour, Budget: cache.NewBudget(256 << 20)}
	change(&c)
	p, err := projection.Open(c)
	require.NoError(t, err)
	return p
}

// serve starts a process of the cell that has read only a namespace.
func (d *day) serve(t testing.TB, caches ...int64) *Server {
	p := d.open(t, func(c *projection.Config) {
		c.ReadOnly = true
		for _, bytes := range caches {
			c.Budget = cache.NewBudget(bytes)
		}
	})
	s, err := New(Config{Cell: kubestore.Cell{Log: d.log, Projection: p, Cluster: "main", Objects: kubestore.NewObjects(p.Budget())}})
	require.NoError(t, err)
	request{method: "GET", path: "/api/v1/namespaces/default"}.do(t, s)
	return s
}

// get sends a request, and returns how long it took and how many reads of the bucket it caused.
func (d *day) get(t testing.TB, s *Server, path string) (took time.Duration, reads int64, a answer) {
	before, start := d.bucket.Counts(), time.Now()
	a = request{method: "GET", path: path, header: http.Header{"User-Agent": {"kubectl/v1.36.3"}}}.do(t, s) // curl would get indented JSON
	took = time.Since(start)
	after := d.bucket.Counts()
	reads = after.Get + after.GetRange - before.Get - before.GetRange
	require.Equal(t, 200, a.code, a.body)
	return took, reads, a
}

const changedObject = historyPath + "/namespaces/default/versions?fieldSelector=object%3Dconfigmaps/c09999"

// TestAMomentCostsAList: a request of the past reads little more from the bucket than a request of the present. The
// versions of an object are found among many events without reading the other events.
func TestAMomentCostsAList(t *testing.T) {
	d := newDay(t, 24*400)
	_, today, _ := d.get(t, d.serve(t), configMapsPath)
	_, back, _ := d.get(t, d.serve(t), fmt.Sprintf("/at/%d%s", d.hours[0]-50, configMapsPath))
	require.LessOrEqual(t, back, 2*today+4, "bucket reads of a list a day back, %d today", today)
	s := d.serve(t)
	_, reads, a := d.get(t, s, changedObject)
	require.Equal(t, 13, strings.Count(a.body, `"verb":`), a.body[:200])
	require.LessOrEqual(t, reads, int64(20))
	_, again, _ := d.get(t, s, fmt.Sprintf("/at/%d%s", d.hours[0]-50, configMapsPath))
	_, warm, _ := d.get(t, s, fmt.Sprintf("/at/%d%s", d.hours[0]-50, configMapsPath))
	require.Less(t, warm, again, "a moment that was read is kept")
	require.LessOrEqual(t, warm, int64(2))
}

// BenchmarkPast prints the cost of requests of the past in a cell of 10,000 ConfigMaps after LOGPLANE_EVENTS changes
// ('make bench-history': a million). The cell has the checkpoints of a day.
func BenchmarkPast(b *testing.B) {
	events, err := strconv.Atoi(os.Getenv("LOGPLANE_EVENTS"))
	if err != nil {
		b.Skip("LOGPLANE_EVENTS is not set ('make bench-history')")
	}
	d := newDay(b, events)
	moment := fmt.Sprintf("/at/%d%s", d.hours[0]-50, configMapsPath)
	median := func(n int, f func() (time.Duration, int64, answer)) (time.Duration, int64) {
		var all []time.Duration
		var reads int64
		for range n {
			took, r, _ := f()
			all, reads = append(all, took), r
		}
		slices.Sort(all)
		return all[len(all)/2], reads
	}
	report := func(name string, took time.Duration, reads int64) {
		b.ReportMetric(float64(took.Microseconds())/1000, name+"-ms")
		b.ReportMetric(float64(reads), name+"-reads")
	}
	for range b.N {
		took, reads := median(5, func() (time.Duration, int64, answer) { return d.get(b, d.serve(b), configMapsPath) })
		report("list-cold", took, reads)
		took, reads = median(5, func() (time.Duration, int64, answer) { return d.get(b, d.serve(b), moment) })
		report("at-cold", took, reads)
		s := d.serve(b)
		d.get(b, s, configMapsPath)
		took, reads = median(15, func() (time.Duration, int64, answer) { return d.get(b, s, configMapsPath) })
		report("list-warm", took, reads)
		s = d.serve(b)
		d.get(b, s, moment)
		took, reads = median(15, func() (time.Duration, int64, answer) { return d.get(b, s, moment) })
		report("at-warm", took, reads)
		took, reads = median(5, func() (time.Duration, int64, answer) { return d.get(b, d.serve(b), changedObject) })
		report("versions", took, reads)

		s = d.serve(b, 32<<20)
		heap := func() uint64 {
			runtime.GC()
			runtime.GC() // the second run empties pools
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		before := heap()
		for n := range 100 {
			at := d.hours[0] + projection.Revision(n)*(d.hours[23]-d.hours[0])/100
			d.get(b, s, fmt.Sprintf("/at/%d%s?limit=1", at, configMapsPath))
		}
		b.ReportMetric(float64(int64(heap())-int64(before))/(1<<20), "100-moments-MiB")
		runtime.KeepAlive(s)
	}
}
