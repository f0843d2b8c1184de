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

// A balancer stands in front of several watchers. It has one TCP address, and each new connection goes to the next
// process that reports readiness. Apart from asking for readiness, a balancer knows nothing about HTTP. A balancer runs
// in a process of its own, because each connection takes two file descriptors. If the descriptors of one process would
// not suffice, several processes accept from one listener.
const (
	balancedVariable = "LOGPLANE_BENCH_BALANCED" // the addresses behind the balancer; if this variable is set, this process is a balancer
	probeInterval    = 100 * time.Millisecond
	// spareFiles are the file descriptors that a process needs besides its connections.
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

// startBalancers starts enough balancers in front of the URLs for the number of connections, and returns their address.
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

// connectionsOfBalancer is how many connections one balancer can carry.
func connectionsOfBalancer() int { return max(1, (openFiles()-spareFiles)/2) }

// openFiles is how many files a process may have open; Go has already raised that limit as far as possible.
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

// balance accepts connections from the listener that this process inherited.
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

// probe asks for readiness again and again, as kubelet does. A process that answers no is at once not ready; a process
// that does not answer counts as ready until the third failure.
func (k *backend) probe() {
	client := &http.Client{
		Timeout: time.Second,
		// a probe does not verify the certificate
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
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

// dial connects to the next process that is ready and reachable; if no process is ready, to any reachable process.
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
		_ = client.SetLinger(0) // a reset, since nothing was read
		return
	}
	defer conn.Close()
	var there sync.WaitGroup
	there.Go(func() { pass(conn.(*net.TCPConn), client) })
	pass(client, conn.(*net.TCPConn))
	there.Wait()
}

// pass copies one direction, and then closes that direction. It hides from Go that both ends are TCP connections:
// otherwise Go would hold a pipe (two more file descriptors) while pass waits.
func pass(to, from *net.TCPConn) {
	type reader struct{ io.Reader }
	type writer struct{ io.Writer }
	_, err := io.CopyBuffer(writer{to}, reader{from}, make([]byte, 4<<10))
	if err != nil {
		_ = from.Close() // bytes that cannot be passed on need not be read
	}
	_ = to.CloseWrite()
}
