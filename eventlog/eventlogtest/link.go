package eventlogtest

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// Link is a TCP proxy in front of one port. It can hold back all bytes or break all connections, either at once or at
// some message that its client sends. Its methods are safe for concurrent use.
type Link struct {
	listener net.Listener
	done     sync.WaitGroup
	ofClient bool // the link is a NATS client's, so that messages can be recognised in its bytes

	mu     sync.Mutex
	gate   *sync.Cond
	target string                // mu; where bytes go; until it is set, connections wait
	held   bool                  // mu; bytes are held back
	broken bool                  // mu; connections are refused, as at the end of the test
	conns  map[net.Conn]struct{} // mu
	losses int                   // mu; how often Lose was called
	fault  *fault                // mu; a failure that is to come, nil for none
	failed bool                  // mu; the last fault has happened
}

// Failure is how a link fails.
type Failure int

const (
	Breaks Failure = iota // connections break, and new connections work
	Cuts                  // connections break, and new connections are refused until Resume
	Stalls                // every byte is held back until Resume
)

// fault is a failure that happens at a later message.
type fault struct {
	left     int // how many messages until it happens
	answered bool
	how      Failure
	inbox    []byte // where the answer goes; set once the message has passed
}

// NewLink returns a link that ends with the test. Its connections wait until the link's target is set.
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

// URL is the URL to which a client connects.
func (l *Link) URL() string { return "nats://" + l.Address() }

// Address is the address to which a server connects.
func (l *Link) Address() string { return l.listener.Addr().String() }

// To makes new connections go to a server, for example to a server that replaces another.
func (l *Link) To(s *server.Server) { l.ToAddress(s.Addr().String()) }

// ToAddress makes new connections go to an address.
func (l *Link) ToAddress(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.target = address
	l.gate.Broadcast()
}

// Stall holds back every byte. Connections stay up, and neither side is told.
func (l *Link) Stall() { l.set(true, false) }

// Resume lets the bytes that were held back pass, and all later bytes. New connections are accepted again.
func (l *Link) Resume() { l.set(false, false) }

// Cut breaks every connection, and refuses new connections until Resume.
func (l *Link) Cut() { l.set(false, true) }

// Lose makes the current connections carry nothing any more, without telling either side. New connections work.
func (l *Link) Lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.losses++
}

// FailAt makes a link of ConnectThrough fail at the n-th message that is published from now on. Without answered, the
// link fails before the server gets the message. With answered, the link fails once the server has answered, so that
// only the answer is lost.
func (l *Link) FailAt(n int, answered bool, how Failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault, l.failed = &fault{left: n, answered: answered, how: how}, false
}

// HasFailed says whether the failure of FailAt has happened. A failure that has not happened yet is cancelled.
func (l *Link) HasFailed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault = nil
	return l.failed
}

func (l *Link) set(held, broken bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held, l.broken = held, broken
	if broken {
		l.hangUp()
	}
	l.gate.Broadcast()
}

// hangUp closes every connection. It requires mu.
func (l *Link) hangUp() {
	for c := range l.conns {
		c.Close()
	}
	clear(l.conns)
}

// fail makes the fault happen, and says whether the current bytes pass to pump, where they wait. It requires mu.
func (l *Link) fail() bool {
	how := l.fault.how
	l.held, l.broken, l.failed, l.fault = how == Stalls, how == Cuts, true, nil
	if how != Stalls {
		l.hangUp()
	}
	return how == Stalls
}

// published notes that a client sends a message whose answer goes to inbox, nil for no answer. It says whether the
// message passes.
func (l *Link) published(inbox []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fault == nil || l.fault.inbox != nil {
		return true
	}
	l.fault.left--
	switch {
	case l.fault.left > 0:
		return true
	case l.fault.answered && inbox != nil:
		l.fault.inbox = inbox
		return true
	}
	return l.fail()
}

// answers notes the bytes that a server sends, and says whether they pass.
func (l *Link) answers(sent []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fault == nil || l.fault.inbox == nil || !bytes.Contains(sent, l.fault.inbox) {
		return true
	}
	return l.fail()
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

// carry connects one incoming connection with a new connection to the target.
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
	sent := reader(chunks{in, func([]byte) bool { return true }})
	if l.ofClient {
		sent = messages{bufio.NewReader(in), l.published}
	}
	pair.Go(func() { l.pump(sent, in, out, losses) })
	pair.Go(func() { l.pump(chunks{out, l.answers}, out, in, losses) })
	pair.Wait()
}

// known waits until the target is set. It returns false if the link is broken first.
func (l *Link) known() (target string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.target == "" && !l.broken {
		l.gate.Wait()
	}
	return l.target, !l.broken
}

// admit registers the connections, and returns how often Lose was called before. ok is false if the link is broken.
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

// reader reads one piece that is passed on as a whole. The error is io.ErrClosedPipe if the piece must not pass.
type reader interface {
	next(buffer []byte) (read []byte, err error)
}

// chunks reads bytes as they come.
type chunks struct {
	io.Reader
	pass func([]byte) bool
}

func (c chunks) next(buffer []byte) ([]byte, error) {
	n, err := c.Read(buffer)
	if err == nil && !c.pass(buffer[:n]) {
		err = io.ErrClosedPipe
	}
	return buffer[:n], err
}

// messages reads the bytes that a NATS client sends, line by line and message by message.
type messages struct {
	*bufio.Reader
	pass func(inbox []byte) bool
}

func (m messages) next([]byte) ([]byte, error) {
	line, err := m.ReadBytes('\n')
	fields := bytes.Fields(line)
	if err != nil || len(fields) < 3 || !bytes.HasSuffix(fields[0], []byte("PUB")) {
		return line, err
	}
	headers := bytes.Count(fields[0], []byte("H")) // 'HPUB subject [inbox] headers size', 'PUB subject [inbox] size'
	var inbox []byte
	if len(fields) == 4+headers {
		inbox = fields[2]
	}
	if !m.pass(inbox) {
		return nil, io.ErrClosedPipe
	}
	size, err := strconv.Atoi(string(fields[len(fields)-1]))
	if err != nil {
		return line, err
	}
	message := make([]byte, len(line)+size+len("\r\n"))
	copy(message, line)
	_, err = io.ReadFull(m, message[len(line):])
	return message, err
}

// pump copies one direction. While the link is stalled, pump holds the bytes that it has read.
func (l *Link) pump(r reader, from, to net.Conn, losses int) {
	defer from.Close()
	defer to.Close()
	buffer := make([]byte, 64<<10)
	for {
		read, err := r.next(buffer)
		if err != nil || !l.pass(losses) {
			return
		}
		if _, err := to.Write(read); err != nil {
			return
		}
	}
}

// pass waits while the link is stalled, or for ever if the connection was lost. It returns false if the link is broken.
func (l *Link) pass(losses int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for (l.held || l.losses > losses) && !l.broken {
		l.gate.Wait()
	}
	return !l.broken
}
