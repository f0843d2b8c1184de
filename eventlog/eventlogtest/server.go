// Package eventlogtest runs real embedded JetStream servers for tests.
package eventlogtest

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/logplane/logplane/eventlog"
)

// patience bounds every wait for a server.
const patience = 20 * time.Second

// Start runs one embedded server on loopback, with file storage and 'sync always' in a temporary folder, and returns a
// connection to it. The server and the connection end with the test.
func Start(t testing.TB, change ...func(*server.Options)) *nats.Conn {
	t.Helper()
	return Connect(t, Run(t, t.TempDir(), change...))
}

// Log starts a server and opens a fresh log on it.
func Log(t testing.TB) *eventlog.Log {
	t.Helper()
	return Open(t, eventlog.Config{Conn: Start(t)})
}

// Open creates the log that c describes, if it is missing, and opens it.
func Open(t testing.TB, c eventlog.Config) *eventlog.Log {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := eventlog.Create(ctx, c); err != nil {
		t.Fatal(err)
	}
	l, err := eventlog.Open(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Run runs one embedded server over a folder until the test ends, or until the test shuts it down.
func Run(t testing.TB, dir string, change ...func(*server.Options)) *server.Server {
	t.Helper()
	o := &server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
		JetStream: true, StoreDir: dir, SyncAlways: true, MaxPayload: 8 << 20,
	}
	for _, f := range change {
		f(o)
	}
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(patience) {
		t.Fatal("the server is not ready for connections")
	}
	return s
}

// Connect returns a connection to the server. The connection ends with the test.
func Connect(t testing.TB, s *server.Server) *nats.Conn {
	t.Helper()
	return connect(t, s.ClientURL())
}

// ConnectThrough returns a connection to the server through a link that the test can stall, cut, or point at another
// server.
func ConnectThrough(t testing.TB, s *server.Server) (*nats.Conn, *Link) {
	t.Helper()
	l := NewLink(t)
	l.ofClient = true
	l.To(s)
	return connect(t, l.URL()), l
}

func connect(t testing.TB, url string) *nats.Conn {
	t.Helper()
	conn, err := nats.Connect(url, nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
		nats.ReconnectJitter(0, 0), nats.IgnoreDiscoveredServers())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// FreeAddress returns an address of this machine on which nobody listens yet, for a process that must know its address
// in advance.
func FreeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
