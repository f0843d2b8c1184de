package bench

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/util/cert"

	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// protocol is the protocol between clients and watchers.
type protocol string

const (
	http1 protocol = "http1" // HTTP/1.1 without TLS, a connection for each watch
	http2 protocol = "http2" // HTTP/2 over TLS, a connection for a hundred watches
)

// tier is a cell's processes. This process holds the log's server and the clients.
type tier struct {
	b        *testing.B
	binary   string
	where    []string
	api      string
	over     protocol
	secure   []string // the watchers' flags for HTTPS
	trusted  *x509.CertPool
	watchers []*process
	roles    map[string][]*exec.Cmd // all processes, including those that have ended
	// front is the one address that clients know.
	front string

	writer    *http.Client
	throttled atomic.Int64 // writes that were told to try again
}

// process is one watcher; after a restart the next watcher has the same address.
type process struct {
	address string
	cmd     *exec.Cmd
}

func newTier(b *testing.B, watchers int, over protocol) *tier {
	c := &tier{b: b, binary: logplane(b), over: over, roles: map[string][]*exec.Cmd{}, writer: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000}}}
	c.where = []string{"--nats", eventlogtest.Run(b, b.TempDir()).ClientURL(), "--bucket", "file://" + b.TempDir()}
	if out, err := exec.Command(c.binary, append([]string{"init"}, c.where...)...).CombinedOutput(); err != nil {
		b.Fatalf("init: %v: %s", err, out)
	}
	c.start("projector")
	c.api = eventlogtest.FreeAddress(b)
	c.start("api", "--listen", c.api, "--authorization-mode", "AlwaysAllow")
	awaitOK(b, "http://"+c.api+"/readyz")
	if over == http2 {
		c.certify()
	}
	for range watchers {
		p := &process{address: watcherAddress()}
		c.watchers = append(c.watchers, p)
		c.run(p)
	}
	c.front = c.watchers[0].address
	return c
}

// certify makes a certificate for this benchmark.
func (c *tier) certify() {
	certificate, key, err := cert.GenerateSelfSignedCertKey("localhost", []net.IP{{127, 0, 0, 1}}, nil)
	if err != nil {
		c.b.Fatal(err)
	}
	folder := c.b.TempDir()
	c.secure = []string{"--tls-cert-file", filepath.Join(folder, "cert.pem"), "--tls-private-key-file", filepath.Join(folder, "key.pem")}
	for i, data := range [][]byte{certificate, key} {
		if err := os.WriteFile(c.secure[2*i+1], data, 0o600); err != nil {
			c.b.Fatal(err)
		}
	}
	c.trusted = x509.NewCertPool()
	c.trusted.AppendCertsFromPEM(certificate)
}

// balanced puts a balancer in front of the watchers.
func (c *tier) balanced(connections int) {
	var urls []string
	for _, p := range c.watchers {
		urls = append(urls, c.url(p.address))
	}
	c.front = c.startBalancers(urls, connections)
	await(c.b, c.client(), c.url(c.front)+"/readyz")
}

func (c *tier) url(address string) string {
	if c.over == http2 {
		return "https://" + address
	}
	return "http://" + address
}

// client returns a client for the tier's protocol. With HTTP/2 the client has one connection.
func (c *tier) client() *http.Client {
	t := &http.Transport{MaxIdleConns: 1, ReadBufferSize: 2048, WriteBufferSize: 1024}
	if c.over == http2 {
		t.ForceAttemptHTTP2, t.TLSClientConfig = true, &tls.Config{RootCAs: c.trusted}
	}
	return &http.Client{Transport: t}
}

func (c *tier) start(role string, args ...string) *exec.Cmd {
	cmd := exec.Command(c.binary, append(append([]string{role}, c.where...), args...)...)
	c.startProcess(role, cmd)
	return cmd
}

