package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/logplane/logplane/test/product"
)

// BenchmarkScale fills a cell with LOGPLANE_SCALE Nodes ('make bench-scale': 100,000), a Lease and eight Pods for each,
// and prints what it costs at a sixteenth of that, an eighth, and so on. Each role is a process of its own, so that
// its processor time is known; 'dev' is started on the same folder too.
func BenchmarkScale(b *testing.B) {
	nodes, err := strconv.Atoi(os.Getenv("LOGPLANE_SCALE"))
	if err != nil || nodes < 16*100 {
		b.Skip("LOGPLANE_SCALE, a number of Nodes of at least 1,600, is not set ('make bench-scale')")
	}
	s := &scale{b: b, folder: b.TempDir(), client: &http.Client{Timeout: 3 * time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 200, DisableCompression: true}}}
	s.found()
	for step, from := 16, 0; step >= 1; step /= 2 {
		to := nodes / step / 100 * 100
		s.sizes = append(s.sizes, to*(podsPerNode+2))
		s.fill(from, to)
		s.starts()
		s.reads(to)
		s.writes(to)
		s.end()
		from = to
	}
	s.examine()
	s.print()
}

// scale is one cell that grows, and what was measured of it.
type scale struct {
	b      *testing.B
	folder string
	client *http.Client
	filler *filler

	log                *exec.Cmd
	where              []string
	projector, watcher *product.Process

	sizes   []int
	names   []string // of what was measured, in order
	figures map[string][]float64
}

// logVariable is the folder of the log, in a process that is to be its server.
const logVariable = "LOGPLANE_BENCH_LOG"

// serveLog runs the log's server, prints its URL, and returns when its input ends.
func serveLog(folder string) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
		JetStream: true, StoreDir: folder, SyncAlways: true, MaxPayload: 8 << 20})
	if err != nil {
		panic(err)
	}
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		panic("the log's server is not ready")
	}
	fmt.Println(s.ClientURL())
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.Shutdown()
	s.WaitForShutdown()
}

func (s *scale) no(err error) {
	s.b.Helper()
	if err != nil {
		s.b.Fatal(err)
	}
}

// found makes a cell as 'dev' has it on disk, and the templates of all objects.
func (s *scale) found() {
	dev := product.Dev(s.b, s.folder)
	send := func(method, path, kind, body string) types.UID {
		s.b.Helper()
		request, err := http.NewRequest(method, dev.URL()+path, strings.NewReader(body))
		s.no(err)
		request.Header.Set("Content-Type", kind)
		answer, err := s.client.Do(request)
		s.no(err)
		defer answer.Body.Close()
		var made metav1.PartialObjectMetadata
		if err := json.NewDecoder(answer.Body).Decode(&made); err != nil || answer.StatusCode >= 300 {
			s.b.Fatalf("%s %s: %s %v", method, path, answer.Status, err)
		}
		return made.UID
	}
	send(http.MethodPost, "/api/v1/namespaces", asJSON, `{"metadata":{"name":"templates"}}`)
	var owner types.UID // of the next one: an object whose owner is missing would be collected
	for _, o := range templates {
		uid := send(http.MethodPost, o.path, asJSON, strings.Replace(o.body, "OWNER", string(owner), 1))
		if o.status != "" {
			send(http.MethodPatch, o.path+"/template/status", "application/merge-patch+json", o.status)
		}
		owner = uid
	}
	dev.Stop()
}

func (s *scale) bucket() string { return filepath.Join(s.folder, "bucket") }

// startLog serves the log, and a projector follows it.
func (s *scale) startLog() {
	s.log = exec.Command(os.Args[0])
	s.log.Env = append(os.Environ(), logVariable+"="+filepath.Join(s.folder, "log"))
	s.log.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	_, err := s.log.StdinPipe()
	s.no(err)
	out, err := s.log.StdoutPipe()
	s.no(err)
	s.no(s.log.Start())
	s.b.Cleanup(func() { _ = s.log.Process.Kill(); _ = s.log.Wait() })
	url, err := bufio.NewReader(out).ReadString('\n')
	s.no(err)
	s.where = []string{"--nats", strings.TrimSpace(url), "--bucket", "file://" + s.bucket()}
}

