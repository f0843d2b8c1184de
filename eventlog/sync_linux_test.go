package eventlog_test

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// serverVariable is an environment variable. If it names a configuration file, a process of this binary runs as the
// NATS server of that file.
const serverVariable = "LOGPLANE_TEST_NATS_CONFIG"

// TestServerProcess is not a test: it is one server of TestSyncsOfThreeServers, until its input ends.
func TestServerProcess(t *testing.T) {
	file := os.Getenv(serverVariable)
	if file == "" {
		t.Skip("it is a process of another test")
	}
	o, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	o.NoLog, o.NoSigs = true, true
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.Shutdown()
	s.WaitForShutdown()
}

// traced are three servers in their own processes, whose system calls are recorded.
type traced struct {
	conn  *nats.Conn
	trace [3]string
	stop  func()
}

func traceServers(t *testing.T) *traced {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("strace is missing: install Debian's package 'strace'")
		}
		t.Skip("strace is not installed")
	}
	var clients, routes [3]string
	for i := range 3 {
		clients[i], routes[i] = eventlogtest.FreeAddress(t), eventlogtest.FreeAddress(t)
	}
	c := &traced{}
	var ends []func()
	for i := range 3 {
		folder := t.TempDir()
		c.trace[i] = filepath.Join(folder, "trace")
		file := filepath.Join(folder, "nats.conf")
		var others []string
		for _, r := range routes {
			others = append(others, "nats://"+r)
		}
		config := fmt.Sprintf(`server_name: s%d
listen: %q
max_payload: 8MB
jetstream { store_dir: %q, sync_interval: always }
cluster { name: cell, listen: %q, pool_size: -1, routes: [%s] }
`, i, clients[i], filepath.Join(folder, "data"), routes[i], strings.Join(others, ", "))
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(strace, "-f", "--seccomp-bpf", "-ttt", "-T", "-y", "-s", "4096", "-e", "signal=none", "-o", c.trace[i],
			"-e", "trace=openat,write,writev,pwrite64,sendto,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,ftruncate",
			os.Args[0], "-test.run=^TestServerProcess$")
		cmd.Env = append(os.Environ(), serverVariable+"="+file)
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, func() { _ = in.Close(); _ = cmd.Wait() })
	}
	c.stop = func() {
		for _, end := range ends {
			end()
		}
		ends = nil
	}
	t.Cleanup(c.stop)
	c.conn, err = nats.Connect(strings.Join(clients[:], ","), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.ReconnectBufSize(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.conn.Close)
	return c
}

// TestSyncsOfThreeServers records the system calls of all servers of a log. The log is created with one replica and
// scaled to three. Then a snapshot compacts the Raft log, and a purge rewrites a file of the stream. Before an event is
// acknowledged, its bytes are in a synced file of a majority of the servers that keep the log. From then on, until the
// event is purged, there are never fewer such servers than a majority.
func TestSyncsOfThreeServers(t *testing.T) {
	if testing.Short() {
		t.Skip("it traces three servers")
	}
	t.Parallel()
	c := traceServers(t)
	config := eventlog.Config{Conn: c.conn, Timeout: 10 * time.Second}
	eventlogtest.Eventually(t, "the servers make the stream", func() bool { return eventlog.Create(bounded(t), config) == nil })
	l, err := eventlog.Open(bounded(t), config)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var acks []acked
	var quorum, written atomic.Int32
	quorum.Store(1)
	write := func(size int) eventlog.Revision {
		a := acked{name: fmt.Sprintf("mark%06de", written.Add(1)), quorum: int(quorum.Load())}
		body := make([]byte, size)
		rand.Read(body)
		a.rev = mustAppend(t, l, a.name, added(a.name, string(body)))
		a.told = stamp(time.Now())
		mu.Lock()
		defer mu.Unlock()
		acks = append(acks, a)
		return a.rev
	}
	for range 10 {
		write(100)
	}

	js, err := jetstream.New(c.conn)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(bounded(t), "logplane")
	if err != nil {
		t.Fatal(err)
	}
	three := s.CachedInfo().Config
	three.Replicas = 3
	scaled := make(chan error, 1)
	go func() {
		_, err := js.UpdateStream(bounded(t), three)
		scaled <- err
	}()
	var concurrent sync.WaitGroup
	var over atomic.Bool
	for range 4 {
		concurrent.Go(func() {
			for !over.Load() {
				write(100)
			}
		})
	}
	eventlogtest.Eventually(t, "all three servers keep the log", func() bool {
		info, err := s.Info(bounded(t))
		return err == nil && info.Config.Replicas == 3 && info.Cluster != nil && info.Cluster.Leader != "" && len(info.Cluster.Replicas) == 2 &&
			info.Cluster.Replicas[0].Current && info.Cluster.Replicas[1].Current
	})
	if err := <-scaled; err != nil {
		t.Fatal(err)
	}
	over.Store(true)
	concurrent.Wait()
	quorum.Store(2)
	for range 10 {
		write(100)
	}
	first := write(900_000)
	for range 12 { // enough events to trigger a snapshot, and more than one file holds
		write(900_000)
	}
	purged := first + 6
	for range 10 {
		write(100)
	}
	at := stamp(time.Now())
	if err := l.Purge(bounded(t), purged); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		write(100)
	}
	c.conn.Close()
	c.stop()

	var files [3]*files
	for i := range files {
		files[i] = readTrace(t, c.trace[i])
		t.Logf("server %d: %+v", i, files[i].seen)
	}
	sent := map[eventlog.Revision]float64{}
	for _, f := range files {
		for rev, at := range f.sent {
			if before, ok := sent[rev]; !ok || at < before {
				sent[rev] = at
			}
		}
	}
	unseen := 0
	for _, a := range acks {
		from, ok := sent[a.rev]
		if !ok { // the acknowledgement is in a part of a write that strace does not show
			from = a.told
			unseen++
		}
		upto := math.Inf(1)
		if a.rev <= purged {
			upto = at
		}
		var all []span
		for _, f := range files {
			all = append(all, f.durable[a.name]...)
		}
		if n := fewest(all, from, upto); n < a.quorum {
			t.Errorf("%s at %d, acknowledged at %f, was in a synced file of only %d servers at some time, not of %d: %f", a.name, a.rev, from, n, a.quorum, all)
		}
	}
	if unseen > len(acks)/10 {
		t.Errorf("of %d of %d acknowledgements it is not known when they were sent", unseen, len(acks))
	}
	for what, n := range map[string]int{"snapshots of the Raft log": files[0].seen["snapshot"] + files[1].seen["snapshot"] + files[2].seen["snapshot"],
		"files that a purge has written anew": files[0].seen["compaction"] + files[1].seen["compaction"] + files[2].seen["compaction"]} {
		if n == 0 {
			t.Errorf("there were no %s: the test is void", what)
		}
	}
}