// startProcess starts a process that ends with the benchmark.
func (c *tier) startProcess(role string, cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		c.b.Fatal(err)
	}
	c.b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	c.roles[role] = append(c.roles[role], cmd)
}

func (c *tier) run(p *process) {
	p.cmd = c.start("watcher", append([]string{"--listen", p.address, "--authorization-mode", "AlwaysAllow", "--max-watches-per-user", "0", "--log-level", "error"}, c.secure...)...)
	await(c.b, c.client(), c.url(p.address)+"/readyz")
}

// restart stops a watcher as a rolling upgrade does, and then starts the next watcher in its place.
func (c *tier) restart(p *process) {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	_ = p.cmd.Wait()
	c.run(p)
}

// watcherAddress returns a free address whose port no outgoing connection can take while the watcher restarts.
func watcherAddress() string {
	for {
		address := fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000)) // Linux gives connections ports from 32768
		if l, err := net.Listen("tcp", address); err == nil {
			_ = l.Close()
			return address
		}
	}
}

// call sends a request to the API process, again and again while the answer says to try again. It returns the revision
// in the answer, and the time when the answered request was sent.
func (c *tier) call(method, path, contentType, body string) (revision uint64, sent time.Time) {
	for {
		sent = time.Now()
		code, after, data := c.send(method, path, contentType, body)
		switch code {
		case http.StatusTooManyRequests:
			c.throttled.Add(1)
			time.Sleep(after)
			continue
		case http.StatusConflict: // the write lost to other writes four times in a row; nothing was written
			continue
		case http.StatusOK, http.StatusCreated:
		default:
			panic(fmt.Sprintf("%s %s: %d %s", method, path, code, data)) // a panic, since this may run on any goroutine
		}
		var o struct {
			Metadata struct{ ResourceVersion string }
		}
		if err := json.Unmarshal(data, &o); err != nil {
			panic(err)
		}
		revision, _ = strconv.ParseUint(o.Metadata.ResourceVersion, 10, 64)
		return revision, sent
	}
}

func (c *tier) send(method, path, contentType, body string) (code int, after time.Duration, data []byte) {
	request, err := http.NewRequest(method, "http://"+c.api+path, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	request.Header.Set("Content-Type", contentType)
	answer, err := c.writer.Do(request)
	if err != nil {
		panic(err)
	}
	defer answer.Body.Close()
	if data, err = io.ReadAll(answer.Body); err != nil {
		panic(err)
	}
	return answer.StatusCode, retryAfter(answer), data
}

// retryAfter returns how long an answer asks the client to wait, 0 if the answer does not ask.
func retryAfter(answer *http.Response) time.Duration {
	seconds, _ := strconv.Atoi(answer.Header.Get("Retry-After"))
	return time.Duration(seconds) * time.Second
}

func residentBytes(b *testing.B, pid int) int64 {
	fields := processFile(b, pid, "statm")
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// cpuByRole returns the processor time that each kind of process has used; 'clients' is this process, including the
// log's server.
func (c *tier) cpuByRole() map[string]time.Duration {
	used := map[string]time.Duration{"clients": cpuTime(c.b, os.Getpid())}
	for role, processes := range c.roles {
		for _, cmd := range processes {
			if cmd.ProcessState != nil {
				used[role] += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
			} else {
				used[role] += cpuTime(c.b, cmd.Process.Pid)
			}
		}
	}
	return used
}

// logCPU logs the share of a core that each kind of process has used since an earlier time.
func (c *tier) logCPU(before map[string]time.Duration, elapsed time.Duration) {
	var shares []string
	for role, used := range c.cpuByRole() {
		shares = append(shares, fmt.Sprintf("%s %.0f%%", role, 100*(used-before[role]).Seconds()/elapsed.Seconds()))
	}
	slices.Sort(shares)
	c.b.Logf("CPU, in percent of one core: %s", strings.Join(shares, ", "))
}

// cpuTime returns the processor time of all threads of a process, in units of 10 ms.
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
