package watcher_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/serving"
	"github.com/logplane/logplane/watcher"
)

// TestDrain: a watcher that stops is not ready, refuses new watches, and ends each open watch cleanly, with a bookmark
// from which another watcher continues.
func TestDrain(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for drains")
	}
	overEach(t, drain)
}

func drain(t *testing.T, c cell) {
	one, two := c.serve(t, func(c *watcher.Config) { c.Spread = 200 * time.Millisecond }), c.serve(t)
	one.post("/api/v1/namespaces", `{"metadata":{"name":"default"}}`)
	empty := one.get(configMaps)
	start := "resourceVersion=" + empty.revision()
	var marked, plain []*stream
	for range 10 {
		w := one.watch(start + "&allowWatchBookmarks=true&labelSelector=color%3Dred")
		marked, plain = append(marked, w), append(plain, one.watch(start))
	}
	a := one.create("a", "blue")
	for _, w := range plain {
		w.expect(added(a))
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		one.watcher.Drain(context.Background())
	}()
	eventlogtest.Eventually(t, "the watcher is not ready", func() bool {
		response, err := one.client.Get(one.url + "/readyz")
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.StatusCode == http.StatusInternalServerError || response.StatusCode == http.StatusServiceUnavailable
	})
	refused := one.open(503, configMaps+"?watch=1", "application/json")
	require.Equal(t, "1", refused.response.Header.Get("Retry-After"))
	if c.protocol == http1 {
		require.True(t, refused.response.Close)
	} else { // GOAWAY: open requests continue; new ones use another connection, perhaps to another process
		eventlogtest.Eventually(t, "the client has another connection", func() bool { return !one.reuses() })
	}
	one.get(configMaps) // everything except watches is still served
	<-drained
	for _, w := range plain {
		w.expectEnd()
	}
	var last string
	for _, w := range marked {
		e := w.next()
		require.Equal(t, "BOOKMARK", e["type"])
		bookmark := object(e["object"].(map[string]any))
		require.GreaterOrEqual(t, revisionOf(bookmark), revisionOf(empty))
		last = bookmark.revision()
		w.expectEnd()
	}
	two.watch("labelSelector=color%3Dred&resourceVersion=" + last).expect(added(two.create("b", "red")))
}

// TestServeDrains: on the listener's side, the last answers are sent, connections close, and the server ends.
func TestServeDrains(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for drains")
	}
	overEach(t, serveDrains)
}

func serveDrains(t *testing.T, c cell) {
	s := c.start(t)
	front, stop, ended := s.behindListener()
	var watching []*stream
	for range 5 {
		watching = append(watching, front.watch("allowWatchBookmarks=true&resourceVersion="+s.get(configMaps).revision()))
	}
	stop()
	for _, w := range watching {
		require.Equal(t, "BOOKMARK", w.next()["type"])
		w.expectEnd()
	}
	require.NoError(t, <-ended)
}

// behindListener serves the watcher as the process does, until stop.
func (s *server) behindListener() (front *server, stop func(), ended chan error) {
	s.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(s.t, err)
	ctx, stop := context.WithCancel(s.t.Context())
	url, secure := "http://"+listener.Addr().String(), (*tls.Config)(nil)
	if s.cell.protocol == http2 {
		url = "https://" + listener.Addr().String()
		secure = &tls.Config{Certificates: s.listener.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}}
	}
	ended = make(chan error, 1)
	go func() {
		ended <- serving.Serve(ctx, listener, s.watcher, serving.Config{TLS: secure, Drain: s.watcher.Drain, Patience: patience})
	}()
	return &server{t: s.t, cell: s.cell, url: url, client: s.client}, stop, ended
}

