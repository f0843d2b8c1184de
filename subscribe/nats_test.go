package subscribe

import (
	"bufio"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// natsServer speaks enough of the NATS protocol for a connection that waits for announcements which never come. It can
// break its connections and be away for a while.
type natsServer struct {
	listener net.Listener
	mu       sync.Mutex
	away     bool       // by mu
	open     []net.Conn // by mu
}

func runNATS(t *testing.T) *natsServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &natsServer{listener: listener}
	t.Cleanup(func() {
		_ = listener.Close()
		s.cut()
	})
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go s.serve(conn)
		}
	}()
	return s
}

func (s *natsServer) url() string { return "nats://" + s.listener.Addr().String() }

func (s *natsServer) serve(conn net.Conn) {
	defer conn.Close()
	if !s.admit(conn) {
		return
	}
	_, _ = io.WriteString(conn, `INFO {"server_id":"test","version":"2.15.0","proto":1,"headers":true,"max_payload":1048576}`+"\r\n")
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "PING") {
			_, _ = io.WriteString(conn, "PONG\r\n")
		}
	}
}

func (s *natsServer) admit(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.away {
		s.open = append(s.open, conn)
	}
	return !s.away
}

// cut breaks all connections, and closes new connections at once.
func (s *natsServer) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = true
	for _, conn := range s.open {
		_ = conn.Close()
	}
	s.open = nil
}

func (s *natsServer) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = false
}