// acked is an event that was acknowledged. Its quorum is the number of servers that were a majority of the log's
// servers at that time.
type acked struct {
	name   string
	rev    eventlog.Revision
	quorum int
	told   float64 // when this process received the acknowledgement
}

// span is a period in which a server had an event in a synced file.
type span struct{ from, to float64 }

// fewest is the smallest number of spans that overlap at any moment of the period.
func fewest(spans []span, from, to float64) int {
	moments := []float64{from}
	for _, s := range spans {
		if s.to >= from && s.to < to {
			moments = append(moments, s.to)
		}
	}
	least := len(spans)
	for _, m := range moments {
		n := 0
		for _, s := range spans {
			if s.from <= m && m < s.to {
				n++
			}
		}
		least = min(least, n)
	}
	return least
}

func stamp(at time.Time) float64 { return float64(at.UnixMicro()) / 1e6 }

// files holds the facts that a server's system calls show about the events in its files.
type files struct {
	durable map[string][]span             // for each event, when it was in a synced file
	sent    map[eventlog.Revision]float64 // when an acknowledgement was sent
	seen    map[string]int

	now    float64
	held   map[string][]held // by path, in the order in which they were written
	always map[string]bool   // descriptors whose writes are synced
}

// held is an event in a file: when the event was written, and whether that write is synced.
type held struct {
	mark    string
	written float64
	synced  bool
}

var (
	lineOf   = regexp.MustCompile(`^(\d+)\s+(\d+\.\d+) (.*)$`)
	callOf   = regexp.MustCompile(`^(\w+)\((.*)\)\s+= (-?\d+)(?:<([^>]*)>)?.* <(\d+\.\d+)>$`)
	resumed  = regexp.MustCompile(`^<\.\.\. \w+ resumed>`)
	fileOf   = regexp.MustCompile(`^(\d+)<([^>]*)>`)
	quotedIn = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"`)
	markOf   = regexp.MustCompile(`mark\d{6}e`)
	ackOf    = regexp.MustCompile(`\\"stream\\":\s*\\"logplane\\",\s*\\"seq\\":\s*(\d+)`)
)

type systemCall struct {
	name, args, path string
	fd               string
	began, ended     float64
}

