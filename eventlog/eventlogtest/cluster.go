package eventlogtest

import (
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/logplane/logplane/eventlog"
)

// size is the number of servers in a cluster.
const size = 3

// Servers are three servers in one cluster. Every route between two of them goes through links that a test can stall or
// cut. Clients can always reach each server.
type Servers struct {
	t       testing.TB
	Server  [size]*server.Server
	Conn    [size]*nats.Conn // Conn[i] is connected to Server[i] and to no other
	folders [size]string
	links   [size][size]*Link // links[i][j] carries the route that i opened to j
}

// Cluster starts three servers, and returns when they agree on a leader. The servers stop when the test ends.
func Cluster(t testing.TB) *Servers {
	t.Helper()
	c := &Servers{t: t}
	for i := range size {
		c.folders[i] = t.TempDir()
		for j := range size {
			c.links[i][j] = NewLink(t)
		}
	}
	for i := range size {
		c.start(i)
	}
	Eventually(t, "the servers agree on a leader and know each other", func() bool {
		leaders := 0
		for _, s := range c.Server {
			if s.JetStreamIsLeader() && len(s.JetStreamClusterPeers()) == size {
				leaders++
			}
		}
		return leaders == 1
	})
	return c
}

// start starts server i. It reaches the other servers through links only.
func (c *Servers) start(i int) {
	c.Server[i] = Run(c.t, c.folders[i], func(o *server.Options) {
		o.ServerName = "s" + strconv.Itoa(i)
		// The advertised address leads nowhere. Otherwise servers that learn of each other would connect without the
		// links.
		o.Cluster = server.ClusterOpts{Name: "cell", Host: "127.0.0.1", Port: server.RANDOM_PORT, Advertise: "127.0.0.1:1", PoolSize: -1, NoAdvertise: true}
		for j := range size {
			if j != i {
				o.Routes = append(o.Routes, &url.URL{Scheme: "nats", Host: c.links[i][j].Address()})
			}
		}
	})
	c.Conn[i] = Connect(c.t, c.Server[i])
	for j := range size {
		c.links[j][i].ToAddress(c.Server[i].ClusterAddr().String())
	}
}

// Restart stops server i, calls meanwhile with the server's folder, and starts the server again. It returns when the
// server has all of the log. Conn[i] is then a new connection.
func (c *Servers) Restart(i int, meanwhile func(folder string)) {
	c.t.Helper()
	c.Server[i].Shutdown()
	c.Server[i].WaitForShutdown()
	meanwhile(c.folders[i])
	c.start(i)
	Eventually(c.t, "the server that was restarted keeps up", func() bool {
		return c.Server[i].JetStreamIsStreamCurrent(server.DEFAULT_GLOBAL_ACCOUNT, "logplane")
	})
}

// Log creates the replicated log if it is missing, and opens it through the connection to server i.
func (c *Servers) Log(i int, change ...func(*eventlog.Config)) *eventlog.Log {
	c.t.Helper()
	config := eventlog.Config{Conn: c.Conn[i], Replicas: size}
	for _, f := range change {
		f(&config)
	}
	Eventually(c.t, "the log is created", func() bool { return eventlog.Create(c.t.Context(), config) == nil })
	c.Leader()
	return Open(c.t, config)
}

// Leader waits until exactly one server leads the log, and returns its number.
func (c *Servers) Leader() int {
	c.t.Helper()
	leader := -1
	Eventually(c.t, "the log has one leader", func() bool {
		leader = -1
		for i := range size {
			if !c.Leads(i) {
				continue
			}
			if leader >= 0 {
				return false
			}
			leader = i
		}
		return leader >= 0
	})
	return leader
}

// Leads says whether server i thinks that it leads the log.
func (c *Servers) Leads(i int) bool {
	return c.Server[i].JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, "logplane")
}

// Stall holds back every byte between server i and the others. Connections stay up, and no server is told.
func (c *Servers) Stall(i int) { c.each(i, (*Link).Stall) }

// Resume lets the bytes that were held back pass, and all later bytes.
func (c *Servers) Resume(i int) { c.each(i, (*Link).Resume) }

// Cut breaks every route of server i; new routes are refused until Resume.
func (c *Servers) Cut(i int) { c.each(i, (*Link).Cut) }

func (c *Servers) each(i int, f func(*Link)) {
	for j := range size {
		f(c.links[i][j])
		f(c.links[j][i])
	}
}

// Eventually waits until a condition holds. The test fails if it does not hold within 20 seconds.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for tick := time.NewTicker(2 * time.Millisecond); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("it did not happen that %s", what)
		}
	}
}
