// Package embedded runs a JetStream server inside the process, for 'logplane dev' and for tests that want a whole cell
// without installing anything.
package embedded

import (
	"crypto/rand"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/logplane/logplane/eventlog"
)

// startTimeout bounds the wait for the server; a log of a million events takes about a second to open.
const startTimeout = 30 * time.Second

// reconnectWait is how long a connection waits between tries while Heal replaces the server.
const reconnectWait = 20 * time.Millisecond

// maxPayload admits a 3 MiB body in its storage encoding with room to spare; JetStream's 1 MiB would not.
const maxPayload = 8 << 20

// Server is a JetStream server in this process.
type Server struct {
	server   atomic.Pointer[server.Server] // replaced by Heal
	options  *server.Options               // of the first and any later one
	password string                        // of the one user who may do everything; known to this process only
	failed   atomic.Pointer[error]         // why the log could not be written when Heal looked; nil if it could
}

// Start runs a server that stores under folder, syncing every write before it is acknowledged: JetStream's default of
// two minutes would reuse revisions after a power cut (invariant 9).
//
// Only this process can write, through Connect. With a listen address everyone who reaches it may subscribe to
// '<prefix>.events.>' and '<prefix>.bodies.>' and do nothing else; without one nothing listens.
func Start(folder, listen, prefix string) (*Server, error) {
	password := rand.Text()
	options := &server.Options{
		ServerName: "logplane",
		JetStream:  true,
		StoreDir:   folder,
		SyncAlways: true,
		DontListen: listen == "",
		MaxPayload: maxPayload,
		MaxPending: 64 << 20,
		NoLog:      true,
		NoSigs:     true,
		Users: []*server.User{
			{Username: owner, Password: password},
			{Username: subscriber, Permissions: &server.Permissions{
				Publish:   &server.SubjectPermission{Deny: []string{">"}},
				Subscribe: &server.SubjectPermission{Allow: []string{prefix + ".events.>", prefix + ".bodies.>"}},
			}},
		},
		NoAuthUser: subscriber,
	}
	if listen != "" {
		if err := listenOn(options, listen); err != nil {
			return nil, err
		}
	}
	s := &Server{options: options, password: password}
	if err := s.start(); err != nil {
		return nil, err
	}
	if address, ok := s.server.Load().Addr().(*net.TCPAddr); ok {
		s.options.Port = address.Port // where subscribers come back to
	}
	return s, nil
}

func (s *Server) start() error {
	started, err := server.NewServer(s.options.Clone())
	if err != nil {
		return fmt.Errorf("configure the embedded log server: %w", err)
	}
	started.Start()
	if !started.ReadyForConnections(startTimeout) {
		started.Shutdown()
		return fmt.Errorf("the embedded log server did not start within %s", startTimeout)
	}
	s.server.Store(started)
	return nil
}

// Users of the embedded server: the process itself, and whoever connects without a name.
const (
	owner      = "logplane"
	subscriber = "subscriber"
)

func listenOn(options *server.Options, address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("listen for subscribers: %w", err)
	}
	options.Host = host
	options.Port, err = strconv.Atoi(port)
	if err != nil {
		return fmt.Errorf("listen for subscribers: port '%s' is not a number", port)
	}
	if options.Port == 0 {
		options.Port = server.RANDOM_PORT
	}
	return nil
}

// URL is where subscribers connect, empty if nothing listens.
func (s *Server) URL() string {
	if s.server.Load().Addr() == nil {
		return ""
	}
	return s.server.Load().ClientURL()
}

// Connect opens an in-process connection. Nothing is buffered while disconnected, so that no write is sent later than
// its request meant it.
func (s *Server) Connect() (*nats.Conn, error) {
	nc, err := nats.Connect("", nats.InProcessServer(s), nats.UserInfo(owner, s.password), nats.Name("logplane"),
		nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait))
	if err != nil {
		return nil, fmt.Errorf("connect to the embedded log server: %w", err)
	}
	return nc, nil
}

// InProcessConn implements nats.InProcessConnProvider: it leads to the server of the moment.
func (s *Server) InProcessConn() (net.Conn, error) { return s.server.Load().InProcessConn() }

// Bounds are a stream's, as stream info has them. It is for eventlog.Config.Local.
func (s *Server) Bounds(stream string) (eventlog.Bounds, error) {
	account, err := s.server.Load().JszAccount(&server.JSzOptions{Account: server.DEFAULT_GLOBAL_ACCOUNT, Streams: true})
	if err != nil {
		return eventlog.Bounds{}, fmt.Errorf("look at the embedded log: %w", err)
	}
	for _, one := range account.Streams {
		if one.Name == stream {
			return eventlog.Bounds{First: eventlog.Revision(one.State.FirstSeq), Head: eventlog.Revision(one.State.LastSeq)}, nil
		}
	}
	return eventlog.Bounds{}, fmt.Errorf("look at the embedded log: there is no stream '%s'", stream)
}

// Stop shuts the server down and waits for it.
func (s *Server) Stop() {
	failed := s.health()
	s.stop()
	if failed != nil {
		s.dropState()
	}
}

func (s *Server) stop() {
	s.server.Load().Shutdown()
	s.server.Load().WaitForShutdown()
}
