package eventlogtest

import (
	"net"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// Link is a TCP proxy in front of one port that can hold back all bytes, or break all connections. Its methods are safe
// for concurrent use.
type Link struct {
	listener net.Listener
	done     sync.WaitGroup

	mu     sync.Mutex
	gate   *sync.Cond
	target string                // mu; where bytes go; connections wait until it is known
	held   bool                  // mu; bytes are held back
	broken bool                  // mu; connections are refused, as when the test is over
	conns  map[net.Conn]struct{} // mu
	losses int                   // mu; how often the connections of that time were lost
}

// NewLink returns a link that ends with the test. Its connections wait until it is said where it leads.
func NewLink(t testing.TB) *Link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &Link{listener: listener, conns: map[net.Conn]struct{}{}}
	l.gate = sync.NewCond(&l.mu)
	l.done.Go(l.accept)
	t.Cleanup(l.close)
	return l
}

// URL is what a client connects to.
func (l *Link) URL() string { return "nats://" + l.Address() }

// Address is what a server connects to.
func (l *Link) Address() string { return l.listener.Addr().String() }

// To lets new connections go to a server, for example one that takes the place of another.
func (l *Link) To(s *server.Server) { l.ToAddress(s.Addr().String()) }

// ToAddress lets new connections go to an address.
func (l *Link) ToAddress(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.target = address
	l.gate.Broadcast()
}

// Stall holds back every byte. Connections stay up, nobody is told.
func (l *Link) Stall() { l.set(true, false) }

// Resume lets what was held back, and everything further, pass; new connections are admitted again.
func (l *Link) Resume() { l.set(false, false) }

// Cut breaks every connection and refuses new ones until Resume.
func (l *Link) Cut() { l.set(false, true) }

// Lose lets the connections of this moment carry nothing any more, and tells nobody. New ones work.
func (l *Link) Lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.losses++
}

func (l *Link) set(held, broken bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held, l.broken = held, broken
	if broken {
		for c := range l.conns {
			c.Close()
		}
		clear(l.conns)
	}
	l.gate.Broadcast()
}

func (l *Link) close() {
	l.listener.Close()
	l.Cut()
	l.done.Wait()
}

func (l *Link) accept() {
	for {
		in, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.done.Go(func() { l.carry(in) })
	}
}

// carry joins one connection with one to the target.
func (l *Link) carry(in net.Conn) {
	defer in.Close()
	target, ok := l.known()
	if !ok {
		return
	}
	out, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer out.Close()
	losses, ok := l.admit(in, out)
	if !ok {
		return
	}
	var pair sync.WaitGroup
	pair.Go(func() { l.pump(in, out, losses) })
	pair.Go(func() { l.pump(out, in, losses) })
	pair.Wait()
}

// known waits until it is known where bytes go; it is false when the link is broken before.
func (l *Link) known() (target string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.target == "" && !l.broken {
		l.gate.Wait()
	}
	return l.target, !l.broken
}

// admit returns how many losses there were before the connections.
func (l *Link) admit(conns ...net.Conn) (losses int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken {
		return 0, false
	}
	for _, c := range conns {
		l.conns[c] = struct{}{}
	}
	return l.losses, true
}

// pump copies one direction; what it has read while the link is stalled waits in its buffer.
func (l *Link) pump(from, to net.Conn, losses int) {
	defer from.Close()
	defer to.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil || !l.pass(losses) {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// pass waits while the link is stalled, or for ever if the connection was lost. It is false when the link is broken.
func (l *Link) pass(losses int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for (l.held || l.losses > losses) && !l.broken {
		l.gate.Wait()
	}
	return !l.broken
}
