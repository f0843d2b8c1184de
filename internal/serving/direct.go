package serving

import (
	"context"
	"net"
	"syscall"
)

type connectionKey struct{}

// WithConnection is an http.Server's ConnContext, by which the server's streams know their connections.
func WithConnection(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, conn)
}

// direct writes to a connection past net/http, which waits for the client.
type direct struct {
	conn net.Conn
	raw  syscall.RawConn
	// chunk is what write writes, and sent how much of it was written. They are here so that a write allocates nothing.
	chunk []byte
	sent  int
	try   func(fd uintptr) bool
}

// directTo returns nil if the connection is not known or encrypts.
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
		d.sent, _ = syscall.Write(int(fd), d.chunk) // net made the socket such that this does not wait
		return true
	}
	return d
}

// write returns how many of the bytes the client had room for. What is wrong with a connection, the next who waits for
// it hears.
func (d *direct) write(chunk []byte) int {
	d.chunk, d.sent = chunk, 0
	err := d.raw.Write(d.try)
	d.chunk = nil
	if err != nil {
		return 0
	}
	return max(d.sent, 0)
}
