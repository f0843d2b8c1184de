package simulate

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// link is the connection of one process to the log's server. The schedule carries it message by message. A process that
// connects again gets new wires (a wire is one direction of a connection). Messages that waited in the old wires are
// lost.
type link struct {
	world *world
	name  string

	mu   sync.Mutex // guards the fields below
	open bool       // messages pass without waiting
	cut  bool
	// lines are the process's connections, mostly one. To look at the log's servers, a process opens another connection
	// for a moment.
	lines []*line
	// refused has, by inbox, the appends whose answers are replaced: an outdated server answers in place of the server
	// that took the append. The value is the last revision that the outdated server knows.
	refused map[string]uint64
	// staged are the preconditions of a batch that is not committed yet.
	staged []expectation
}

// line is one connection.
type line struct {
	out  *wire // to the server
	in   *wire // from the server
	ends []net.Conn
}

// InProcessConn implements nats.InProcessConnProvider.
func (l *link) InProcessConn() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return nil, io.ErrClosedPipe
	}
	s := l.world.log()
	if s == nil {
		return nil, io.ErrClosedPipe
	}
	far, err := s.InProcessConn()
	if err != nil {
		return nil, err
	}
	client, near := net.Pipe()
	l.lines = append(keep(l.lines, func(x *line) bool { return !x.out.closed }), &line{
		out: newWire(l, l.name+" sends", near, far), in: newWire(l, l.name+" gets", far, near), ends: []net.Conn{near, far}})
	return client, nil
}

// kill cuts the connection until mend. If late is set, messages that were sent may still arrive much later; kill then
// returns their wire.
func (l *link) kill(late bool) (ghost *wire) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	for _, x := range l.lines {
		if late && ghost == nil && len(x.out.queue) > 0 && !x.out.closed {
			ghost = x.out
			ghost.late = true
			_ = x.ends[0].Close()
			continue
		}
		for _, end := range x.ends {
			_ = end.Close()
		}
	}
	l.lines = nil
	return ghost
}

// mend lets the process connect again.
func (l *link) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = false
}

// hold makes messages wait for the schedule from now on.
func (l *link) hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = false
}

// waiting returns the steps that the schedule may release: the first message of each direction.
func (l *link) waiting() (steps []*step) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.lines {
		steps = append(append(steps, x.out.first()...), x.in.first()...)
	}
	return steps
}

// first returns the step for the wire's first message, or nothing if no message waits. The caller holds the link's
// lock.
func (w *wire) first() []*step {
	if w.closed || len(w.queue) == 0 {
		return nil
	}
	return []*step{{from: w.name, what: w.queue[0].label, born: w.queue[0].born, number: w.queue[0].number, at: w.queue[0].at, wire: w}}
}

// wire carries one direction of a connection. Its fields are guarded by the link's lock.
type wire struct {
	link  *link
	name  string
	queue []frame // frames that wait for the schedule; the first is a message
	ready []byte
	more  chan struct{}
	// late: the waiting frames may still be sent, although no new frames come. closed: no frame is sent any more.
	late, closed bool
}

// close stops the sending. The caller holds the link's lock.
func (w *wire) close() {
	if !w.closed {
		w.closed = true
		close(w.more)
	}
}

// frame is one message, or another element of the protocol.
type frame struct {
	data  []byte
	label string
	// message: the schedule decides when the frame goes. All other frames only keep their order.
	message      bool
	born, number int
	at           time.Time
}

func newWire(l *link, name string, from io.Reader, to io.WriteCloser) *wire {
	w := &wire{link: l, name: name, more: make(chan struct{}, 1)}
	l.world.running.Go(func() {
		w.read(bufio.NewReaderSize(from, 64<<10))
		l.mu.Lock()
		defer l.mu.Unlock()
		if !w.late {
			w.close()
		}
	})
	l.world.running.Go(func() { w.write(to) })
	return w
}

func (w *wire) read(r *bufio.Reader) {
	for {
		f, urgent, err := readFrame(r)
		if err != nil {
			return
		}
		if f.message {
			w.link.world.carry(w.link, &f)
		}
		w.link.mu.Lock()
		f.born, f.number = w.link.world.tick()
		f.at = time.Now()
		switch {
		case urgent:
			w.send(f.data)
		default:
			w.queue = append(w.queue, f)
			if w.link.open {
				w.release(len(w.queue))
			} else {
				w.release(0)
			}
		}
		w.link.mu.Unlock()
	}
}

// release sends n messages. With each message it sends the frames up to the next message.
func (w *wire) release(n int) {
	for len(w.queue) > 0 && (n > 0 || !w.queue[0].message) {
		if w.queue[0].message {
			n--
		}
		w.send(w.queue[0].data)
		w.queue = w.queue[1:]
	}
}

func (w *wire) send(data []byte) {
	if w.closed {
		return
	}
	w.ready = append(w.ready, data...)
	select {
	case w.more <- struct{}{}:
	default:
	}
}

func (w *wire) write(to io.WriteCloser) {
	defer to.Close()
	for range w.more {
		w.link.mu.Lock()
		data := w.ready
		w.ready = nil
		w.link.mu.Unlock()
		if _, err := to.Write(data); err != nil {
			return
		}
	}
}

// readFrame reads one element of NATS's text protocol. Elements that only keep a connection alive are urgent: they
// overtake the waiting frames.
func readFrame(r *bufio.Reader) (f frame, urgent bool, err error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return frame{}, false, err
	}
	f.data = bytes.Clone(line)
	words := strings.Fields(string(line))
	if len(words) == 0 {
		return f, true, nil
	}
	switch strings.ToUpper(words[0]) {
	case "SUB", "UNSUB":
		return f, false, nil
	case "PUB", "HPUB", "MSG", "HMSG":
	default:
		return f, true, nil
	}
	size, err := strconv.Atoi(words[len(words)-1])
	if err != nil {
		return frame{}, false, fmt.Errorf("read %q: %w", line, err)
	}
	body := make([]byte, size+2)
	if _, err := io.ReadFull(r, body); err != nil {
		return frame{}, false, err
	}
	f.data = append(f.data, body...)
	f.message = !bytes.HasPrefix(body, []byte("NATS/1.0 100"))
	f.label = label(words, body)
	return f, false, nil
}

// label describes a message in words.
func label(words []string, body []byte) string {
	subject := words[1]
	switch {
	case strings.HasSuffix(words[0], "PUB"):
		if api, ok := strings.CutPrefix(subject, "$JS.API."); ok {
			return "a question: " + strings.Join(strings.SplitN(api, ".", 4)[:2], ".")
		}
		return "the event " + subject
	case bytes.Contains(body, []byte("Nats-Sequence: ")), bytes.Contains(body, []byte("ce-id: ")):
		_, id, _ := bytes.Cut(body, []byte("ce-id: "))
		id, _, _ = bytes.Cut(id, []byte("\r"))
		return "the log's event " + string(id)
	case bytes.HasPrefix(body, []byte(`{"type":"`)):
		kind, _, _ := bytes.Cut(body[9:], []byte(`"`))
		return "an answer: " + string(bytes.TrimPrefix(kind, []byte("io.nats.jetstream.api.v1.")))
	case bytes.HasPrefix(body, []byte(`{"stream"`)):
		return "an acknowledgement"
	case bytes.HasPrefix(body, []byte(`{"error"`)):
		return "a refusal"
	}
	return "an answer"
}