func readTrace(t *testing.T, path string) *files {
	t.Helper()
	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var calls []systemCall
	open := map[string]string{} // unfinished calls, by thread
	for lines := bufio.NewReaderSize(in, 1<<20); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			break
		}
		parts := lineOf.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if parts == nil {
			continue
		}
		thread, at, rest := parts[1], parts[2], parts[3]
		if begun, ok := strings.CutSuffix(rest, " <unfinished ...>"); ok {
			open[thread] = at + " " + begun
			continue
		}
		if resumed.MatchString(rest) {
			begun, ok := open[thread]
			if !ok {
				continue
			}
			delete(open, thread)
			at, rest, _ = strings.Cut(begun+resumed.ReplaceAllString(rest, ""), " ")
		}
		call := callOf.FindStringSubmatch(rest)
		if call == nil || strings.HasPrefix(call[3], "-") {
			continue
		}
		began, _ := strconv.ParseFloat(at, 64)
		took, _ := strconv.ParseFloat(call[5], 64)
		one := systemCall{name: call[1], args: call[2], began: began, ended: began + took}
		if call[1] == "openat" {
			one.fd, one.path = call[3], call[4]
		} else if f := fileOf.FindStringSubmatch(call[2]); f != nil {
			one.fd, one.path = f[1], f[2]
		}
		calls = append(calls, one)
	}
	slices.SortStableFunc(calls, func(a, b systemCall) int {
		switch {
		case a.ended < b.ended:
			return -1
		case a.ended > b.ended:
			return 1
		}
		return 0
	})
	f := &files{durable: map[string][]span{}, sent: map[eventlog.Revision]float64{}, seen: map[string]int{}, held: map[string][]held{}, always: map[string]bool{}}
	for _, c := range calls {
		f.apply(c)
	}
	return f
}

func (f *files) apply(c systemCall) {
	f.now = c.ended
	switch c.name {
	case "openat":
		f.always[c.fd] = strings.Contains(c.args, "O_SYNC") || strings.Contains(c.args, "O_DSYNC")
		if strings.Contains(c.args, "O_TRUNC") {
			f.drop(c.path)
		}
	case "write", "writev", "pwrite64", "sendto":
		if !strings.HasPrefix(c.path, "/") {
			for _, ack := range ackOf.FindAllStringSubmatch(c.args, -1) {
				rev, _ := strconv.ParseUint(ack[1], 10, 64)
				if _, ok := f.sent[eventlog.Revision(rev)]; !ok {
					f.sent[eventlog.Revision(rev)] = c.began
				}
			}
			return
		}
		if strings.Contains(c.path, "/snapshots/snap.") && strings.Contains(c.path, "_js_/S-") {
			f.seen["snapshot"]++
		}
		for _, mark := range markOf.FindAllString(c.args, -1) {
			if !slices.ContainsFunc(f.held[c.path], func(h held) bool { return h.mark == mark }) {
				f.held[c.path] = append(f.held[c.path], held{mark: mark, written: c.ended})
			}
		}
		if f.always[c.fd] {
			f.sync(c.path, c.ended)
		}
	case "fsync", "fdatasync":
		f.sync(c.path, c.began)
	case "rename", "renameat", "renameat2":
		if names := quotedIn.FindAllStringSubmatch(c.args, -1); len(names) == 2 {
			f.rename(names[0][1], names[1][1])
		}
	case "unlink", "unlinkat":
		if names := quotedIn.FindAllStringSubmatch(c.args, -1); len(names) == 1 {
			f.drop(names[0][1])
		}
	case "ftruncate":
		f.seen["truncation"]++
		if strings.HasSuffix(c.args, ", 0") {
			f.drop(c.path)
		}
	}
}

// rename moves a file or a folder. strace shows only the beginning of a rewritten file. But from its first event on,
// the rewritten file has the same events as the file that it replaces.
func (f *files) rename(from, to string) {
	if strings.HasSuffix(to, ".blk") && strings.Contains(to, "/streams/logplane/") {
		f.seen["compaction"]++
	}
	if anew, before := f.held[from], f.held[to]; len(anew) > 0 && len(before) > 0 {
		rest := slices.IndexFunc(before, func(h held) bool { return h.mark == anew[len(anew)-1].mark })
		for _, h := range before[rest+1:] {
			anew = append(anew, held{h.mark, anew[0].written, anew[0].synced})
		}
		f.held[from] = anew
	}
	moved := map[string][]held{}
	for path, events := range f.held {
		if path == from || strings.HasPrefix(path, from+"/") {
			moved[to+strings.TrimPrefix(path, from)] = events
			delete(f.held, path)
		}
	}
	for path, events := range moved {
		before := f.held[path]
		f.held[path] = events
		f.end(before)
	}
}

func (f *files) drop(path string) {
	before := f.held[path]
	delete(f.held, path)
	f.end(before)
}

// sync notes that a file is synced, with everything that was written before 'until'.
func (f *files) sync(path string, until float64) {
	for i, h := range f.held[path] {
		if h.written > until || h.synced {
			continue
		}
		f.held[path][i].synced = true
		spans := f.durable[h.mark]
		if n := len(spans); n == 0 || spans[n-1].to < math.Inf(1) {
			f.durable[h.mark] = append(spans, span{f.now, math.Inf(1)})
		}
	}
}

// end notes which of the events are no longer in any synced file.
func (f *files) end(events []held) {
	in := map[string]bool{}
	for _, others := range f.held {
		for _, h := range others {
			in[h.mark] = in[h.mark] || h.synced
		}
	}
	for _, h := range events {
		if spans := f.durable[h.mark]; !in[h.mark] && len(spans) > 0 && spans[len(spans)-1].to == math.Inf(1) {
			spans[len(spans)-1].to = f.now
		}
	}
}