// reuses says whether the client's next request uses an existing connection.
func (s *server) reuses() (reused bool) {
	s.t.Helper()
	ctx := httptrace.WithClientTrace(s.t.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { reused = c.Reused }})
	request, err := http.NewRequestWithContext(ctx, "GET", s.url+"/version", nil)
	require.NoError(s.t, err)
	response, err := s.client.Do(request)
	require.NoError(s.t, err)
	require.NoError(s.t, response.Body.Close())
	return reused
}

// TestWatchLimits: beyond a limit the answer is 429. A watch that ends makes room for another.
func TestWatchLimits(t *testing.T) {
	if testing.Short() {
		t.Skip("many watches")
	}
	overEach(t, watchLimits)
}

func watchLimits(t *testing.T, c cell) {
	tokens := filepath.Join(t.TempDir(), "tokens")
	require.NoError(t, os.WriteFile(tokens, []byte("ann-token,ann,1,system:masters\nbob-token,bob,2,system:masters\n"), 0o600))
	s := c.serve(t, func(c *watcher.Config) {
		c.Authentication.TokenFile = tokens
		c.Watches.Process, c.Watches.User = 3, 2
	})
	watch := func(token string) (*http.Response, context.CancelFunc) {
		ctx, cancel := context.WithCancel(t.Context())
		request, err := http.NewRequestWithContext(ctx, "GET", s.url+configMaps+"?watch=1", nil)
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := s.client.Do(request)
		require.NoError(t, err)
		t.Cleanup(func() { cancel(); _ = response.Body.Close() })
		return response, cancel
	}
	admitted := func(token string) context.CancelFunc {
		response, cancel := watch(token)
		require.Equal(t, 200, response.StatusCode)
		return cancel
	}
	refused := func(token, why string) {
		response, _ := watch(token)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.Equal(t, 429, response.StatusCode, "%s", body)
		require.Equal(t, "5", response.Header.Get("Retry-After"))
		require.Contains(t, string(body), why)
		require.Contains(t, string(body), "TooManyRequests")
	}
	end := admitted("ann-token")
	admitted("ann-token")
	refused("ann-token", "user 'ann' has watches that count as 2 ")
	admitted("bob-token")
	refused("bob-token", "this process serves 3 watches")
	end()
	eventlogtest.Eventually(t, "there is room again", func() bool {
		response, _ := watch("bob-token")
		return response.StatusCode == 200
	})
}

// TestSlowClient: a client that does not read is cut off, and no other client waits for it. With HTTP/2 all watches
// share one connection.
func TestSlowClient(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for slow clients")
	}
	overEach(t, slowClient)
}

func slowClient(t *testing.T, c cell) {
	s := c.start(t, impatient)
	transport := newNarrow(s)
	transport.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 512 << 10}
	s.client = &http.Client{Transport: transport}
	start := "resourceVersion=" + s.get(configMaps).revision()
	slow, fast := s.watch(start), s.watch(start)
	s.open(429, configMaps+"?watch=1", "application/json")
	received := make(chan struct{})
	go func() {
		defer close(received)
		var e object
		for range 1 + changes {
			if !assert.NoError(t, fast.events.Decode(&e)) {
				return
			}
		}
	}()
	s.change()
	<-received
	s.eventuallyAdmitted("the slow client is cut off")
	var last object
	for slow.events.Decode(&last) == nil { // events that were sent before the cut
	}
	require.NotEqual(t, "", last.revision())
	fast.expect(added(s.create("b", "")))
}

// TestStalledConnection: a client that reads nothing from its HTTP/2 connection is cut off with all of its streams.
// Ending the streams one by one would fail, since each end would wait behind data that cannot be written.
func TestStalledConnection(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for a stalled client")
	}
	t.Parallel()
	c := newCell(t)
	c.protocol = http2
	s := c.start(t, impatient)
	front, stop, ended := s.behindListener()
	transport := newNarrow(s)
	stalled := &server{t: t, cell: c, url: front.url, client: &http.Client{Transport: transport}}
	start := "resourceVersion=" + s.get(configMaps).revision()
	stalled.watch(start)
	stalled.watch(start)
	close(transport.stalled)
	s.open(429, configMaps+"?watch=1", "application/json")
	s.change()
	s.eventuallyAdmitted("the stalled client is cut off")
	stop()
	require.NoError(t, <-ended)
}

