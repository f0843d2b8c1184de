package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// fleet is many clients, each of which watches the ConfigMaps of one namespace.
type fleet struct {
	*tier
	namespaces, objects int // objects in each namespace
	clients             []*reflector
	running             sync.WaitGroup
	stop                context.CancelFunc

	mu     sync.Mutex
	writes []write        // guarded by mu
	lists  map[string]int // guarded by mu; how many lists clients would have made, by reason

	connected, received, expired, unordered, reconnects, refused atomic.Int64
}

// write is an acknowledged write.
type write struct {
	namespace    int
	revision     uint64
	sent, answer time.Time
}

// streamsPerConnection is how many watches share an HTTP/2 connection.
const streamsPerConnection = 100

func (f *fleet) collection(namespace int) string {
	return fmt.Sprintf("/api/v1/namespaces/n%04d/configmaps", namespace)
}

// create makes the namespaces and their ConfigMaps.
func (f *fleet) create() {
	body := strings.Repeat("v", 1000)
	f.each(32, f.namespaces, func(i int) {
		f.call("POST", "/api/v1/namespaces", "application/json", fmt.Sprintf(`{"metadata":{"name":"n%04d"}}`, i))
	})
	f.each(32, f.namespaces*f.objects, func(i int) {
		f.call("POST", f.collection(i%f.namespaces), "application/json", fmt.Sprintf(`{"metadata":{"name":"x%d"},"data":{"k":%q}}`, i/f.namespaces, body))
	})
}

// each calls do for 0 to n-1, from many goroutines.
func (f *fleet) each(workers, n int, do func(i int)) {
	var wait sync.WaitGroup
	var next atomic.Int64
	for range workers {
		wait.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				do(int(i))
			}
		})
	}
	wait.Wait()
}

// watch starts the clients, 'per' in each namespace, and returns when all are connected.
func (f *fleet) watch(per int) {
	start, _ := f.call("GET", f.collection(0), "", "")
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	f.b.Cleanup(stop)
	client := f.client()
	for i := range f.namespaces * per {
		if f.over == http2 && i%streamsPerConnection == 0 {
			client = f.client()
		}
		r := &reflector{fleet: f, client: client, namespace: i % f.namespaces, position: start}
		f.clients = append(f.clients, r)
		f.running.Go(func() { r.run(ctx) })
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

// reflector keeps a position and watches from there, as client-go's reflector does. Where client-go's reflector would
// list again, this reflector only counts a list.
type reflector struct {
	fleet     *fleet
	client    *http.Client
	namespace int
	position  uint64
	seen      int     // events and bookmarks
	events    []event // those that the client received
}

type event struct {
	revision uint64
	at       time.Time
}

func (r *reflector) run(ctx context.Context) {
	for ctx.Err() == nil {
		rest := r.watch(ctx)
		if ctx.Err() != nil {
			return
		}
		r.fleet.reconnects.Add(1)
		select {
		// client-go's first backoff takes this long
		case <-time.After(max(rest, time.Duration(200+rand.IntN(600))*time.Millisecond)):
		case <-ctx.Done():
		}
	}
}

// watch watches from the position until the stream ends, and returns how long the server asks to wait.
func (r *reflector) watch(ctx context.Context) (rest time.Duration) {
	f := r.fleet
	url := fmt.Sprintf("%s%s?watch=1&allowWatchBookmarks=true&resourceVersion=%d", f.url(f.front), f.collection(r.namespace), r.position)
	request, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		panic(err)
	}
	began, before := time.Now(), r.seen
	answer, err := r.client.Do(request)
	if err != nil {
		if ctx.Err() == nil && !goesOn(err) && !utilnet.IsConnectionRefused(err) {
			f.list(errors.Unwrap(err).Error()) // without the URL
		}
		return 0
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return r.refused(answer)
	}
	f.connected.Add(1)
	defer f.connected.Add(-1)
	switch err := r.read(answer); {
	case ctx.Err() != nil:
	case !goesOn(err):
		f.list(err.Error())
	case r.seen == before && time.Since(began) < time.Second:
		f.list("a very short watch")
	}
	return 0
}

// goesOn says whether client-go would watch again after this error.
func goesOn(err error) bool { return utilnet.IsProbableEOF(err) || utilnet.IsTimeout(err) }

// refused follows client-go's rules: watch again if the answer says so, and list otherwise.
func (r *reflector) refused(answer *http.Response) (rest time.Duration) {
	rest = retryAfter(answer)
	switch code := answer.StatusCode; {
	case code == http.StatusTooManyRequests, code >= 500 && rest > 0:
		r.fleet.refused.Add(1)
		return rest
	case code == http.StatusGone:
		r.fleet.expired.Add(1)
	}
	body, _ := io.ReadAll(answer.Body)
	r.fleet.list(answer.Status + " " + string(body))
	return 0
}

// list counts a list that a client would have had to make, by reason.
func (f *fleet) list(why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lists == nil {
		f.lists = map[string]int{}
	}
	f.lists[why]++
}

// read reads events, one per line, until the stream ends, and returns the error with which it ended.
func (r *reflector) read(answer *http.Response) error {
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
			return err
		}
		if line.Len() == 0 && line.Cap() > 4096 {
			line = bytes.Buffer{}
		}
	}
}

