package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// watchesOf is how many watches the benchmarks of this file may open: they take minutes, so that they run
// only when LOGPLANE_BENCH_WATCHES says so ('make bench-watch').
func watchesOf(b *testing.B, want int) int {
	most, err := strconv.Atoi(os.Getenv("LOGPLANE_BENCH_WATCHES"))
	if err != nil || most < want {
		b.Skip("LOGPLANE_BENCH_WATCHES is not set, or lower")
	}
	return want
}

// tier is a cell's processes, apart from this one, which holds the clients.
type tier struct {
	b        *testing.B
	binary   string
	where    []string
	api      string
	watchers []*process
	next     atomic.Uint64 // of the balancer
}

// process is one watcher; it is replaced at the same address.
type process struct {
	address string
	cmd     *exec.Cmd
	ready   atomic.Bool
}

func newTier(b *testing.B, watchers int) *tier {
	c := &tier{b: b, binary: logplane(b)}
	c.where = []string{"--nats", eventlogtest.Run(b, b.TempDir()).ClientURL(), "--bucket", "file://" + b.TempDir()}
	if out, err := exec.Command(c.binary, append([]string{"init"}, c.where...)...).CombinedOutput(); err != nil {
		b.Fatalf("init: %v: %s", err, out)
	}
	c.start("projector")
	c.api = freeAddress(b)
	c.start("api", "--listen", c.api, "--authorization-mode", "AlwaysAllow")
	awaitOK(b, "http://"+c.api+"/readyz")
	for range watchers {
		p := &process{address: freeAddress(b)}
		c.watchers = append(c.watchers, p)
		c.run(p)
	}
	return c
}

