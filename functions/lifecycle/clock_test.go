package lifecycle

import (
	"bufio"
	"bytes"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// slow is how far the log's clock is behind this process's clock.
const slow = 24 * time.Hour

// slowClock dials a log whose clock is behind. It changes the times that the server reports for messages.
type slowClock struct{}

func (slowClock) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	return &slowConn{Conn: conn, lines: bufio.NewReader(conn)}, err
}

type slowConn struct {
	net.Conn
	lines *bufio.Reader
	left  []byte
}

// Read returns one line at a time, because headers are lines. A message ends with a line end, too.
func (c *slowConn) Read(b []byte) (int, error) {
	if len(c.left) == 0 {
		line, err := c.lines.ReadBytes('\n')
		if err != nil {
			return copy(b, line), err
		}
		c.left = line
		if stamp, ok := bytes.CutPrefix(line, []byte("Nats-Time-Stamp: ")); ok {
			at, err := time.Parse(time.RFC3339Nano, string(bytes.TrimSpace(stamp)))
			if err != nil {
				return 0, err
			}
			// The line must keep its length, because the length of all headers has been read already.
			c.left = at.Add(-slow).AppendFormat([]byte("Nats-Time-Stamp: "), time.RFC3339Nano)
			c.left = append(c.left, "\r\n"...)
		}
	}
	n := copy(b, c.left)
	c.left = c.left[n:]
	return n, nil
}

// behindTheClock returns a Lifecycle without an API. The clock of its log is behind the clock of this process.
func behindTheClock(t *testing.T, c Config) *life {
	t.Helper()
	s := eventlogtest.Run(t, t.TempDir())
	conn, err := nats.Connect(s.ClientURL(), nats.SetCustomDialer(slowClock{}))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	log := eventlogtest.Open(t, eventlog.Config{Conn: conn, InMemory: true})
	p, err := projection.Open(projection.Config{Log: log, Bucket: memory.Strict(t)})
	require.NoError(t, err)
	c.Cell, c.Servers = kubestore.Cell{Log: log, Projection: p, Cluster: "main"}, Only("main", reached{client: &rest.Config{Host: "127.0.0.1:1"}})
	l, err := New(c).of(t.Context(), "main")
	require.NoError(t, err)
	return l
}

// TestExpiryIsByTheLogsTime: an object stays if it is a day old by this process's clock but less than a second old by
// the log's time (invariant 12).
func TestExpiryIsByTheLogsTime(t *testing.T) {
	l := behindTheClock(t, Config{})
	key := eventlog.Key{Cluster: "main", Resource: "events", Prefix: "/events", Namespace: "default", Name: "young"}
	rev, err := l.config.Cell.Log.Append(t.Context(), eventlog.Basis{}, "young", eventlog.Write{
		Key: key, Op: eventlog.Added, ContentType: "application/vnd.kubernetes.protobuf", Body: []byte("x"), TTL: uint32(slow / time.Second / 2),
	})
	require.NoError(t, err)
	view, err := l.config.Cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	row, found, err := view.Get(t.Context(), key.RowKey(), rev)
	require.NoError(t, err)
	require.True(t, found)
	require.Greater(t, time.Since(row.Time), slow-time.Hour, "the log's clock is not behind")

	deleted, err := l.Expire(t.Context())
	require.NoError(t, err)
	require.Zero(t, deleted, "an event is deleted half a day early by the log's time")
}

// TestSettlingIsByTheLogsTime: by the log's time the namespace has only begun to terminate, so it is not finalized yet.
func TestSettlingIsByTheLogsTime(t *testing.T) {
	l := behindTheClock(t, Config{Settle: slow / 2})
	owner := l.namespaceKey("n")
	_, err := l.config.Cell.Log.Append(t.Context(), eventlog.Basis{}, "terminating", eventlog.Write{Key: owner, Op: eventlog.Added, ContentType: "text/plain"})
	require.NoError(t, err)
	pending, err := l.pendingCreates(t.Context(), owner)
	require.NoError(t, err)
	require.NotNil(t, pending, "requests that saw the namespace alive may still run")
	require.Greater(t, pending.After, slow/2-time.Hour)
}
