package serving

import (
	"bufio"
	"net"
	"net/http"
	"time"
)

// Stream is the writer of an answer that lasts for as long as its client likes. The deadline of other answers does not
// end it. Instead it bounds how long the client may take to receive what is written.
type Stream struct {
	http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration
	// multiplexed is true for HTTP/2. There a deadline must not stay between two writes, because it would end an idle
	// stream. A deadline of HTTP/1 ends only what is written after it.
	multiplexed bool
	// extended is when the deadline was set last; zero if there is none.
	extended time.Time
}

// NewStream returns the writer of the answer to the request. Whoever serves the request calls End when it was served.
func NewStream(w http.ResponseWriter, r *http.Request, patience time.Duration) *Stream {
	s := &Stream{ResponseWriter: w, control: http.NewResponseController(w), patience: patience, multiplexed: r.ProtoMajor >= 2}
	s.forever()
	return s
}

// End lets net/http write the end of the answer.
func (w *Stream) End() { w.allow() }

// Unwrap is for http.ResponseController.
func (w *Stream) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements io.Writer.
func (w *Stream) Write(p []byte) (int, error) {
	w.extend()
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
	w.extend()
	err := w.control.Flush()
	if err == nil {
		w.forever()
	}
	return err
}

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
	_ = c.SetWriteDeadline(time.Now().Add(c.patience))
	return c.Conn.Write(p)
}
