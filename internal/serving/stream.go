package serving

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Stream is the writer of an answer that lasts for as long as its client likes. The deadline of other answers does not
// end it. Instead it bounds how long the client may take to receive what is written.
//
// Its handler writes to it. While the handler has nothing to write, others may call Send and SendAll.
type Stream struct {
	http.ResponseWriter
	control *http.ResponseController
	// over is the request's context, which net/http ends when it fails to write. To flush tells of no error through
	// writers that only implement http.Flusher.
	over     context.Context
	patience time.Duration
	// multiplexed is true for HTTP/2. There a deadline must not stay between two writes, because it would end an idle
	// stream. A deadline of HTTP/1 ends only what is written after it.
	multiplexed bool
	// begun is closed, by begin, when the handler has flushed for the first time, or the stream has ended.
	begun chan struct{}
	begin sync.Once
	// ending says that End was called. What is being written then has no more than one patience.
	ending atomic.Bool

	// mu is held while anything is written, which may be for as long as patience. It guards what follows.
	mu sync.Mutex
	// extended is when the deadline was set last; zero if there is none.
	extended time.Time
	// flushed says that net/http holds nothing back of what the handler wrote.
	flushed bool
	// direct is nil if only the handler can write.
	direct *direct
}

// NewStream returns the writer of the answer to the request. Whoever serves the request calls End when it was served.
// Between net/http and the stream, nothing may change the bytes of an answer: Send passes it by.
func NewStream(w http.ResponseWriter, r *http.Request, patience time.Duration) *Stream {
	s := &Stream{ResponseWriter: w, over: r.Context(), control: http.NewResponseController(w), patience: patience, multiplexed: r.ProtoMajor >= 2, begun: make(chan struct{})}
	s.forever()
	if r.ProtoAtLeast(1, 1) && !s.multiplexed { // HTTP/1.0 has no chunks
		s.direct = directTo(r.Context())
	}
	return s
}

// End lets net/http write the end of the answer. After it, Send and SendAll send nothing.
func (w *Stream) End() {
	w.ending.Store(true)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.direct = nil
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

// inParts writes parts that each have the client's patience: one of many bytes would be cut off, and sent again from
// its first byte, by a client that receives all the time.
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
	w.flushed = false
	return w.ResponseWriter.Write(p)
}

// extend moves the deadline, but not for every event: that would cost a tenth of sending it.
func (w *Stream) extend() {
	if time.Since(w.extended) > w.patience/8 {
		w.allow()
	}
}

func (w *Stream) allow() {
	w.extended = time.Now()
	_ = w.control.SetWriteDeadline(w.extended.Add(w.patience)) // not every server has deadlines
}

// forever removes the deadline of a stream that has nothing to send.
func (w *Stream) forever() {
	if w.multiplexed {
		w.extended = time.Time{}
		_ = w.control.SetWriteDeadline(w.extended)
	}
}

// Flush implements http.Flusher.
func (w *Stream) Flush() { _ = w.FlushError() }

// FlushError is what http.ResponseController looks for.
func (w *Stream) FlushError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.flush()
}

// flush requires mu.
func (w *Stream) flush() error {
	w.extend()
	err := errors.Join(w.control.Flush(), w.over.Err())
	w.flushed = err == nil
	if err == nil {
		w.begin.Do(func() { close(w.begun) })
		w.forever()
	}
	return err
}

// errEnded is of a stream whose request is over.
var errEnded = errors.New("the request is over")

// SendAll writes in place of the handler once that has begun its answer, and waits for the client.
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

// Sends says that Send can send something, at times: neither HTTP/2 nor TLS is between the process and its client.
func (w *Stream) Sends() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.direct != nil
}

// Send writes a chunk that Chunk has made, in place of the handler, and never waits. It reports false if it sent
// nothing: the client has not made room, the handler is writing, or the stream has ended. The handler must have begun a
// chunked answer. What it writes later comes after the chunk.
func (w *Stream) Send(chunk []byte) bool {
	if !w.mu.TryLock() {
		return false
	}
	if w.direct == nil || !w.flushed {
		w.mu.Unlock()
		return false
	}
	w.extend()
	sent := w.direct.write(chunk)
	if 0 < sent && sent < len(chunk) {
		go w.sendRest(chunk[sent:])
		return true
	}
	w.mu.Unlock()
	return sent > 0
}

// sendRest waits for the client to make room for the rest of a chunk, and then unlocks mu. Without the rest the
// connection is of no use. To close it ends the handler, or what that writes next does.
func (w *Stream) sendRest(rest []byte) {
	defer w.mu.Unlock()
	if _, err := w.direct.conn.Write(rest); err != nil {
		_ = w.direct.conn.Close()
		w.direct = nil
	}
}

// Chunk is one of a chunked answer of HTTP/1.1.
func Chunk(data []byte) []byte { return fmt.Appendf(nil, "%x\r\n%s\r\n", len(data), data) }

// CloseNotify is what upstream's wrappers look for.
func (w *Stream) CloseNotify() <-chan bool { return CloseNotify(w.ResponseWriter) }

// CloseNotify is that of the writer, or a channel on which nothing comes.
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
	w.direct = nil
	conn, buffered, err := w.control.Hijack()
	if err != nil {
		return nil, nil, err
	}
	impatient := &streamConn{conn, w.patience}
	buffered.Writer.Reset(impatient)
	return impatient, buffered, nil
}

// streamConn is the same for a connection that has switched protocols.
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
