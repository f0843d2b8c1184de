package main

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// arrivals is a TCP connection that knows when the bytes that were read last had arrived at its socket. The
// kernel takes the time, so that it does not matter how soon this program reads.
type arrivals struct {
	*net.TCPConn
	raw  syscall.RawConn
	kept []arrived // taken out of the socket and not read yet
	last time.Time // when what was read last had arrived
}

// arrived is what one look at the socket found; the time is of its last byte.
type arrived struct {
	bytes []byte
	at    time.Time
}

func dialArrivals(ctx context.Context, address string) (*arrivals, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	a := &arrivals{TCPConn: conn.(*net.TCPConn)}
	if a.raw, err = a.SyscallConn(); err != nil {
		return nil, err
	}
	var refused error
	err = a.raw.Control(func(fd uintptr) { refused = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1) })
	return a, errors.Join(err, refused)
}

// take empties the socket and keeps what was in it for Read, as it is. It never waits. Nobody may be reading.
func (a *arrivals) take(scratch []byte) error {
	var n int
	var at time.Time
	var failed error
	err := a.raw.Control(func(fd uintptr) { n, at, failed = receive(int(fd), scratch) })
	if failed == unix.EAGAIN {
		return err
	}
	if n > 0 {
		a.kept = append(a.kept, arrived{append([]byte(nil), scratch[:n]...), at})
	}
	return errors.Join(err, failed)
}

// Read implements net.Conn. It never mixes what two looks at the socket found.
func (a *arrivals) Read(p []byte) (n int, err error) {
	if len(a.kept) > 0 {
		first := &a.kept[0]
		n, a.last = copy(p, first.bytes), first.at
		if first.bytes = first.bytes[n:]; len(first.bytes) == 0 {
			a.kept = a.kept[1:]
		}
		return n, nil
	}
	var failed error
	err = a.raw.Read(func(fd uintptr) (done bool) {
		n, a.last, failed = receive(int(fd), p)
		return failed != unix.EAGAIN
	})
	if n == 0 && len(p) > 0 && err == nil && failed == nil {
		failed = io.EOF
	}
	return n, errors.Join(err, failed)
}

func receive(fd int, p []byte) (n int, at time.Time, err error) {
	var control [128]byte
	n, about, _, _, err := unix.Recvmsg(fd, p, control[:], 0)
	if err != nil {
		return 0, at, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:about])
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS {
			at = time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		}
	}
	return n, at, err
}
