package bench

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A balancer is what stands in front of several watchers: one TCP address, each new connection of which goes
// to the next process that says it is ready. It knows nothing of HTTP but that question. It is a process of its
// own, since each connection takes two file descriptors of it, and more than one where those would not suffice:
// they accept from one listener.
const (
	balancedVariable = "LOGPLANE_BENCH_BALANCED" // the addresses behind it, in a process that is to be a balancer
	probeInterval    = 100 * time.Millisecond
	// spareFiles are those that a process needs for anything but connections.
	spareFiles = 500
)

func TestMain(m *testing.M) {
	if urls := os.Getenv(balancedVariable); urls != "" {
		balance(strings.Split(urls, ","))
		return
	}
	if folder := os.Getenv(logVariable); folder != "" {
		serveLog(folder)
		return
	}
	os.Exit(m.Run())
}

// startBalancers serves at most as many connections to the URLs at the address that it returns.
func (c *tier) startBalancers(urls []string, connections int) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.b.Fatal(err)
	}
	defer listener.Close()
	shared, err := listener.(*net.TCPListener).File()
	if err != nil {
		c.b.Fatal(err)
	}
	defer shared.Close()
	for range 1 + connections/connectionsOfBalancer() {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), balancedVariable+"="+strings.Join(urls, ","))
		cmd.ExtraFiles, cmd.Stderr = []*os.File{shared}, os.Stderr
		c.startProcess("balancer", cmd)
	}
	return listener.Addr().String()
}

// connectionsOfBalancer is how many connections one process can carry.
func connectionsOfBalancer() int { return max(1, (openFiles()-spareFiles)/2) }

// openFiles is how many files a process may have open; Go has raised it as far as it goes.
func openFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		panic(err)
	}
	return int(min(limit.Cur, 1<<20))
}

type balancer struct {
	backends []*backend
	next     atomic.Uint64
}

type backend struct {
	url   string
	ready atomic.Bool
}

// balance accepts from the listener that this process was started with.
func balance(urls []string) {
	listener, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		panic(err)
	}
	b := &balancer{}
	for _, url := range urls {
		k := &backend{url: url}
		b.backends = append(b.backends, k)
		go k.probe()
	}
	places := make(chan struct{}, connectionsOfBalancer())
	for {
		places <- struct{}{}
		client, err := listener.Accept()
		if err != nil {
			panic(err)
		}
		go func() {
			b.carry(client.(*net.TCPConn))
			<-places
		}()
	}
}

// probe asks for readiness, as kubelet does: it believes a process that says no, and waits a little longer for
// one that says nothing.
func (k *backend) probe() {
	client := &http.Client{
		Timeout:   time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, // a probe verifies nothing
	}
	for silent := 0; ; time.Sleep(probeInterval) {
		answer, err := client.Get(k.url + "/readyz")
		if err != nil {
			silent++
			k.ready.Store(k.ready.Load() && silent < 3)
			continue
		}
		silent = 0
		_ = answer.Body.Close()
		k.ready.Store(answer.StatusCode == http.StatusOK)
	}
}

// dial connects to the next process that is ready and can be reached; when none says that it is ready, to any.
func (b *balancer) dial() (conn net.Conn, err error) {
	for _, any := range []bool{false, true} {
		for range b.backends {
			k := b.backends[b.next.Add(1)%uint64(len(b.backends))]
			if !any && !k.ready.Load() {
				continue
			}
			_, address, _ := strings.Cut(k.url, "://")
			if conn, err = net.Dial("tcp", address); err == nil {
				return conn, nil
			}
		}
	}
	return nil, err
}

// carry copies both directions until both have ended.
func (b *balancer) carry(client *net.TCPConn) {
	defer client.Close()
	conn, err := b.dial()
	if err != nil {
		_ = client.SetLinger(0) // a reset: nothing was read
		return
	}
	defer conn.Close()
	var there sync.WaitGroup
	there.Go(func() { pass(conn.(*net.TCPConn), client) })
	pass(client, conn.(*net.TCPConn))
	there.Wait()
}

// pass copies one direction, and its end. It hides that both are TCP: for that Go holds a pipe, two more file
// descriptors, for as long as it waits.
func pass(to, from *net.TCPConn) {
	type reader struct{ io.Reader }
	type writer struct{ io.Writer }
	_, err := io.CopyBuffer(writer{to}, reader{from}, make([]byte, 4<<10))
	if err != nil {
		_ = from.Close() // what cannot be passed on is not worth reading
	}
	_ = to.CloseWrite()
}
