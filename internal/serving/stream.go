package serving

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Stream writes an answer that lasts for as long as its client likes. Unlike other answers, it has no overall deadline.
// Instead it bounds how long the client may take to receive each write.
//
// The handler writes to the Stream. While the handler has nothing to write, another goroutine may call SendAll.
type Stream struct {
	http.ResponseWriter
	control *http.ResponseController
	// over is the request's context, which net/http ends when a write fails. Flushing reports no error through writers
	// that only implement http.Flusher.
	over     context.Context
	patience time.Duration
	// multiplexed is true for HTTP/2. There no deadline may stay set between two writes, because a deadline would end
	// an idle stream. In HTTP/1 a deadline affects only later writes.
	multiplexed bool
	// begun is closed, by begin, when the handler has first flushed, or the stream has ended.
	begun chan struct{}
	begin sync.Once
	// ending says that End was called. A write that is under way may then take as long as patience at most.
	ending atomic.Bool

	// mu is held during every write, which may take as long as patience. It guards the fields below.
	mu sync.Mutex
	// extended is when the deadline was last set, or zero if none is set.
	extended time.Time
}

// NewStream returns the writer of the answer to the request. The caller serves the request and then calls End.
func NewStream(w http.ResponseWriter, r *http.Request, patience time.Duration) *Stream {
	s := &Stream{ResponseWriter: w, over: r.Context(), control: http.NewResponseController(w), patience: patience, multiplexed: r.ProtoMajor >= 2, begun: make(chan struct{})}
	s.forever()
	return s
}

// End lets net/http write the end of the answer. After End, SendAll sends nothing.
func (w *Stream) End() {
	w.ending.Store(true)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begin.Do(func() { close(w.begun) })
	w.allow()
}

// Unwrap is for http.ResponseController.
func (w *Stream) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements io.Writer.
func (w *Stream) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return inParts(p, w.write)
}

// inParts writes p in parts. The client may take as long as its patience for each part. A single large write would be
// cut off even for a client that receives all the time, and would be sent again from its first byte.
func inParts(p []byte, write func([]byte) (int, error)) (written int, err error) {
	for {
		n, err := write(p[written:min(len(p), written+atOnce)])
		written += n
		if err != nil || written == len(p) {
			return written, err
		}
	}
}

// write requires mu.
func (w *Stream) write(p []byte) (int, error) {
	if !w.ending.Load() {
		w.extend()
	}
	return w.ResponseWriter.Write(p)
}

// extend moves the deadline, but not for every event: moving it each time would be a tenth of the cost of sending an
// event.
func (w *Stream) extend() {
	if time.Since(w.extended) > w.patience/8 {
		w.allow()
	}
}

func (w *Stream) allow() {
	w.extended = time.Now()
	_ = w.control.SetWriteDeadline(w.extended.Add(w.patience)) // not every server supports deadlines
}

// forever removes the deadline while a stream has nothing to send.
func (w *Stream) forever() {
	if w.multiplexed {
		w.extended = time.Time{}
		_ = w.control.SetWriteDeadline(w.extended)
	}
}

// Flush implements http.Flusher.
func (w *Stream) Flush() { _ = w.FlushError() }

// FlushError is the method that http.ResponseController looks for.
func (w *Stream) FlushError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.flush()
}

// flush requires mu.
func (w *Stream) flush() error {
	w.extend()
	err := errors.Join(w.control.Flush(), w.over.Err())
	if err == nil {
		w.begin.Do(func() { close(w.begun) })
		w.forever()
	}
	return err
}

// errEnded is the error of a stream whose request is over.
var errEnded = errors.New("the request is over")

// SendAll writes in place of the handler once the handler has begun its answer. It waits for the client.
func (w *Stream) SendAll(p []byte) error {
	<-w.begun
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ending.Load() {
		return errEnded
	}
	if _, err := inParts(p, w.write); err != nil {
		return err
	}
	return w.flush()
}

// atOnce is how many bytes a client must receive within its patience.
const atOnce = 16 << 10

// CloseNotify is the method that upstream's wrappers look for.
func (w *Stream) CloseNotify() <-chan bool { return CloseNotify(w.ResponseWriter) }

// CloseNotify returns the channel of the writer, or a channel that never receives anything.
func CloseNotify(w http.ResponseWriter) <-chan bool {
	if inner, ok := w.(http.CloseNotifier); ok { //nolint:staticcheck // upstream asks for it
		return inner.CloseNotify()
	}
	return make(chan bool)
}

// Hijack implements http.Hijacker, for WebSocket.
func (w *Stream) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	conn, buffered, err := w.control.Hijack()
	if err != nil {
		return nil, nil, err
	}
	impatient := &streamConn{conn, w.patience}
	buffered.Writer.Reset(impatient)
	return impatient, buffered, nil
}

// streamConn is a connection that has switched protocols. Like a Stream it bounds how long the client may take to
// receive each write.
type streamConn struct {
	net.Conn
	patience time.Duration
}

// Write implements io.Writer.
func (c *streamConn) Write(p []byte) (int, error) {
	return inParts(p, func(part []byte) (int, error) {
		_ = c.SetWriteDeadline(time.Now().Add(c.patience))
		return c.Conn.Write(part)
	})
}
