package serverless

import (
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// passage is a set of TCP proxies between a sandbox and the servers of its cell. The proxies count the pieces that pass
// in both directions. Each piece is one step of the sandbox's work. At a chosen step, all traffic can be held.
type passage struct {
	done sync.WaitGroup

	mu    sync.Mutex
	gate  *sync.Cond
	steps int                   // guarded by mu; since the last arm
	at    int                   // guarded by mu; the step at which all traffic is held, 0 for none
	how   holding               // guarded by mu
	stop  func()                // guarded by mu; called at that step
	held  bool                  // guarded by mu
	lost  int                   // guarded by mu; how often connections were lost
	conns map[net.Conn]struct{} // guarded by mu
}

// holding is the fate of the piece at which all traffic is held.
type holding string

const (
	// passed: the piece has arrived.
	passed holding = "passed"
	// delayed: the piece arrives when the passage is opened.
	delayed holding = "delayed"
	// lost: the piece never arrives, and the connections end, like those of a process that was frozen for long.
	lost holding = "lost"
)

func newPassage(t testing.TB) *passage {
	p := &passage{conns: map[net.Conn]struct{}{}}
	p.gate = sync.NewCond(&p.mu)
	t.Cleanup(p.done.Wait)
	return p
}

// to returns an address that leads to the server through the passage.
func (p *passage) to(t testing.TB, server string) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = listener.Close()
		p.open()
		p.drop()
	})
	p.done.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			p.done.Go(func() { p.carry(in, server) })
		}
	})
	return listener.Addr().String()
}

func (p *passage) carry(in net.Conn, server string) {
	defer in.Close()
	out, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer out.Close()
	p.mu.Lock()
	p.conns[in], p.conns[out] = struct{}{}, struct{}{}
	losses := p.lost
	p.mu.Unlock()
	var pair sync.WaitGroup
	pair.Go(func() { p.pump(in, out, losses) })
	pair.Go(func() { p.pump(out, in, losses) })
	pair.Wait()
	p.mu.Lock()
	delete(p.conns, in)
	delete(p.conns, out)
	p.mu.Unlock()
}

func (p *passage) pump(from, to net.Conn, losses int) {
	defer from.Close()
	defer to.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if !p.step(func() bool { _, err := to.Write(buffer[:n]); return err == nil }, losses) {
			return
		}
	}
}

// step lets one piece pass. It returns false if the connection is lost.
func (p *passage) step(pass func() bool, losses int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wait(losses)
	p.steps++
	if p.steps == p.at && p.how == passed {
		if !pass() {
			return false
		}
		p.hold()
		return true
	}
	if p.steps == p.at {
		p.hold()
		p.wait(losses)
	}
	return p.lost == losses && pass()
}

// wait waits while traffic is held. The caller holds mu.
func (p *passage) wait(losses int) {
	for p.held && p.lost == losses {
		p.gate.Wait()
	}
}

// hold holds all traffic from now on, and calls stop. The caller holds mu.
func (p *passage) hold() {
	p.held = true
	p.stop()
}

// arm starts to count. At the nth step stop is called, and all traffic is held; n = 0 only counts.
func (p *passage) arm(n int, how holding, stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.steps, p.at, p.how, p.stop = 0, n, how, stop
}

// counted returns the number of steps since arm.
func (p *passage) counted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.steps
}

// open lets the held pieces pass, or loses them and their connections.
func (p *passage) open() {
	p.mu.Lock()
	losing := p.held && p.how == lost
	p.held, p.at = false, 0
	if losing {
		p.lost++
	}
	p.gate.Broadcast()
	p.mu.Unlock()
	if losing {
		p.drop()
	}
}

// drop ends all connections.
func (p *passage) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost++
	for c := range p.conns {
		_ = c.Close()
	}
	p.gate.Broadcast()
}

// connections returns how many connections are open.
func (p *passage) connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns) / 2
}
