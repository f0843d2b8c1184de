package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// request is a request to the watcher.
type request struct {
	method, path, accept string
	body                 []byte
}

// send sends a request and reads the whole answer. The body is returned only if keep is set.
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

// measure sends a request several times, and puts the median time and the mean processor time into the table.
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

// reads measures reads by a watcher that has read nothing before, and again by the same watcher.
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

// list reads all Pods once, through a watcher that has read nothing before.
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
	// pacedRate is the number of Lease updates a second. They come in batches, as updates by several kubelets would.
	pacedRate, pacedSeconds, pacedBatch = 1000, 15, 100
)

// writes measures writes of a Pod, of Leases with and without watches, and the projector under a steady rate.
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

// sameAsMade checks that the filler stores objects as the API would: an update with the same content must write
// nothing.
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

// newPod returns a Pod to create, without an owner.
func (s *scale) newPod(namespace, name string) []byte {
	var pod map[string]any
	s.no(json.Unmarshal([]byte(templates[podTemplate].body), &pod))
	pod["metadata"] = map[string]any{"name": name, "namespace": namespace}
	body, err := json.Marshal(pod)
	s.no(err)
	return body
}

// renewals updates Leases as kubelets do, from a few clients, and puts the processor time of each role into the table.
// Each client has its own Leases, whose revisions it knows.
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

// watchLeases opens watches of all Leases, and returns when all are open.
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

// paced appends Lease updates at a steady rate, without HTTP, and puts the resources that the projector uses into the
// table.
func (s *scale) paced() {
	// The log no longer has events of the Leases. In a steady cell the log has such events, so the projector need not
	// look the Leases up. So each Lease is first updated once.
	for i := 0; i < pacedRate*pacedSeconds; i += pacedBatch {
		s.no(s.filler.renew(s.b.Context(), i, pacedBatch))
	}
	s.filler.awaitProjector()
	projecting, following, logging, requests := s.cpu(s.projector), s.cpu(s.watcher), s.cpuOfLog(), s.bucketRequests()
	pace := time.NewTicker(time.Second * pacedBatch / pacedRate)
	defer pace.Stop()
	began := time.Now()
	for i := 0; i < pacedRate*pacedSeconds; i += pacedBatch {
		<-pace.C
		s.no(s.filler.renew(s.b.Context(), i, pacedBatch))
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

const putPrice, getPrice = 5.0 / 1e6, 0.4 / 1e6 // $ per request, as in projection/replay_test.go

// bucketRequests counts the projector's requests to the bucket until now, by kind.
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

// oldWatch watches the Pods of one namespace from a revision before all writes of this step. The last of those writes
// is a Pod that oldWatch creates.
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
