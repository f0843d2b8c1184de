package bench

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/logplane/logplane/test/product"
)

// BenchmarkScale fills a cell with LOGPLANE_SCALE Nodes ('make bench-scale': 100,000), and a Lease and eight Pods for
// each Node. It prints the costs at a sixteenth of that number of Nodes, at an eighth, and so on. Each role is a
// process of its own, so that its processor time is known; 'dev' is started on the same folder too.
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

// scale is one cell that grows, and the figures that were measured in it.
type scale struct {
	b      *testing.B
	folder string
	client *http.Client
	filler *filler

	log                *exec.Cmd
	where              []string
	projector, watcher *product.Process

	sizes   []int
	names   []string // of the figures, in order
	figures map[string][]float64
}

// logVariable is the log's folder. If it is set, this process is the log's server.
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

// found makes a cell in the form in which 'dev' keeps it on disk, and creates the templates.
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
	var owner types.UID // the owner of the next template: an object whose owner is missing would be collected
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

// startLog starts the log's server.
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

// end stops all processes, so that the next step begins with cold processes.
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

// put keeps a figure for the current size.
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

// fill grows the cell to a number of nodes. It keeps nothing of the past, as if an hour had passed.
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
	s.filler.open(s.where[1], s.bucket()) // reads the root that covers all events
	s.filler.forget()
	s.end()
}

// putRoot puts figures about the snapshot.
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

// starts measures the start of 'dev' on the folder, and then starts log, projector and watcher.
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

// startWatcher starts a watcher, which has read nothing yet, in place of the watcher before.
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

// print prints a table. Its last column is the growth of each figure from the smallest size to the largest.
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

// figure formats a number with three digits, or with all digits before the decimal point.
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