func (s *scale) startProjector(args ...string) {
	s.projector = product.Run(s.b, slices.Concat([]string{"projector"}, s.where, args)...)
}

// end stops all processes, so that the next step begins with cold ones.
func (s *scale) end() {
	for _, p := range []*product.Process{s.watcher, s.projector} {
		if p != nil {
			p.Stop()
		}
	}
	s.watcher, s.projector = nil, nil
	_ = s.log.Process.Signal(syscall.SIGKILL)
	_ = s.log.Wait()
}

// put keeps a figure of the current size.
func (s *scale) put(name string, value float64) {
	if s.figures == nil {
		s.figures = map[string][]float64{}
	}
	if _, known := s.figures[name]; !known {
		s.names = append(s.names, name)
	}
	for len(s.figures[name]) < len(s.sizes)-1 {
		s.figures[name] = append(s.figures[name], math.NaN())
	}
	s.figures[name] = append(s.figures[name], value)
	s.b.Logf("%9d objects: %-60s %12.3f", s.sizes[len(s.sizes)-1], name, value)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// fill brings the cell to so many nodes. It keeps nothing of the past, as an hour later.
func (s *scale) fill(from, to int) {
	s.startLog()
	s.startProjector()
	if s.filler == nil {
		s.filler = newFiller(s.b, s.where[1], s.bucket(), "templates", "template")
	} else {
		s.filler.open(s.where[1], s.bucket())
	}
	s.startWatcher("")
	for i := (from*podsPerNode + podsPerNamespace - 1) / podsPerNamespace; i*podsPerNamespace < to*podsPerNode; i++ {
		post(s.b, s.watcher.URL()+"/api/v1/namespaces", fmt.Sprintf(`{"metadata":{"name":%q}}`, namespaceOf(i*podsPerNamespace)))
	}
	began, projecting, logging, head := time.Now(), s.cpu(s.projector), s.cpuOfLog(), s.filler.head()
	s.filler.grow(from, to)
	s.filler.awaitProjector()
	events := float64(s.filler.head() - head)
	s.put("fill: events a second", events/time.Since(began).Seconds())
	s.put("fill: projector CPU, µs an event", float64((s.cpu(s.projector)-projecting).Microseconds())/events)
	s.put("fill: log CPU, µs an event", float64((s.cpuOfLog()-logging).Microseconds())/events)
	s.put("projector VmHWM, MiB", statusOf(s.b, s.projector, "VmHWM"))
	s.putRoot("")
	s.filler.open(s.where[1], s.bucket()) // with the root that has everything
	s.filler.forget()
	s.end()
}

// putRoot puts what the snapshot is made of.
func (s *scale) putRoot(when string) {
	r, bytes := s.filler.root(), int64(0)
	for _, segment := range r.Segments {
		bytes += segment.Bytes
	}
	s.put(when+"snapshot: segments", float64(len(r.Segments)))
	s.put(when+"snapshot: MiB of rows", float64(bytes)/(1<<20))
	about, err := os.Stat(filepath.Join(s.bucket(), "logplane", "root"))
	s.no(err)
	s.put(when+"snapshot: KiB of the root", float64(about.Size())/1024)
}

func (s *scale) cpu(p *product.Process) time.Duration {
	s.b.Helper()
	select {
	case <-p.Exited:
		s.b.Fatalf("%s ended: %s", p.Cmd, p.Output())
	default:
	}
	return cpuTime(s.b, p.Cmd.Process.Pid)
}
func (s *scale) cpuOfLog() time.Duration { return cpuTime(s.b, s.log.Process.Pid) }

func statusOf(b *testing.B, p *product.Process, name string) float64 {
	return (&load{b: b, process: p}).status(name)
}

func folderMiB(folder string) float64 {
	bytes := int64(0)
	_ = filepath.WalkDir(folder, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if about, err := d.Info(); err == nil {
				bytes += about.Size()
			}
		}
		return nil
	})
	return float64(bytes) / (1 << 20)
}

