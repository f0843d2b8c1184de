// Package embedded runs a JetStream server inside the process, for 'logplane dev' and for tests that
// want a whole cell without installing anything.
package embedded

import (
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// startTimeout bounds the wait for the server; a log of a million events takes about a second to open.
const startTimeout = 30 * time.Second

// maxPayload admits a 3 MiB body in its storage encoding with room to spare; JetStream's 1 MiB would not.
const maxPayload = 8 << 20

// Server is a JetStream server in this process, reachable only through Connect.
type Server struct{ server *server.Server }

// Start runs a server that stores under folder, syncing every write before it is acknowledged: JetStream's
// default of two minutes would reuse revisions after a power cut (invariant 9).
func Start(folder string) (*Server, error) {
	s, err := server.NewServer(&server.Options{
		ServerName: "logplane",
		JetStream:  true,
		StoreDir:   folder,
		SyncAlways: true,
		DontListen: true,
		MaxPayload: maxPayload,
		MaxPending: 64 << 20,
		NoLog:      true,
		NoSigs:     true,
	})
	if err != nil {
		return nil, fmt.Errorf("configure the embedded log server: %w", err)
	}
	s.Start()
	if !s.ReadyForConnections(startTimeout) {
		s.Shutdown()
		return nil, fmt.Errorf("the embedded log server did not start within %s", startTimeout)
	}
	return &Server{server: s}, nil
}

// Connect opens an in-process connection. Nothing is buffered while disconnected, so that no write is
// sent later than its request meant it.
func (s *Server) Connect() (*nats.Conn, error) {
	nc, err := nats.Connect("", nats.InProcessServer(s.server), nats.ReconnectBufSize(-1), nats.Name("logplane"))
	if err != nil {
		return nil, fmt.Errorf("connect to the embedded log server: %w", err)
	}
	return nc, nil
}

// Stop shuts the server down and waits for it.
func (s *Server) Stop() {
	s.server.Shutdown()
	s.server.WaitForShutdown()
}