func (c *tier) start(role string, args ...string) *exec.Cmd {
	cmd := exec.Command(c.binary, append(append([]string{role}, c.where...), args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		c.b.Fatal(err)
	}
	c.b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

func (c *tier) run(p *process) {
	p.cmd = c.start("watcher", "--listen", p.address, "--authorization-mode", "AlwaysAllow", "--log-level", "error")
	awaitOK(c.b, "http://"+p.address+"/readyz")
	p.ready.Store(true)
}

// restart stops a watcher as a rolling upgrade does, and starts the next one in its place.
func (c *tier) restart(p *process) {
	p.ready.Store(false) // the balancer's readiness probe
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	_ = p.cmd.Wait()
	c.run(p)
}

// dial is the one address that clients know: each connection goes to one of the ready processes, in turn.
func (c *tier) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	for range c.watchers {
		if p := c.watchers[c.next.Add(1)%uint64(len(c.watchers))]; p.ready.Load() {
			return (&net.Dialer{}).DialContext(ctx, network, p.address)
		}
	}
	return nil, fmt.Errorf("no process is ready")
}

// call sends a request to the API process.
func (c *tier) call(method, path, contentType, body string) (revision uint64) {
	request, err := http.NewRequest(method, "http://"+c.api+path, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	request.Header.Set("Content-Type", contentType)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		panic(err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode > 299 {
		panic(fmt.Sprintf("%s %s: %d %v %s", method, path, answer.StatusCode, err, data)) // on any goroutine
	}
	var o struct {
		Metadata struct{ ResourceVersion string }
	}
	if err := json.Unmarshal(data, &o); err != nil {
		panic(err)
	}
	revision, _ = strconv.ParseUint(o.Metadata.ResourceVersion, 10, 64)
	return revision
}

// fleet is many clients and what they are to see.
type fleet struct {
	*tier
	clients []*reflector
	running sync.WaitGroup
	stop    context.CancelFunc
	writes  []write // in order of revisions once load has returned

	connected, lists, expired, repeated, reconnects atomic.Int64
}

type write struct {
	namespace int
	revision  uint64
	sent      time.Time
}

// reflector keeps a position and watches on from it, as client-go's does: it would list only after a 410.
type reflector struct {
	fleet     *fleet
	namespace int
	position  uint64
	received  []receipt
}

type receipt struct {
	revision uint64
	at       time.Time
}

func (f *fleet) namespace(i int) string { return fmt.Sprintf("n%04d", i) }

// watch starts the clients, per in each namespace, and returns when all are connected.
func (f *fleet) watch(namespaces, per int) {
	for i := range namespaces {
		f.call("POST", "/api/v1/namespaces", "application/json", fmt.Sprintf(`{"metadata":{"name":%q}}`, f.namespace(i)))
		f.call("POST", "/api/v1/namespaces/"+f.namespace(i)+"/configmaps", "application/json", `{"metadata":{"name":"x"},"data":{"k":"`+strings.Repeat("v", 1000)+`"}}`)
	}
	start := f.call("GET", "/api/v1/namespaces/"+f.namespace(0)+"/configmaps", "", "")
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	f.b.Cleanup(stop)
	client := &http.Client{Transport: &http.Transport{DialContext: f.dial, MaxIdleConns: 1, ReadBufferSize: 2048, WriteBufferSize: 1024}}
	for i := range namespaces * per {
		r := &reflector{fleet: f, namespace: i % namespaces, position: start}
		f.clients = append(f.clients, r)
		f.running.Go(func() { r.run(ctx, client) })
	}
	f.await("connected", func() bool { return f.connected.Load() == int64(len(f.clients)) })
}

func (f *fleet) await(what string, holds func() bool) {
	deadline := time.Now().Add(3 * time.Minute)
	for !holds() {
		if time.Now().After(deadline) {
			f.b.Fatalf("not in time: %s; %d of %d connected", what, f.connected.Load(), len(f.clients))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (r *reflector) run(ctx context.Context, client *http.Client) {
	for try := 0; ctx.Err() == nil; try++ {
		if try > 0 {
			r.fleet.reconnects.Add(1)
			select { // client-go's first backoff is as long
			case <-time.After(time.Duration(200+rand.IntN(600)) * time.Millisecond):
			case <-ctx.Done():
				return
			}
		}
		r.watch(ctx, client)
	}
}

func (r *reflector) watch(ctx context.Context, client *http.Client) {
	f := r.fleet
	path := fmt.Sprintf("http://localhost/api/v1/namespaces/%s/configmaps?watch=1&allowWatchBookmarks=true&resourceVersion=%d", f.namespace(r.namespace), r.position)
	request, err := http.NewRequestWithContext(ctx, "GET", path, nil)
	if err != nil {
		panic(err)
	}
	answer, err := client.Do(request)
	if err != nil {
		return
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusGone {
		f.expired.Add(1)
		f.lists.Add(1)
	}
	if answer.StatusCode != http.StatusOK {
		return
	}
	f.connected.Add(1)
	defer f.connected.Add(-1)
	var line bytes.Buffer
	buffer := make([]byte, 2048)
	for {
		n, err := answer.Body.Read(buffer)
		line.Write(buffer[:n])
		for {
			end := bytes.IndexByte(line.Bytes(), '\n')
			if end < 0 {
				break
			}
			r.receive(line.Next(end + 1))
		}
		if err != nil {
			return
		}
		if line.Len() == 0 && line.Cap() > 4096 {
			line = bytes.Buffer{}
		}
	}
}

func (r *reflector) receive(data []byte) {
	var e struct {
		Type   string
		Object struct {
			Code     int
			Metadata struct{ ResourceVersion string }
		}
	}
	if err := json.Unmarshal(data, &e); err != nil {
		panic(err)
	}
	if e.Type == "ERROR" {
		r.fleet.expired.Add(1)
		r.fleet.lists.Add(1)
		return
	}
	revision, _ := strconv.ParseUint(e.Object.Metadata.ResourceVersion, 10, 64)
	if revision < r.position || revision == r.position && e.Type != "BOOKMARK" {
		r.fleet.repeated.Add(1)
	}
	r.position = revision
	if e.Type != "BOOKMARK" {
		r.received = append(r.received, receipt{revision, time.Now()})
	}
}

// load writes at a rate until during has returned, and at least for the time.
func (f *fleet) load(rate, namespaces int, least time.Duration, during func()) {
	writers := min(8, namespaces)
	var (
		wait    sync.WaitGroup
		mu      sync.Mutex
		enough  = make(chan struct{})
		tickets = make(chan struct{})
	)
	for w := range writers {
		wait.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			for range tickets {
				n := random.IntN(namespaces)
				sent := time.Now()
				revision := f.call("PATCH", "/api/v1/namespaces/"+f.namespace(n)+"/configmaps/x", "application/merge-patch+json",
					fmt.Sprintf(`{"data":{"n":"%d"}}`, random.Uint64()))
				mu.Lock()
				f.writes = append(f.writes, write{n, revision, sent})
				mu.Unlock()
			}
		})
	}
	go func() {
		started := time.Now()
		during()
		time.Sleep(least - time.Since(started))
		close(enough)
	}()
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for done := false; !done; {
		select {
		case <-tick.C:
			tickets <- struct{}{}
		case <-enough:
			done = true
		}
	}
	close(tickets)
	wait.Wait()
	slices.SortFunc(f.writes, func(a, b write) int { return int(a.revision) - int(b.revision) })
}

// verdict waits until every client has every change of its namespace, and reports what was lost or late.
func (f *fleet) verdict() {
	wanted, sent := map[int]int{}, map[uint64]time.Time{}
	last := map[int]uint64{}
	for _, w := range f.writes {
		wanted[w.namespace]++
		last[w.namespace] = w.revision
		sent[w.revision] = w.sent
	}
	settled := time.Now().Add(20 * time.Second)
	f.await("the last events", func() bool {
		got := 0
		for _, r := range f.clients {
			got += len(r.received) // racy, and only to know when to stop waiting
		}
		want := 0
		for _, r := range f.clients {
			want += wanted[r.namespace]
		}
		return got >= want || time.Now().After(settled)
	})
	f.stop()
	f.running.Wait()
	var lags []time.Duration
	expected, received := 0, 0
	for _, r := range f.clients {
		expected += wanted[r.namespace]
		received += len(r.received)
		for _, e := range r.received {
			lags = append(lags, e.at.Sub(sent[e.revision]))
		}
	}
	slices.Sort(lags)
	f.b.Logf("%d clients: %d events expected, %d received, %d lost, %d repeated, %d lists, %d x 410, %d reconnects",
		len(f.clients), expected, received, expected-received, f.repeated.Load(), f.lists.Load(), f.expired.Load(), f.reconnects.Load())
	f.b.ReportMetric(float64(expected-received), "lost")
	f.b.ReportMetric(float64(f.repeated.Load()), "repeated")
	f.b.ReportMetric(float64(f.lists.Load()), "lists")
	f.b.ReportMetric(float64(f.expired.Load()), "410s")
	f.b.ReportMetric(float64(received), "events")
	if len(lags) > 0 {
		f.b.ReportMetric(float64(lags[len(lags)/2].Microseconds())/1000, "p50-ms")
		f.b.ReportMetric(float64(lags[len(lags)*99/100].Microseconds())/1000, "p99-ms")
	}
	if expected != received || f.repeated.Load()+f.lists.Load() > 0 {
		f.b.Errorf("clients noticed the restarts")
	}
}

// BenchmarkRollingRestart: 10,000 watches over three watcher processes behind one address, all three
// restarted one after the other under 200 writes/s. No client may notice: nothing lost, nothing repeated, no
// list, no 410.
func BenchmarkRollingRestart(b *testing.B) {
	f := &fleet{tier: newTier(b, 3)}
	namespaces := watchesOf(b, 10_000) / 10
	f.watch(namespaces, 10)
	started := time.Now()
	f.load(200, namespaces, 0, func() {
		for _, p := range f.watchers {
			f.restart(p)
		}
	})
	b.Logf("%d writes in %s, three restarts", len(f.writes), time.Since(started).Round(time.Second))
	f.verdict()
}

// BenchmarkFanOut: every watch gets every change, over HTTP/1.1, from one watcher process.
func BenchmarkFanOut(b *testing.B) {
	for _, n := range []int{25, 1000, 10_000} {
		b.Run(fmt.Sprintf("watches=%d", n), func(b *testing.B) {
			f := &fleet{tier: newTier(b, 1)}
			pid := f.watchers[0].cmd.Process.Pid
			awaitOK(b, "http://"+f.watchers[0].address+"/api/v1/namespaces/default/configmaps")
			before := residentBytes(b, pid)
			f.watch(1, watchesOf(b, n))
			memory := float64(residentBytes(b, pid)-before) / float64(n)
			cpu, started := cpuTime(b, pid), time.Now()
			f.load(max(1, min(100, 50_000/n)), 1, 10*time.Second, func() {})
			elapsed := time.Since(started)
			used := cpuTime(b, pid) - cpu
			f.verdict()
			b.ReportMetric(memory/1024, "KiB/watch")
			b.ReportMetric(float64(len(f.writes)*n)/elapsed.Seconds(), "events/s")
			b.ReportMetric(used.Seconds()/elapsed.Seconds()*100, "cpu-%")
		})
	}
}

func residentBytes(b *testing.B, pid int) int64 {
	fields := processFile(b, pid, "statm")
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// cpuTime is of all threads, in ticks of 10 ms.
func cpuTime(b *testing.B, pid int) time.Duration {
	fields := processFile(b, pid, "stat")
	user, err := strconv.Atoi(fields[13])
	if err != nil {
		b.Fatal(err)
	}
	system, err := strconv.Atoi(fields[14])
	if err != nil {
		b.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

func processFile(b *testing.B, pid int, name string) []string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		b.Fatal(err)
	}
	return strings.Fields(string(data))
}