// starts measures 'dev' on the folder, and leaves log, projector and watcher running.
func (s *scale) starts() {
	began := time.Now()
	dev := product.Dev(s.b, s.folder)
	s.put("dev: start to ready, ms", ms(time.Since(began)))
	s.put("dev: CPU of the start, ms", ms(s.cpu(dev)))
	s.put("dev: VmRSS when ready, MiB", statusOf(s.b, dev, "VmRSS"))
	dev.Stop()
	s.put("log on disk, MiB", folderMiB(filepath.Join(s.folder, "log")))
	s.startLog()
	s.startProjector("--metrics-listen", "127.0.0.1:0")
	s.startWatcher("watcher: ")
	s.filler.open(s.where[1], s.bucket())
}

// startWatcher starts a watcher that has read nothing; it replaces the one before.
func (s *scale) startWatcher(what string) {
	if s.watcher != nil {
		s.watcher.Stop()
	}
	began := time.Now()
	s.watcher = product.Serve(s.b, slices.Concat([]string{"watcher", "--listen", "127.0.0.1:0", "--authorization-mode", "AlwaysAllow", "--max-watches-per-user", "0"}, s.where)...)
	if what != "" {
		s.put(what+"start to ready, ms", ms(time.Since(began)))
	}
}

// request is one to the watcher.
type request struct {
	method, path, accept string
	body                 []byte
}

// send sends a request and reads the answer to its end. Keep says that the body is wanted.
func (s *scale) send(r request, keep bool) (body []byte, size int64, first time.Duration, err error) {
	q, err := http.NewRequest(r.method, s.watcher.URL()+r.path, bytes.NewReader(r.body))
	if err != nil {
		return nil, 0, 0, err
	}
	q.Header.Set("Accept", r.accept)
	if r.body != nil {
		q.Header.Set("Content-Type", r.accept)
	}
	began := time.Now()
	answer, err := s.client.Do(q)
	if err != nil {
		return nil, 0, 0, err
	}
	defer answer.Body.Close()
	one := make([]byte, 1)
	n, err := io.ReadFull(answer.Body, one)
	first = time.Since(began)
	if err != nil {
		return nil, 0, first, err
	}
	var kept bytes.Buffer
	sink := io.Discard
	if keep || answer.StatusCode >= 300 {
		kept.Write(one)
		sink = &kept
	}
	size, err = io.Copy(sink, answer.Body)
	if err == nil && answer.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s", r.method, r.path, kept.Bytes())
	}
	return kept.Bytes(), size + int64(n), first, err
}

