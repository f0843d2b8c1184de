// Package embedded runs a JetStream server inside the process, for 'logplane dev' and for tests that want a whole cell
// without installing anything.
package embedded

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/logplane/logplane/eventlog"
)

// startTimeout bounds the wait for the server. To open a log of a million events takes about a second.
const startTimeout = 30 * time.Second

// reconnectWait is how long a connection waits between tries while Heal replaces the server.
const reconnectWait = 20 * time.Millisecond

// maxPayload admits more than a body of 3 MiB in its storage encoding. JetStream's default of 1 MiB would not admit
// such a body.
const maxPayload = 8 << 20

// Server is a JetStream server in this process.
type Server struct {
	server   atomic.Pointer[server.Server] // replaced by Heal
	options  *server.Options               // of the first server and of each one that replaces it
	password string                        // of the user who may do everything; known to this process only, unless the log is shared
	door     string                        // the file that lets readers in, empty for none
	failed   atomic.Pointer[error]         // why Heal found that the log cannot be written; nil if it can
}

// Config of an embedded server.
type Config struct {
	// Folder is where the server stores its data.
	Folder string
	// Prefix is the first part of every subject.
	Prefix string
	// Listen is the address where everyone may subscribe to '<prefix>.events.>' and '<prefix>.bodies.>', and do nothing
	// else; empty for none.
	Listen string
	// Door is the file that lets other processes of this user read the log (Enter); empty for none. With a door the
	// server listens on the Listen address, or on loopback if Listen is empty.
	Door string
	// Shared lets other processes write, too (OwnerURL). The server then listens as it does with a door.
	Shared bool
	// Unsynced acknowledges writes before they are on disk. A power cut then loses some of them, but a kill of the
	// process loses none.
	Unsynced bool
}

// Start runs a server that syncs every write before it acknowledges the write, unless the log is Unsynced. JetStream's
// default is to sync every two minutes; after a power cut the server would then give out revisions a second time
// (invariant 9). Unless the log is Shared, only this process can write, through Connect. Without Listen, Door and
// Shared the server does not listen at all.
func Start(c Config) (*Server, error) {
	s := &Server{password: rand.Text(), door: c.Door}
	s.options = &server.Options{
		ServerName: "logplane",
		JetStream:  true,
		StoreDir:   c.Folder,
		SyncAlways: !c.Unsynced,
		DontListen: c.Listen == "" && c.Door == "" && !c.Shared,
		MaxPayload: maxPayload,
		MaxPending: 64 << 20,
		NoLog:      true,
		NoSigs:     true,
		Users:      []*server.User{{Username: owner, Password: s.password}},
	}
	if c.Listen != "" {
		s.options.NoAuthUser = subscriber
		s.options.Users = append(s.options.Users, &server.User{Username: subscriber, Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Deny: []string{">"}},
			Subscribe: &server.SubjectPermission{Allow: []string{c.Prefix + ".events.>", c.Prefix + ".bodies.>"}},
		}})
	}
	doorPassword := rand.Text()
	if c.Door != "" {
		s.options.Users = append(s.options.Users, &server.User{Username: reader, Password: doorPassword, Permissions: readerPermissions()})
	}
	if !s.options.DontListen {
		if err := listenOn(s.options, cmp.Or(c.Listen, "127.0.0.1:0")); err != nil {
			return nil, err
		}
	}
	if err := s.start(); err != nil {
		return nil, err
	}
	address, listening := s.server.Load().Addr().(*net.TCPAddr)
	if listening {
		s.options.Port = address.Port // a server that Heal starts must have the port that clients reconnect to
	}
	if c.Door != "" {
		if err := writeDoor(c.Door, address, doorPassword); err != nil {
			s.stop()
			return nil, err
		}
	}
	return s, nil
}

func (s *Server) start() error {
	if err := s.checkRoom(); err != nil {
		return err
	}
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

// Users of the embedded server besides reader: the process itself, and clients that connect without a name.
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
	if options.Port, err = strconv.Atoi(port); err != nil {
		return fmt.Errorf("listen for subscribers: port '%s' is not a number", port)
	}
	if options.Port == 0 {
		options.Port = server.RANDOM_PORT
		return nil
	}
	// A server that cannot have an address reports nothing and keeps trying. So the address is tried first.
	probe, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen for subscribers: %w (if the address is in use: stop what uses it, or name another one)", err)
	}
	return probe.Close()
}

// URL is the URL to which subscribers connect. It is empty if the server does not admit subscribers.
func (s *Server) URL() string {
	if s.options.NoAuthUser == "" {
		return ""
	}
	return s.server.Load().ClientURL()
}

// OwnerURL is the URL by which another process may do everything (Connect). It is empty if the server does not listen.
func (s *Server) OwnerURL() string {
	if s.options.DontListen {
		return ""
	}
	address := net.JoinHostPort(s.options.Host, strconv.Itoa(s.options.Port))
	return (&url.URL{Scheme: "nats", User: url.UserPassword(owner, s.password), Host: address}).String()
}

// Connect opens an in-process connection with the options that eventlog.Config.Conn needs.
func (s *Server) Connect() (*nats.Conn, error) {
	nc, err := nats.Connect("", nats.InProcessServer(s), nats.UserInfo(owner, s.password), nats.Name("logplane"),
		nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait))
	if err != nil {
		return nil, fmt.Errorf("connect to the embedded log server: %w", err)
	}
	return nc, nil
}

// InProcessConn implements nats.InProcessConnProvider. It connects to the current server.
func (s *Server) InProcessConn() (net.Conn, error) { return s.server.Load().InProcessConn() }

// Bounds returns a stream's bounds, as stream info would. It is for eventlog.Config.Local.
func (s *Server) Bounds(stream string) (eventlog.Bounds, error) {
	streams, err := s.streams()
	b, found := streams[stream]
	if err == nil && !found {
		err = fmt.Errorf("look at the embedded log: there is no stream '%s'", stream)
	}
	return b, err
}

func (s *Server) streams() (map[string]eventlog.Bounds, error) {
	account, err := s.server.Load().JszAccount(&server.JSzOptions{Account: server.DEFAULT_GLOBAL_ACCOUNT, Streams: true})
	if err != nil {
		return nil, fmt.Errorf("look at the embedded log: %w", err)
	}
	streams := map[string]eventlog.Bounds{}
	for _, one := range account.Streams {
		first, head := eventlog.Revision(one.State.FirstSeq), eventlog.Revision(one.State.LastSeq)
		streams[one.Name] = eventlog.Bounds{First: first, Head: head}
	}
	return streams, nil
}

// Stop shuts the server down and waits for it.
func (s *Server) Stop() {
	if s.door != "" {
		_ = os.Remove(s.door) // a door that remains names no running server
	}
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
