package calls

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
)

// MostHeaders is how many bytes of headers a proxied answer may have, as many as the headers of a request may have. By
// default net/http would hold 10 MiB of headers of each answer.
const MostHeaders = 64 << 10

// mostBeforeUpgrade is how many bytes may come before a connection has switched protocols: the bytes of headers, and
// the bytes of TLS.
const mostBeforeUpgrade = 2 * MostHeaders

type upgradeKey struct{}

// Upgrade is a request that asks to switch protocols. Upstream's handler makes the connection for such a request
// itself. The handler would read headers without a bound, and would wait for headers even when nobody wants the answer
// any more.
type Upgrade struct{ done atomic.Bool }

// WithUpgrade makes connections of the context's request end with the request. Until Done, it also bounds the bytes
// that these connections receive.
func WithUpgrade(ctx context.Context) (context.Context, *Upgrade) {
	u := &Upgrade{}
	return context.WithValue(ctx, upgradeKey{}, u), u
}

// Done says that the protocols are switched, and lifts the bound.
func (u *Upgrade) Done() { u.done.Store(true) }

// Dial connects to an address. It also makes the connection of an Upgrade.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Upgrading connects by the given Dial, and bounds the connections of an Upgrade.
func Upgrading(dial Dial) Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		u, ok := ctx.Value(upgradeKey{}).(*Upgrade)
		if err != nil || !ok {
			return conn, err
		}
		context.AfterFunc(ctx, func() { _ = conn.Close() })
		return &upgrading{Conn: conn, upgrade: u}, nil
	}
}

// upgrading is a connection of an Upgrade. Until the upgrade is done, only one goroutine reads from the connection.
type upgrading struct {
	net.Conn
	upgrade *Upgrade
	read    int
}

// Read implements io.Reader.
func (c *upgrading) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.upgrade.done.Load() {
		return n, err
	}
	if c.read += n; c.read > mostBeforeUpgrade {
		return 0, fmt.Errorf("the peer has not switched protocols within %d bytes", mostBeforeUpgrade)
	}
	return n, err
}
