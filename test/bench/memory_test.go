package bench

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

// BenchmarkMemoryAfterLoad loads each kind of process with many objects, whole lists, large bodies and many watches. It
// prints the resident memory after the start and a few requests, at the peak, and 20 and 60 seconds after the load.
// LOGPLANE_BINARY chooses another binary to compare with.
func BenchmarkMemoryAfterLoad(b *testing.B) {
	cell := func(b *testing.B) []string {
		where := product.Init(b, eventlogtest.Run(b, b.TempDir()).ClientURL(), filepath.Join(b.TempDir(), "bucket"))
		product.Run(b, append([]string{"projector"}, where...)...)
		return where
	}
	serve := func(b *testing.B, command string) *product.Process {
		return product.Serve(b, append([]string{command, "--listen", "127.0.0.1:0", "--authorization-mode", "AlwaysAllow"}, cell(b)...)...)
	}
	for _, c := range []struct {
		name    string
		start   func(b *testing.B) *product.Process
		watches int
	}{
		{"dev", func(b *testing.B) *product.Process { return product.Dev(b, b.TempDir()) }, 1000},
		{"watcher", func(b *testing.B) *product.Process { return serve(b, "watcher") }, 1000},
		{"api", func(b *testing.B) *product.Process { return serve(b, "api") }, 0},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				l := &load{b: b, process: c.start(b), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
				l.warmUp()
				start := l.resident()
				l.objects()
				l.lists()
				l.bodies()
				l.watches(c.watches)
				l.client.CloseIdleConnections()
				b.ReportMetric(start, "start-MiB")
				b.ReportMetric(l.status("VmHWM"), "peak-MiB")
				time.Sleep(20 * time.Second)
				b.ReportMetric(l.resident(), "after-20s-MiB")
				time.Sleep(40 * time.Second)
				b.ReportMetric(l.resident(), "after-60s-MiB")
				b.ReportMetric(l.resident()/start, "after/start")
				l.process.Kill()
			}
		})
	}
}

// BenchmarkManyPods creates 100,000 Pods of 4 KB, or LOGPLANE_BENCH_OBJECTS of LOGPLANE_BENCH_BYTES, in a 'dev' whose
// memory limit is 256 MiB, and reads them in several ways. It prints the peak of resident memory during each step.
func BenchmarkManyPods(b *testing.B) {
	n, bytes := fromEnvironment("LOGPLANE_BENCH_OBJECTS", 100_000), fromEnvironment("LOGPLANE_BENCH_BYTES", 4<<10)
	for b.Loop() {
		l := &load{b: b, process: product.Dev(b, b.TempDir(), "--memory-mib", "256"), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
		step := func(name string, do func()) {
			// resets VmHWM
			if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", l.process.Cmd.Process.Pid), []byte("5"), 0); err != nil {
				b.Fatal(err)
			}
			start := time.Now()
			do()
			b.ReportMetric(l.status("VmHWM"), name+"-MiB")
			b.ReportMetric(time.Since(start).Seconds(), name+"-s")
		}
		list := func(accept, query string) func() {
			return func() { _ = l.send("GET", "/api/v1/pods"+query, "", accept) }
		}
		const json, protobuf = "application/json", "application/vnd.kubernetes.protobuf"
		step("create", func() { l.each(n, func(i int) { l.call("POST", "/api/v1/namespaces/default/pods", pod(i, bytes)) }) })
		step("json", list(json, ""))
		step("protobuf", func() { b.ReportMetric(float64(l.send("GET", "/api/v1/pods", "", protobuf))/float64(n), "B/Pod") })
		step("label", list(json, "?labelSelector=none=none"))
		step("page", list(json, "?limit=500"))
		step("table", list(json+";as=Table;v=v1;g=meta.k8s.io", ""))
		step("metadata", list(protobuf+";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", ""))
		step("indented", list(json, "?pretty=true"))
		step("three-json", func() { l.each(3, func(int) { list(json, "")() }) })
		step("three-protobuf", func() { l.each(3, func(int) { list(protobuf, "")() }) })
		time.Sleep(3 * time.Second)
		b.ReportMetric(l.resident(), "after-3s-MiB")
		time.Sleep(27 * time.Second)
		b.ReportMetric(l.resident(), "after-30s-MiB")
		l.process.Kill()
	}
}

