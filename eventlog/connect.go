package eventlog

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// Pings find a dead connection within pingInterval x (pingsOutstanding + 1); --log-retention must be well
// above that and the request deadline together, so that no stalled writer meets a purged precondition.
const (
	pingInterval     = 5 * time.Second
	pingsOutstanding = 2
	connectTimeout   = 5 * time.Second
)

// Servers says how to reach the NATS servers of a cell.
type Servers struct {
	// URL of one or more servers, separated by commas.
	URL string
	// Credentials is a NATS credentials file, or empty.
	Credentials string
	// CA is a file of certificates that the servers must be signed by, or empty.
	CA string
}

// Connect connects to NATS. Nothing is buffered while disconnected: a write must never be sent later than
// its request meant it.
func Connect(s Servers) (*nats.Conn, error) {
	options := []nats.Option{
		nats.Name("logplane"), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1),
		nats.PingInterval(pingInterval), nats.MaxPingsOutstanding(pingsOutstanding), nats.Timeout(connectTimeout),
	}
	if s.Credentials != "" {
		options = append(options, nats.UserCredentials(s.Credentials))
	}
	if s.CA != "" {
		options = append(options, nats.RootCAs(s.CA))
	}
	conn, err := nats.Connect(s.URL, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to the log at '%s': %w", s.URL, err)
	}
	return conn, nil
}