// measure sends a request so many times, and puts the median of its times and its mean of the processor.
func (s *scale) measure(name string, times int, make func(i int) request) {
	s.b.Helper()
	before := s.cpu(s.watcher)
	var took []time.Duration
	for i := range times {
		began := time.Now()
		if _, _, _, err := s.send(make(i), false); err != nil {
			s.b.Logf("%s: %v", name, err)
			s.put(name+", ms", -1)
			s.put(name+", CPU ms", -1)
			return
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	s.put(name+", ms", ms(took[len(took)/2]))
	s.put(name+", CPU ms", ms(s.cpu(s.watcher)-before)/float64(times))
}

const (
	asJSON     = "application/json"
	asProtobuf = "application/vnd.kubernetes.protobuf"
	allPods    = "/api/v1/pods"
)

func get(path string) func(int) request {
	return func(int) request { return request{method: http.MethodGet, path: path, accept: asJSON} }
}

// reads measures the reads of a watcher that has read nothing, and again.
func (s *scale) reads(nodes int) {
	pod := func(i int) string { i = i * 7919 % (nodes * podsPerNode); return podPath(i) }
	s.measure("get, first", 1, get(pod(1)))
	s.measure("get, at random", 500, func(i int) request { return get(pod(i))(i) })
	s.startWatcher("")
	s.measure("page of 1, first", 1, get(allPods+"?limit=1"))
	s.measure("page of 1, again", 50, get(allPods+"?limit=1"))
	s.measure("page of 1 after a write", 50, func(int) request {
		s.no(s.filler.renew(s.b.Context(), 0, 1))
		return get(allPods + "?limit=1")(0)
	})
	s.measure("page of 500, first", 1, get(allPods+"?limit=500"))
	s.measure("page of 500, again", 20, get(allPods+"?limit=500"))
	s.startWatcher("")
	onNode := allPods + "?fieldSelector=spec.nodeName%3D" + nodeName(nodes/2)
	s.measure("pods of one node, first", 1, get(onNode))
	s.measure("pods of one node, again", 2, get(onNode))
	s.measure("by a label of none", 2, get(allPods+"?labelSelector=app%3Dnone"))
	s.list("JSON", asJSON)
	s.list("protobuf", asProtobuf)
	s.startWatcher("")
}

func podPath(i int) string { return "/api/v1/namespaces/" + namespaceOf(i) + "/pods/" + podName(i) }

// list reads all Pods once from a watcher that has read nothing.
func (s *scale) list(what, accept string) {
	s.startWatcher("")
	before, began := s.cpu(s.watcher), time.Now()
	_, size, first, err := s.send(request{http.MethodGet, allPods, accept, nil}, false)
	name := "list as " + what
	if err != nil {
		s.b.Logf("%s: after %s: %v", name, time.Since(began), err)
	}
	s.put(name+": first byte, ms", ms(first))
	s.put(name+": last byte, ms", ms(time.Since(began)))
	s.put(name+": CPU ms", ms(s.cpu(s.watcher)-before))
	s.put(name+": MiB", float64(size)/(1<<20))
	s.put(name+": VmHWM, MiB", statusOf(s.b, s.watcher, "VmHWM"))
	if err != nil {
		s.put(name+": FAILED", 1)
	}
}

const (
	leaseUpdates = 4000
	leaseClients = 16
	leaseWatches = 100
	// pacedRate is of Lease updates a second, in batches as kubelets' would come together.
	pacedRate, pacedSeconds = 1000, 15
)

// writes measures what is written: a Pod, Leases with and without watches, and the projector under a steady rate.
func (s *scale) writes(nodes int) {
	s.sameAsMade()
	old := s.filler.head()
	s.measure("create a Pod", 200, func(i int) request {
		return request{http.MethodPost, "/api/v1/namespaces/templates/pods", asJSON, s.newPod("templates", fmt.Sprintf("new-%d-%d", nodes, i))}
	})
	s.renewals("Lease updates", nodes)
	stop, received := s.watchLeases()
	s.renewals("Lease updates under 100 watches", nodes)
	stop()
	s.b.Logf("%d events arrived", received.Load())
	s.paced()
	s.oldWatch(old)
}

// sameAsMade: an update that changes nothing writes nothing, so what was filled is stored as the API would store it.
func (s *scale) sameAsMade() {
	for _, path := range []string{podPath(4711 % podsPerNamespace), "/api/v1/nodes/" + nodeName(7), "/apis/coordination.k8s.io/v1/namespaces/" + leaseNamespace + "/leases/" + nodeName(7)} {
		before, _, _, err := s.send(request{http.MethodGet, path, asJSON, nil}, true)
		s.no(err)
		after, _, _, err := s.send(request{http.MethodPut, path, asJSON, before}, true)
		s.no(err)
		if !bytes.Equal(before, after) {
			s.b.Fatalf("%s: an update that changes nothing changed it:\n%s\n%s", path, before, after)
		}
	}
}

// newPod is a Pod to be made, without an owner.
func (s *scale) newPod(namespace, name string) []byte {
	var pod map[string]any
	s.no(json.Unmarshal([]byte(templates[podTemplate].body), &pod))
	pod["metadata"] = map[string]any{"name": name, "namespace": namespace}
	body, err := json.Marshal(pod)
	s.no(err)
	return body
}

// renewals updates Leases as kubelets do, from a few clients, and puts the processor of each role. Each client has
// Leases of its own, whose revisions it knows.
func (s *scale) renewals(name string, nodes int) {
	leases := make([]*coordinationv1.Lease, min(leaseUpdates, nodes/leaseClients*leaseClients))
	each := func(do func(i int) error) {
		s.b.Helper()
		var running sync.WaitGroup
		for c := range leaseClients {
			running.Go(func() {
				for i := c; i < leaseUpdates; i += leaseClients {
					if err := do(i); err != nil {
						s.b.Error(err)
						return
					}
				}
			})
		}
		running.Wait()
		if s.b.Failed() {
			s.b.FailNow()
		}
	}
	exchange := func(i int, r request) error {
		r.path, r.accept = "/apis/coordination.k8s.io/v1/namespaces/"+leaseNamespace+"/leases/"+nodeName(i), asProtobuf
		body, _, _, err := s.send(r, true)
		if err != nil {
			return err
		}
		lease, err := runtime.Decode(stored, body)
		if err == nil {
			leases[i] = lease.(*coordinationv1.Lease)
		}
		return err
	}
	each(func(i int) error {
		if i >= len(leases) {
			return nil
		}
		return exchange(i, request{method: http.MethodGet})
	})
	watching, logging, began := s.cpu(s.watcher), s.cpuOfLog(), time.Now()
	each(func(i int) error {
		i %= len(leases)
		now := metav1.NowMicro()
		leases[i].Spec.RenewTime = &now
		return exchange(i, request{method: http.MethodPut, body: encoded(leases[i])})
	})
	s.put(name+": a second", leaseUpdates/time.Since(began).Seconds())
	s.put(name+": watcher CPU, µs each", float64((s.cpu(s.watcher)-watching).Microseconds())/leaseUpdates)
	s.put(name+": log CPU, µs each", float64((s.cpuOfLog()-logging).Microseconds())/leaseUpdates)
}

// watchLeases opens watches of all Leases. All of them are open when it returns.
func (s *scale) watchLeases() (stop func(), received *atomic.Int64) {
	ctx, cancel := context.WithCancel(s.b.Context())
	received = &atomic.Int64{}
	var running sync.WaitGroup
	for range leaseWatches {
		answer := s.watch(ctx, "/apis/coordination.k8s.io/v1/leases", s.filler.head())
		running.Go(func() {
			defer answer.Body.Close()
			lines := bufio.NewReaderSize(answer.Body, 64<<10)
			for {
				_, err := lines.ReadSlice('\n')
				if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
					return
				}
				received.Add(1)
			}
		})
	}
	return func() { cancel(); running.Wait() }, received
}

func (s *scale) watch(ctx context.Context, path string, from uint64) *http.Response {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s%s?watch=true&resourceVersion=%d", s.watcher.URL(), path, from), nil)
	s.no(err)
	answer, err := (&http.Client{Transport: s.client.Transport}).Do(r)
	s.no(err)
	if answer.StatusCode != http.StatusOK {
		s.b.Fatal(answer.Status)
	}
	return answer
}

// paced appends Lease updates at a steady rate past HTTP, and puts what the projector uses for it.
func (s *scale) paced() {
	s.filler.awaitProjector()
	projecting, following, logging, requests := s.cpu(s.projector), s.cpu(s.watcher), s.cpuOfLog(), s.bucketRequests()
	const batch = 100
	pace := time.NewTicker(time.Second * batch / pacedRate)
	defer pace.Stop()
	began := time.Now()
	for i := 0; i < pacedRate*pacedSeconds; i += batch {
		<-pace.C
		s.no(s.filler.renew(s.b.Context(), i, batch))
	}
	took := time.Since(began)
	s.filler.awaitProjector()
	name := fmt.Sprintf("projector at %d Lease updates a second: ", pacedRate)
	s.put(name+"reached", pacedRate*pacedSeconds/took.Seconds())
	each := func(name string, used time.Duration) {
		s.put(name, float64(used.Microseconds())/(pacedRate*pacedSeconds))
	}
	each(name+"CPU, µs an event", s.cpu(s.projector)-projecting)
	each("the same: log CPU, µs an event", s.cpuOfLog()-logging)
	each("the same: CPU of a watcher without watches, µs an event", s.cpu(s.watcher)-following)
	minutes, dollars := took.Minutes(), 0.0
	now := s.bucketRequests()
	for _, kind := range slices.Sorted(maps.Keys(now)) {
		n := now[kind] - requests[kind]
		price := putPrice
		if strings.HasPrefix(kind, "get") {
			price = getPrice
		}
		dollars += n * price
		s.put(name+kind+" a minute", n/minutes)
	}
	s.put(name+"$ a month", dollars/minutes*60*24*30)
	s.putRoot("after that: ")
}

const putPrice, getPrice = 5.0 / 1e6, 0.4 / 1e6 // $ a request, as in projection/replay_test.go

// bucketRequests are those of the projector until now, by kind.
func (s *scale) bucketRequests() map[string]float64 {
	var address string
	for line := range strings.Lines(s.projector.Output()) {
		if _, after, found := strings.Cut(line, "address=127.0.0.1:"); found {
			address = "127.0.0.1:" + strings.Fields(after)[0]
		}
	}
	answer, err := s.client.Get("http://" + address + "/metrics")
	s.no(err)
	defer answer.Body.Close()
	found := map[string]float64{}
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		rest, is := strings.CutPrefix(lines.Text(), `logplane_bucket_requests_total{kind="`)
		if kind, value, ok := strings.Cut(rest, `"} `); is && ok {
			found[kind], err = strconv.ParseFloat(value, 64)
			s.no(err)
		}
	}
	return found
}

