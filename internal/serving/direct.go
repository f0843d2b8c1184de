package serving

import (
	"context"
	"net"
	"syscall"
)

type connectionKey struct{}

// WithConnection returns a context by which a stream finds its connection. It is for an http.Server's ConnContext.
func WithConnection(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, conn)
}

// direct writes to a connection past net/http, which would wait for the client.
type direct struct {
	conn net.Conn
	raw  syscall.RawConn
	// chunk has the bytes that write is writing, and sent is how many of these bytes were written. chunk and sent are
	// fields so that write needs no allocation.
	chunk []byte
	sent  int
	try   func(fd uintptr) bool
}

// directTo returns nil if the connection is not known or is encrypted.
func directTo(ctx context.Context) *direct {
	conn, ok := ctx.Value(connectionKey{}).(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil
	}
	d := &direct{conn: conn, raw: raw}
	d.try = func(fd uintptr) bool {
		d.sent, _ = syscall.Write(int(fd), d.chunk) // net has made the socket non-blocking
		return true
	}
	return d
}

// write returns the number of bytes for which the client had room. Connection errors surface at the next blocking
// write.
func (d *direct) write(chunk []byte) int {
	d.chunk, d.sent = chunk, 0
	err := d.raw.Write(d.try)
	d.chunk = nil
	if err != nil {
		return 0
	}
	return max(d.sent, 0)
}
