package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// arrivals is a TCP connection that knows when the bytes of the last read arrived at its socket. The kernel measures
// that time, so it does not matter how soon this program reads. The connection is outside of the runtime's poller. So
// arriving bytes wake no goroutine of the reader, and the reader adds nothing to the cost of the sender's write.
type arrivals struct {
	net.Conn // only for the methods that are not used here
	fd       int
	kept     []arrived // taken out of the socket, but not read yet
	last     time.Time // when the bytes of the last read arrived
}

// arrived holds the bytes of one receive from the socket; at is the arrival of the last of these bytes.
type arrived struct {
	bytes []byte
	at    time.Time
}

// dialArrivals connects to an IPv4 address. Read fails if nothing arrives within patience.
func dialArrivals(address string, patience time.Duration) (*arrivals, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	longest := unix.NsecToTimeval(patience.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &longest),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}),
	)
	return &arrivals{fd: fd}, err
}

// take receives the bytes that are in the socket, and keeps them for Read. It never waits.
func (a *arrivals) take(scratch []byte) error {
	n, at, err := receive(a.fd, scratch, unix.MSG_DONTWAIT)
	if errors.Is(err, unix.EAGAIN) {
		return nil
	}
	if n > 0 {
		a.kept = append(a.kept, arrived{bytes.Clone(scratch[:n]), at})
	}
	return err
}

// Read implements io.Reader. It never returns bytes of two receives together.
func (a *arrivals) Read(p []byte) (n int, err error) {
	if len(a.kept) > 0 {
		first := &a.kept[0]
		n, a.last = copy(p, first.bytes), first.at
		first.bytes = first.bytes[n:]
		if len(first.bytes) == 0 {
			a.kept = a.kept[1:]
		}
		return n, nil
	}
	n, a.last, err = receive(a.fd, p, 0)
	if n == 0 && len(p) > 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

// Write implements io.Writer. A blocking socket takes all bytes.
func (a *arrivals) Write(p []byte) (int, error) { return unix.Write(a.fd, p) }

// Close implements io.Closer.
func (a *arrivals) Close() error { return unix.Close(a.fd) }

func receive(fd int, p []byte, flags int) (n int, at time.Time, err error) {
	var control [128]byte
	var about int
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		n, about, _, _, err = unix.Recvmsg(fd, p, control[:], flags)
	}
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