// oldWatch watches the Pods of one namespace from before all writes of this step, of which the last is one of its own.
func (s *scale) oldWatch(old uint64) {
	passed := float64(s.filler.head() - old)
	for _, which := range []string{"first", "again"} {
		if which == "first" {
			s.startWatcher("")
		}
		path, name := "/api/v1/namespaces/"+namespaceOf(0)+"/pods", fmt.Sprintf("last-%s-%d", which, len(s.sizes))
		_, _, _, err := s.send(request{http.MethodPost, path, asJSON, s.newPod(namespaceOf(0), name)}, false)
		s.no(err)
		before, began := s.cpu(s.watcher), time.Now()
		ctx, cancel := context.WithCancel(s.b.Context())
		answer := s.watch(ctx, path, old)
		for events := json.NewDecoder(answer.Body); ; {
			var event struct {
				Object struct{ Metadata struct{ Name string } }
			}
			s.no(events.Decode(&event))
			if event.Object.Metadata.Name == name {
				break
			}
		}
		s.put("watch of a namespace from an old revision, "+which+", ms", ms(time.Since(began)))
		s.put("watch of a namespace from an old revision, "+which+", CPU ms", ms(s.cpu(s.watcher)-before))
		cancel()
		_ = answer.Body.Close()
	}
	s.put("watch of a namespace from an old revision: events passed over", passed)
}

