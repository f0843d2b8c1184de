package main

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// arrivals is a TCP connection that knows when the bytes that were read last had arrived at its socket. The
// kernel takes the time, so that it does not matter how soon this program reads.
type arrivals struct {
	*net.TCPConn
	held *sync.RWMutex // nothing is read while it is locked
	raw  syscall.RawConn
	last atomic.Int64 // nanoseconds since 1970
}

func dialArrivals(ctx context.Context, network, address string, held *sync.RWMutex) (*arrivals, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	a := &arrivals{TCPConn: conn.(*net.TCPConn), held: held}
	if a.raw, err = a.SyscallConn(); err != nil {
		return nil, err
	}
	var refused error
	err = a.raw.Control(func(fd uintptr) { refused = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1) })
	if err == nil {
		err = refused
	}
	return a, err
}

// Read implements net.Conn. The time is of the last of the bytes that it returns.
func (a *arrivals) Read(p []byte) (n int, err error) {
	var received error
	var control [128]byte
	about := 0
	err = a.raw.Read(func(fd uintptr) (done bool) {
		a.held.RLock()
		defer a.held.RUnlock()
		n, about, _, _, received = unix.Recvmsg(int(fd), p, control[:], 0)
		return received != unix.EAGAIN
	})
	if err == nil {
		err = received
	}
	if err == nil && n == 0 && len(p) > 0 {
		err = io.EOF
	}
	if err == nil {
		err = a.note(control[:about])
	}
	return max(n, 0), err
}

// note keeps the time that came with bytes.
func (a *arrivals) note(control []byte) error {
	messages, err := unix.ParseSocketControlMessage(control)
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS {
			seconds, rest := binary.NativeEndian.Uint64(m.Data), binary.NativeEndian.Uint64(m.Data[8:])
			a.last.Store(int64(seconds)*int64(time.Second) + int64(rest))
		}
	}
	return err
}

func (a *arrivals) at() time.Time { return time.Unix(0, a.last.Load()) }
