// Package bench measures the built binary as a whole process: how soon the process serves, and how much memory it
// holds.
package bench

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

// startTimeout bounds one start.
const startTimeout = 30 * time.Second

func logplane(b *testing.B) string {
	b.Helper()
	path := os.Getenv("LOGPLANE_BINARY")
	if path == "" {
		path = filepath.Join("..", "..", "bin", "logplane")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		b.Fatal(err)
	}
	about, err := os.Stat(path)
	if err != nil {
		b.Skipf("%s is missing: run 'make build' first", path)
	}
	b.ReportMetric(float64(about.Size())/(1<<20), "binary-MiB")
	return path
}

// BenchmarkExecToFirstGet measures the cold start of a function: from exec to the answer to a first GET of an object,
// on a cell whose log and bucket already run. The process has only one core.
func BenchmarkExecToFirstGet(b *testing.B) {
	firstGet(b, "/api/v1/namespaces/default", nil)
}

// BenchmarkExecToFirstCustomResource measures the cold start of a function up to a first GET of a custom resource.
func BenchmarkExecToFirstCustomResource(b *testing.B) {
	const widgets = "/apis/example.com/v1/namespaces/default/widgets"
	firstGet(b, widgets+"/a", func(url string) {
		post(b, url+"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
		post(b, url+widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"size":1}}`)
	})
}

// firstGet measures the first GET of new processes on a cell. If prepare is not nil, it creates the objects first.
func firstGet(b *testing.B, path string, prepare func(url string)) {
	binary := logplane(b)
	where := []string{"--nats", eventlogtest.Run(b, b.TempDir()).ClientURL(), "--bucket", "file://" + b.TempDir()}
	run := func(args ...string) {
		if out, err := exec.Command(binary, append(args, where...)...).CombinedOutput(); err != nil {
			b.Fatalf("%s: %v: %s", args[0], err, out)
		}
	}
	serve := func(address string) []string {
		return append([]string{"api", "--listen", address, "--authorization-mode", "AlwaysAllow"}, where...)
	}
	run("init")
	if prepare != nil {
		server := product.Serve(b, serve("127.0.0.1:0")...)
		prepare(server.URL())
		server.Stop()
	}
	run("projector", "--once")
	measure(b, path, func(address string) []string { return append([]string{binary}, serve(address)...) })
}

// definition is the definition of a small custom resource.
const definition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.com"},
	"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget"},
	"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{
	"spec":{"type":"object","properties":{"size":{"type":"integer","minimum":0},"name":{"type":"string"}}}}}}}]}}`

// post creates an object, and tries again while a new definition is not established yet.
func post(b *testing.B, url, body string) {
	b.Helper()
	eventlogtest.Eventually(b, "POST "+url, func() bool {
		answer, err := http.Post(url, "application/json", strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		defer answer.Body.Close()
		return answer.StatusCode == http.StatusCreated
	})
}

// BenchmarkDevFromNothing measures 'logplane dev' on an empty folder, from exec to a 200 of /readyz.
func BenchmarkDevFromNothing(b *testing.B) {
	binary := logplane(b)
	measure(b, "/readyz", func(address string) []string {
		return []string{binary, "dev", "--data", b.TempDir(), "--listen", address}
	})
}

// BenchmarkDevRestart measures 'logplane dev' on a folder that it has used before.
func BenchmarkDevRestart(b *testing.B) {
	binary := logplane(b)
	folder := b.TempDir()
	measure(b, "/readyz", func(address string) []string {
		return []string{binary, "dev", "--data", folder, "--listen", address}
	})
}

// measure repeats these steps: it starts the command on one core, waits until a GET of the path answers 200, and kills
// the process.
func measure(b *testing.B, path string, command func(address string) []string) {
	b.Helper()
	var peak int64
	for b.Loop() {
		peak = max(peak, startOnce(b, path, command(eventlogtest.FreeAddress(b))))
	}
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/start")
	b.ReportMetric(float64(peak)/1024, "peak-MiB")
}

// startOnce starts the command once, and returns the process's peak resident memory in KiB.
func startOnce(b *testing.B, path string, command []string) int64 {
	b.Helper()
	cmd := exec.Command("taskset", append([]string{"-c", "0"}, command...)...)
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	address := command[len(command)-1]
	for i, word := range command {
		if word == "--listen" {
			address = command[i+1]
		}
	}
	awaitOK(b, fmt.Sprintf("http://%s%s", address, path))
	b.StopTimer()
	defer b.StartTimer()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	return cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss
}

// awaitOK asks every half millisecond, which is the resolution of the benchmark.
func awaitOK(b *testing.B, url string) {
	b.Helper()
	await(b, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: startTimeout}, url)
}

func await(b *testing.B, client *http.Client, url string) {
	b.Helper()
	deadline := time.Now().Add(startTimeout)
	var last error
	for time.Now().Before(deadline) {
		answer, err := client.Get(url)
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return
			}
			err = fmt.Errorf("status %s", answer.Status)
		}
		last = err
		time.Sleep(500 * time.Microsecond)
	}
	b.Fatalf("%s: %v", url, last)
}