// examine checks every byte of the cell.
func (s *scale) examine() {
	began := time.Now()
	said, err := exec.Command(product.Logplane(s.b), "inspect", "fsck", "--data", s.folder).CombinedOutput()
	if err != nil {
		s.b.Errorf("inspect fsck: %v: %s", err, said)
	}
	s.put("inspect fsck, ms", ms(time.Since(began)))
	s.put("bucket with its garbage, MiB", folderMiB(s.bucket()))
}

// print prints a table with what each figure has grown by, from the smallest size to the largest.
func (s *scale) print() {
	fmt.Printf("\n| objects |")
	for _, n := range s.sizes {
		fmt.Printf(" %d |", n)
	}
	fmt.Printf(" growth |\n|---|%s---|\n", strings.Repeat("---|", len(s.sizes)))
	for _, name := range s.names {
		fmt.Printf("| %s |", name)
		figures := s.figures[name]
		for _, f := range figures {
			fmt.Printf(" %s |", figure(f))
		}
		for range len(s.sizes) - len(figures) {
			fmt.Print(" |")
		}
		if first := figures[0]; len(figures) == len(s.sizes) && first > 0 {
			fmt.Printf(" %.1f |\n", figures[len(figures)-1]/first)
		} else {
			fmt.Printf(" |\n")
		}
	}
}

// figure has three digits, or all that are before the point.
func figure(f float64) string {
	switch {
	case math.IsNaN(f):
		return ""
	case f >= 100:
		return fmt.Sprintf("%.0f", f)
	case f >= 10:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.2f", f)
}