func fromEnvironment(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// pod returns a Pod whose stored form has about the given number of bytes, some of which do not compress.
func pod(i, bytes int) string {
	random := make([]byte, max(0, bytes-1130)/2)
	_, _ = rand.Read(random) // never fails
	return fmt.Sprintf(`{"metadata":{"name":"pod-%06d","labels":{"app":"app-%d"},"annotations":{"noise":"%x"}},"spec":{"containers":[{"name":"c","image":"i"}]}}`, i, i/10, random)
}

// load is one client of a process.
type load struct {
	b       *testing.B
	process *product.Process
	client  *http.Client
}

// status returns the value of a line of /proc/PID/status, in MiB.
func (l *load) status(name string) float64 {
	l.b.Helper()
	lines, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", l.process.Cmd.Process.Pid))
	if err != nil {
		l.b.Fatal(err)
	}
	for line := range strings.Lines(string(lines)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			var kilobytes float64
			if _, err := fmt.Sscan(value, &kilobytes); err != nil {
				l.b.Fatal(err)
			}
			return kilobytes / 1024
		}
	}
	l.b.Fatalf("no %s in %s", name, lines)
	return 0
}

func (l *load) resident() float64 { return l.status("VmRSS") }

// call sends a request, which must succeed, and drops the answer.
func (l *load) call(method, path, body string) { _ = l.send(method, path, body, "") }

// send sends a request, which must succeed, and returns the size of the answer in bytes.
func (l *load) send(method, path, body, accept string) int64 {
	r, err := http.NewRequest(method, l.process.URL()+path, strings.NewReader(body))
	if err != nil {
		l.b.Fatal(err)
	}
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := l.client.Do(r)
	if err != nil {
		l.b.Error(err)
		return 0
	}
	defer answer.Body.Close()
	n, err := io.Copy(io.Discard, answer.Body)
	if err == nil && answer.StatusCode == http.StatusTooManyRequests { // the projector has fallen behind
		time.Sleep(time.Second)
		return l.send(method, path, body, accept)
	}
	if err != nil || answer.StatusCode >= 300 {
		l.b.Errorf("%s %s: %s %v", method, path, answer.Status, err)
	}
	return n
}

// each calls do for 0 to n-1, from a few goroutines.
func (l *load) each(n int, do func(i int)) {
	var running sync.WaitGroup
	var next atomic.Int64
	for range 16 {
		running.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	running.Wait()
}

const collection = "/api/v1/namespaces/default/configmaps"

// configMap returns a ConfigMap whose content hardly compresses.
func configMap(name string, bytes int) string {
	random := make([]byte, bytes/2)
	_, _ = rand.Read(random) // never fails
	return fmt.Sprintf(`{"metadata":{"name":%q},"data":{"k":"%x"}}`, name, random)
}

// warmUp sends a few requests of each kind, so that all structures that are built only once exist.
func (l *load) warmUp() {
	l.call("POST", collection, configMap("warm", 100))
	for range 50 {
		l.call("PUT", collection+"/warm", configMap("warm", 100))
		l.call("GET", collection, "")
		l.call("GET", "/api/v1/namespaces/default/configmaps/warm", "")
	}
	l.call("GET", "/openapi/v2", "")
	l.call("GET", "/apis", "")
}

func (l *load) objects() {
	l.each(20_000, func(i int) { l.call("POST", collection, configMap(fmt.Sprint("x", i), 1500)) })
}

func (l *load) lists() {
	l.each(100, func(int) { l.call("GET", collection, "") })
}

func (l *load) bodies() {
	large := func(i int) string { return fmt.Sprint("large", i%16) }
	l.each(16, func(i int) { l.call("POST", collection, configMap(large(i), 900<<10)) })
	l.each(300, func(i int) { l.call("PUT", collection+"/"+large(i), configMap(large(i), 900<<10)) })
}

// watches opens n watches of everything from the beginning, and closes each after a thousand events.
func (l *load) watches(n int) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var running sync.WaitGroup
	places := make(chan struct{}, 100)
	for range n {
		running.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			r, err := http.NewRequestWithContext(ctx, "GET", l.process.URL()+collection+"?watch=true&resourceVersion=0", nil)
			if err != nil {
				l.b.Error(err)
				return
			}
			answer, err := l.client.Do(r)
			if err != nil {
				l.b.Error(err)
				return
			}
			defer answer.Body.Close()
			events := bufio.NewReader(answer.Body)
			for range 1000 {
				if _, err := events.ReadSlice('\n'); err != nil && err != bufio.ErrBufferFull {
					return // the server has cut the watch off, because the machine is slow
				}
			}
		})
	}
	running.Wait()
}