func (r *reflector) receive(data []byte) {
	at := time.Now()
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
		if e.Object.Code == http.StatusGone {
			r.fleet.expired.Add(1)
		}
		r.fleet.list(string(data))
		return
	}
	r.seen++
	revision, _ := strconv.ParseUint(e.Object.Metadata.ResourceVersion, 10, 64)
	if revision < r.position {
		r.fleet.unordered.Add(1)
	}
	r.position = revision
	if e.Type != "BOOKMARK" {
		r.events = append(r.events, event{revision, at})
		r.fleet.received.Add(1)
	}
}

// update changes one object.
func (f *fleet) update(namespace, object int, value uint64) {
	revision, sent := f.call("PATCH", fmt.Sprintf("%s/x%d", f.collection(namespace), object), "application/merge-patch+json", fmt.Sprintf(`{"data":{"n":"%d"}}`, value))
	answer := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes = append(f.writes, write{namespace, revision, sent, answer})
}

// load writes at a rate until 'during' has returned, but at least for the time 'least'. A late write does not delay the
// others: load sends the overdue writes as soon as it can.
func (f *fleet) load(rate int, least time.Duration, during func()) {
	var wait sync.WaitGroup
	enough, places := make(chan struct{}), make(chan struct{}, 200)
	started := time.Now()
	go func() {
		during()
		time.Sleep(least - time.Since(started))
		close(enough)
	}()
	random := rand.New(rand.NewPCG(1, 1))
	for i := 0; ; i++ {
		select {
		case <-time.After(time.Until(started.Add(time.Duration(i) * time.Second / time.Duration(rate)))):
		case <-enough:
			wait.Wait()
			f.b.ReportMetric(float64(len(f.writes))/time.Since(started).Seconds(), "writes/s")
			return
		}
		namespace, object, value := random.IntN(f.namespaces), i%f.objects, random.Uint64()
		places <- struct{}{}
		wait.Go(func() {
			f.update(namespace, object, value)
			<-places
		})
	}
}

// verdict waits until every client has every change of its namespace, and reports changes that were lost or late.
func (f *fleet) verdict() {
	slices.SortFunc(f.writes, func(a, b write) int { return int(a.revision) - int(b.revision) })
	wanted, byRevision := make([][]uint64, f.namespaces), map[uint64]write{}
	for _, w := range f.writes {
		wanted[w.namespace] = append(wanted[w.namespace], w.revision)
		byRevision[w.revision] = w
	}
	expected := 0
	for _, r := range f.clients {
		expected += len(wanted[r.namespace])
	}
	last := f.received.Load()
	for quiet := 0; f.received.Load() < int64(expected) && quiet < 20; quiet++ {
		time.Sleep(time.Second)
		if now := f.received.Load(); now > last {
			last, quiet = now, 0
		}
	}
	f.stop()
	f.running.Wait()
	lost, repeated := 0, 0
	var sinceSent, sinceAnswer []time.Duration
	for _, r := range f.clients {
		got := map[uint64]bool{}
		for _, e := range r.events {
			w, known := byRevision[e.revision]
			if got[e.revision] || !known || w.namespace != r.namespace {
				repeated++
			}
			got[e.revision] = true
			sinceSent, sinceAnswer = append(sinceSent, e.at.Sub(w.sent)), append(sinceAnswer, e.at.Sub(w.answer))
		}
		for _, revision := range wanted[r.namespace] {
			if !got[revision] {
				lost++
			}
		}
	}
	f.report(expected, lost, repeated)
	f.reportLag("", sinceSent)
	f.reportLag("-after-answer", sinceAnswer)
}

func (f *fleet) report(expected, lost, repeated int) {
	lists := 0
	for why, n := range f.lists {
		f.b.Logf("%d x a client would list: %s", n, why)
		lists += n
	}
	f.b.Logf("%d clients: %d events expected, %d received, %d lost, %d repeated or not theirs, %d out of order, %d lists, %d x 410, %d reconnects, %d watches and %d writes told to come again",
		len(f.clients), expected, f.received.Load(), lost, repeated, f.unordered.Load(), lists, f.expired.Load(), f.reconnects.Load(), f.refused.Load(), f.throttled.Load())
	for unit, n := range map[string]int64{
		"expected": int64(expected), "received": f.received.Load(), "lost": int64(lost), "repeated": int64(repeated) + f.unordered.Load(),
		"lists": int64(lists), "410s": f.expired.Load(), "reconnects": f.reconnects.Load(),
	} {
		f.b.ReportMetric(float64(n), unit)
	}
	if expected == 0 || lost+repeated > 0 || int64(lists)+f.unordered.Load()+f.expired.Load() > 0 {
		f.b.Errorf("clients did not see exactly what was written")
	}
}

// reportLag reports the times from a write until a client has read its event.
func (f *fleet) reportLag(what string, lags []time.Duration) {
	if len(lags) == 0 {
		return
	}
	slices.Sort(lags)
	for _, percent := range []int{50, 99} {
		f.b.ReportMetric(float64(lags[(len(lags)-1)*percent/100].Microseconds())/1000, fmt.Sprintf("p%d-ms%s", percent, what))
	}
}
