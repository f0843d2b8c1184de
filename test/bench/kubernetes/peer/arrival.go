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

// arrivals is a TCP connection that knows when the bytes that were read last had arrived at its socket. The
// kernel takes the time, so that it does not matter how soon this program reads. It is outside of the runtime's
// poller: there nothing that arrives wakes anybody, so that a sender's write costs the sender nothing of its reader.
type arrivals struct {
	net.Conn // only for what nobody calls
	fd       int
	kept     []arrived // taken out of the socket and not read yet
	last     time.Time // when what was read last had arrived
}

// arrived is what one look at the socket found; the time is of its last byte.
type arrived struct {
	bytes []byte
	at    time.Time
}

// dialArrivals connects to an IPv4 address. Read fails if nothing comes for a time.
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

// take empties the socket and keeps what was in it for Read, as it is. It never waits.
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

// Read implements io.Reader. It never mixes what two looks at the socket found.
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

// Write implements io.Writer; a socket that blocks takes all.
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
