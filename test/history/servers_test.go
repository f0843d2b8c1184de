package history

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// serverPart is one nats-server in a process of its own, which can be killed and paused.
type serverPart struct {
	Name, Folder string
	// Routes are the addresses of the other servers; a single server has none.
	Routes []string
}

// run serves until the process is killed.
func (s *serverPart) run() error {
	o := &server.Options{
		ServerName: s.Name, Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
		JetStream: true, StoreDir: s.Folder, SyncAlways: true, MaxPayload: 8 << 20,
	}
	if len(s.Routes) > 0 {
		// The advertised address leads nowhere. Otherwise servers that learn each other's addresses would connect
		// directly, and bypass the links.
		o.Cluster = server.ClusterOpts{Name: "cell", Host: "127.0.0.1", Port: server.RANDOM_PORT, Advertise: "127.0.0.1:1", PoolSize: -1, NoAdvertise: true}
		for _, address := range s.Routes {
			o.Routes = append(o.Routes, &url.URL{Scheme: "nats", Host: address})
		}
	}
	one, err := server.NewServer(o)
	if err != nil {
		return err
	}
	one.Start()
	if !one.ReadyForConnections(startTimeout) {
		return errors.New("the server is not ready for connections")
	}
	cluster := "none"
	if len(s.Routes) > 0 {
		cluster = one.ClusterAddr().String()
	}
	fmt.Printf("nats-server client=%s cluster=%s\n", strings.TrimPrefix(one.ClientURL(), "nats://"), cluster)
	one.WaitForShutdown()
	return nil
}

var listening = regexp.MustCompile(`nats-server client=(\S+) cluster=(\S+)`)

// servers are the one or three nats-servers of a cell. Clients reach each server by a link, and servers reach each
// other by links, so a server may listen on another port after a restart.
type servers struct {
	conn *nats.Conn // the test's own connection
	one  []*serverProcess
}

// serverProcess is one of the servers.
type serverProcess struct {
	part    serverPart
	clients *eventlogtest.Link
	// opened carries the routes that this server opens to the other servers; led carries the routes that the other
	// servers open to this one.
	opened, led []*eventlogtest.Link
	// p is replaced by the goroutine that disturbs the servers. No other goroutine reads it while the test runs.
	p *process
}

// startServers runs one server for each folder.
func startServers(t testing.TB, folders ...string) *servers {
	t.Helper()
	n := len(folders)
	s := &servers{}
	for i, folder := range folders {
		s.one = append(s.one, &serverProcess{part: serverPart{Name: fmt.Sprintf("s%d", i), Folder: folder}, clients: eventlogtest.NewLink(t)})
	}
	for i, from := range s.one {
		for j, to := range s.one {
			if i != j {
				l := eventlogtest.NewLink(t)
				from.part.Routes = append(from.part.Routes, l.Address())
				from.opened, to.led = append(from.opened, l), append(to.led, l)
			}
		}
	}
	t.Cleanup(func() {
		for _, one := range s.one {
			if one.p != nil {
				one.p.kill()
			}
		}
	})
	// Each server waits for the others, so they start together.
	started := make(chan error, n)
	for _, one := range s.one {
		go func() { started <- one.start(t.Context()) }()
	}
	for range n {
		if err := <-started; err != nil {
			t.Fatal(err)
		}
	}
	var err error
	s.conn, err = nats.Connect(s.url(), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.RetryOnFailedConnect(true))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.conn.Close)
	return s
}

// url returns the addresses that processes connect to.
func (s *servers) url() string {
	var urls []string
	for _, one := range s.one {
		urls = append(urls, one.clients.URL())
	}
	return strings.Join(urls, ",")
}

// start runs the server over its folder.
func (s *serverProcess) start(ctx context.Context) error {
	cmd, err := part{Server: &s.part}.command()
	if err != nil {
		return err
	}
	p, err := launch(s.part.Name, cmd)
	if err != nil {
		return err
	}
	s.p = p
	found, err := p.said(ctx, listening)
	if err != nil {
		return err
	}
	s.clients.ToAddress(found[1])
	for _, l := range s.led {
		l.ToAddress(found[2])
	}
	return nil
}

// routes calls f with each link between this server and the others.
func (s *serverProcess) routes(f func(*eventlogtest.Link)) {
	for _, l := range s.opened {
		f(l)
	}
	for _, l := range s.led {
		f(l)
	}
}

// stream has the fields of the stream's information that these tests use.
type stream struct {
	State struct {
		First uint64 `json:"first_seq"`
		Last  uint64 `json:"last_seq"`
	} `json:"state"`
	Cluster *struct {
		Leader   string `json:"leader"`
		Replicas []struct {
			Current bool `json:"current"`
			Offline bool `json:"offline"`
		} `json:"replicas"`
	} `json:"cluster"`
}

func (s *servers) info(ctx context.Context) (stream, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var i stream
	answer, err := s.conn.RequestWithContext(ctx, "$JS.API.STREAM.INFO.logplane", nil)
	if err == nil {
		err = json.Unmarshal(answer.Data, &i)
	}
	return i, err
}

// leader returns the server that leads the stream, nil if no leader is known.
func (s *servers) leader(ctx context.Context) *serverProcess {
	i, err := s.info(ctx)
	if err != nil || i.Cluster == nil {
		return nil
	}
	for _, one := range s.one {
		if one.part.Name == i.Cluster.Leader {
			return one
		}
	}
	return nil
}

// stepDown makes the leader give up its leadership.
func (s *servers) stepDown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := s.conn.RequestWithContext(ctx, "$JS.API.STREAM.LEADER.STEPDOWN.logplane", nil)
	return err
}

// whole waits until the log has a leader, and its replicas keep up.
func (s *servers) whole(ctx context.Context) error { return s.whileWhole(ctx, 0) }

// settled waits until the log is whole and its head no longer moves, so that no message is on its way.
func (s *servers) settled(ctx context.Context) error { return s.whileWhole(ctx, 500*time.Millisecond) }

// whileWhole waits until the log is whole, and its head has not moved for a while.
func (s *servers) whileWhole(ctx context.Context, while time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	since, last := time.Now(), uint64(0)
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		i, err := s.info(ctx)
		whole := err == nil && i.whole(len(s.one))
		if !whole || i.State.Last != last {
			since, last = time.Now(), i.State.Last
		}
		if whole && time.Since(since) >= while {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the log does not settle: %w", errors.Join(ctx.Err(), err))
		}
	}
}

// whole says whether all servers of the stream are up and current.
func (i stream) whole(servers int) bool {
	if servers == 1 {
		return true
	}
	if i.Cluster == nil || i.Cluster.Leader == "" || len(i.Cluster.Replicas) != servers-1 {
		return false
	}
	for _, r := range i.Cluster.Replicas {
		if !r.Current || r.Offline {
			return false
		}
	}
	return true
}
