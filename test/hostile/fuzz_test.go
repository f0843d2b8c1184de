package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

const (
	// fuzzWorkers is how many workers send at once.
	fuzzWorkers = 4
	// slowest is the longest time that a request may take.
	slowest = 5 * time.Second
	// slowestPlan is the longest time that a request with a plan may take, because a plan may write for 20 s.
	slowestPlan = 30 * time.Second
	// glance is how long a watch is read.
	glance = 100 * time.Millisecond
	// fuzzMemory is the largest resident memory, in bytes, that the process may ever have.
	fuzzMemory = 1 << 30
	// restart is how many requests one process serves before it is replaced, together with its cell.
	restart = 20_000
)

// TestFuzzHTTP sends mutated requests to the built binary for FUZZ_HTTP ('make fuzz-http'), as an administrator, and
// answers the calls of webhooks with mutated answers. No request may kill the process, get a 500 (except for a
// webhook's fault), or take more than 5 s (a plan 30 s). The process's memory must stay below 1 GiB. A fuzzer inside
// the process would have to instrument all of Kubernetes. FUZZ_HTTP_SEED repeats a run, as far as the machine's timing
// allows.
func TestFuzzHTTP(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("FUZZ_HTTP"))
	if err != nil {
		length = 5 * time.Second
	}
	seed := uint64(time.Now().UnixNano())
	if given := os.Getenv("FUZZ_HTTP_SEED"); given != "" {
		seed, err = strconv.ParseUint(given, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("FUZZ_HTTP_SEED=%d", seed)
	f := &fuzzer{codes: map[int]int{}, faults: map[string]string{}}
	ctx, end := context.WithTimeout(t.Context(), length)
	defer end()
	for round := uint64(0); ctx.Err() == nil; round++ {
		// the end of the subtest ends its cell
		t.Run(fmt.Sprint(round), func(t *testing.T) { f.round(ctx, t, seed+round) })
	}
	t.Log(f.summary())
	for kind, request := range f.faults {
		t.Errorf("%s\n%s", kind, request)
	}
}

type fuzzer struct {
	mu       sync.Mutex
	codes    map[int]int       // guarded by mu
	faults   map[string]string // guarded by mu: the first request of each kind
	slowest  time.Duration     // guarded by mu
	resident uint64            // guarded by mu: the largest so far
}

// round fuzzes one process.
func (f *fuzzer) round(ctx context.Context, t *testing.T, seed uint64) {
	s := serve(t, "watcher")
	for _, p := range slices.Concat(prepared, newLiar(t, seed).objects()) {
		s.must(admin, http.MethodPost, p.path, p.body)
	}
	corpus := slices.Concat(corpus, ofHistory, lying, encoded(s))
	var group errgroup.Group
	for worker := range uint64(fuzzWorkers) {
		m := &mutator{rand.New(rand.NewPCG(seed, worker)), corpus}
		group.Go(func() error {
			c := newClient()
			defer c.CloseIdleConnections()
			for range restart / fuzzWorkers {
				if ctx.Err() != nil || !f.send(s, c, m.next()) {
					return nil
				}
			}
			return nil
		})
	}
	_ = group.Wait()
	if f.failed() { // then the output says why
		for _, line := range panicked.FindAllStringSubmatch(s.Output(), -1) {
			f.fault(fmt.Sprintf("panic: %.60s", line[1]), query{}, []byte(line[0]))
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-s.Exited:
		f.faults["the process died"] = s.Output()
		return
	default:
	}
	f.resident = max(f.resident, s.peak())
	if f.resident > fuzzMemory {
		f.faults["more than 1 GiB resident"] = fmt.Sprint(f.resident)
	}
	s.Kill()
}

var panicked = regexp.MustCompile(`"?a request panicked"?.*panic=("(?:[^"\\]|\\.)*"|\S+) .*`)

// peak is the largest resident memory of the process so far, in bytes.
func (s *target) peak() uint64 {
	s.t.Helper()
	status, err := os.ReadFile("/proc/" + pid(s) + "/status")
	require.NoError(s.t, err)
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	require.NotNil(s.t, found)
	kib, err := strconv.ParseUint(string(found[1]), 10, 64)
	require.NoError(s.t, err)
	return kib << 10
}

// send sends a request, and returns whether the process still runs.
func (f *fuzzer) send(s *target, c *http.Client, q query) bool {
	r, err := http.NewRequest(q.method, s.URL(), strings.NewReader(q.body))
	if err != nil {
		return true // the mutated text is not a request
	}
	r.URL.Opaque = "//" + s.Address + q.path // the path unchanged, escaped or not
	r.Header = http.Header{"Authorization": {"Bearer admin"}}
	for name, value := range q.header {
		r.Header.Set(name, value)
	}
	ctx, end := context.WithTimeout(context.Background(), requestTimeout)
	defer end()
	begun := time.Now()
	response, err := c.Do(r.WithContext(ctx))
	if err != nil {
		select {
		case <-s.Exited:
			f.fault("the process died", q, nil)
			return false
		default: // net/http refuses to send the request, or the server cuts the connection
			f.count(0, 0)
			return true
		}
	}
	defer response.Body.Close()
	if strings.Contains(q.path, "watch") && response.StatusCode == http.StatusOK { // a watch does not end
		defer time.AfterFunc(glance, end).Stop()
		begun = begun.Add(glance)
	}
	var answer bytes.Buffer
	_, _ = answer.ReadFrom(http.MaxBytesReader(nil, response.Body, 64<<10))
	took := time.Since(begun)
	f.count(response.StatusCode, took)
	// a webhook's fault is a 500 upstream, too
	ofWebhook := strings.Contains(q.path+q.body, "lie") || bytes.Contains(answer.Bytes(), []byte("webhook"))
	if response.StatusCode == http.StatusInternalServerError && !ofWebhook {
		f.fault("500: "+message(answer.Bytes()), q, answer.Bytes())
	}
	if took > slowest && !strings.Contains(q.path, "/plans") || took > slowestPlan {
		f.fault(fmt.Sprintf("took %s: %s %.60s", took.Round(time.Second), q.method, q.path), q, append(answer.Bytes(), s.account()...))
	}
	return true
}

// account returns the last output of the process and its metrics, which may say why a request took long.
func (s *target) account() string {
	counted := s.do(admin, http.MethodGet, "/metrics", "", "")
	said := s.Output()
	return "\n" + said[max(0, len(said)-4000):] + strings.Join(regexp.MustCompile(`(?m)^logplane_\S+ [^0].*$`).FindAllString(string(counted.Body), -1), "\n")
}

var varying = regexp.MustCompile(`[0-9]+|"[^"]*"|\\"[^"]*"|'[^']*'`)

// message returns a Status's message without its varying parts.
func message(answer []byte) string {
	var status struct{ Message string }
	if json.Unmarshal(answer, &status) != nil {
		status.Message = string(answer)
	}
	return fmt.Sprintf("%.150s", varying.ReplaceAllString(status.Message, "…"))
}

func (f *fuzzer) count(code int, took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.codes[code]++
	f.slowest = max(f.slowest, took)
}

func (f *fuzzer) fault(kind string, q query, answer []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, known := f.faults[kind]; !known {
		f.faults[kind] = fmt.Sprintf("%s %q %q\n%.4000q\nanswer: %.6000s", q.method, q.path, q.header, q.body, answer)
	}
}

func (f *fuzzer) failed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.faults) > 0
}

func (f *fuzzer) summary() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	n := 0
	for code, count := range f.codes {
		all, n = append(all, fmt.Sprintf("%d: %d", code, count)), n+count
	}
	slices.Sort(all)
	return fmt.Sprintf("%d requests (%s), the slowest %s, at most %d MiB resident", n, strings.Join(all, ", "), f.slowest.Round(time.Millisecond), f.resident>>20)
}