// patience is long enough for a client that reads, even while the machine is busy.
const patience = 2 * time.Second

// impatient allows two watches, and little patience with their clients.
func impatient(c *watcher.Config) { c.Watches.Patience, c.Watches.Process = patience, 2 }

const changes = 16

// change creates an object and makes large changes to it: more than a narrow connection holds.
func (s *server) change() {
	s.t.Helper()
	s.create("a", "")
	for i := range changes {
		s.patch(configMaps+"/a", fmt.Sprintf(`{"data":{"k":"%d%s"}}`, i, strings.Repeat("x", 400<<10)))
	}
}

// eventuallyAdmitted waits until there is room for a watch.
func (s *server) eventuallyAdmitted(what string) {
	s.t.Helper()
	eventlogtest.Eventually(s.t, what, func() bool {
		response, err := s.client.Get(s.url + configMaps + "?watch=1&timeoutSeconds=1")
		require.NoError(s.t, err)
		require.NoError(s.t, response.Body.Close())
		return response.StatusCode == 200
	})
}

// narrow is a transport whose connections buffer little data that has not been read. Once stalled is closed, the
// connections read nothing.
type narrow struct {
	*http.Transport
	stalled chan struct{}
}

func newNarrow(s *server) *narrow {
	n := &narrow{Transport: s.client.Transport.(*http.Transport).Clone(), stalled: make(chan struct{})}
	n.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		closed := make(chan struct{})
		return &narrowConn{conn, n.stalled, closed, sync.OnceFunc(func() { close(closed) })}, conn.(*net.TCPConn).SetReadBuffer(64 << 10)
	}
	s.t.Cleanup(n.CloseIdleConnections)
	return n
}

type narrowConn struct {
	net.Conn
	stalled, closed chan struct{}
	end             func()
}

func (c *narrowConn) Read(p []byte) (int, error) {
	select {
	case <-c.stalled:
		<-c.closed
	default:
	}
	return c.Conn.Read(p)
}

func (c *narrowConn) Close() error {
	c.end()
	return c.Conn.Close()
}

// TestManyClientsInOrder: many clients, some of them slow, receive small and large changes, each once and in order,
// whether the changes bypass upstream's handlers or go through them.
func TestManyClientsInOrder(t *testing.T) { overEach(t, manyClientsInOrder) }

func manyClientsInOrder(t *testing.T, c cell) {
	s := c.start(t)
	s.client = &http.Client{Transport: newNarrow(s)}
	const clients = 12
	count := 400 / min(4, eventlogtest.Slowdown)
	from := s.create("a", "").revision()
	written := make([]chan struct{}, count)
	for i := range written {
		written[i] = make(chan struct{})
	}
	var reading sync.WaitGroup
	for n := range clients {
		w, rng := s.watch("resourceVersion="+from), rand.New(rand.NewPCG(uint64(n), 1))
		reading.Go(func() {
			for i := range count {
				if n%2 == 0 && rng.IntN(40) == 0 { // falls behind
					<-written[min(i+rng.IntN(150), count-1)]
				}
				var e object
				if !assert.NoError(t, w.events.Decode(&e), "client %d, change %d", n, i) {
					return
				}
				got, _, _ := strings.Cut(fmt.Sprint(e.field("object.data.k")), " ")
				if !assert.Equal(t, strconv.Itoa(i), got, "client %d", n) {
					return
				}
			}
		})
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range count {
		s.patch(configMaps+"/a", fmt.Sprintf(`{"data":{"k":"%d %s"}}`, i, strings.Repeat("x", rng.IntN(80<<10))))
		close(written[i])
	}
	reading.Wait()
}
