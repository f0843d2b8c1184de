package watcher_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/serving"
	"github.com/logplane/logplane/watcher"
)

// TestDrain: a watcher that stops says so, sends new watches away, and ends each open one cleanly, with a
// bookmark that another watcher goes on from.
func TestDrain(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	one, two := c.serve(t, func(c *watcher.Config) { c.Drain = 200 * time.Millisecond }), c.serve(t)
	one.post("/api/v1/namespaces", `{"metadata":{"name":"default"}}`)
	start := "resourceVersion=" + one.get(configMaps).revision()
	var marked, plain []*stream
	for range 10 {
		w := one.watch(start + "&allowWatchBookmarks=true&labelSelector=color%3Dred")
		marked, plain = append(marked, w), append(plain, one.watch(start))
	}
	a := one.create("a", "blue")
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		one.watcher.Drain(context.Background())
	}()
	eventlogtest.Eventually(t, "the watcher is not ready", func() bool {
		response, err := http.Get(one.url + "/readyz")
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.StatusCode == http.StatusInternalServerError || response.StatusCode == http.StatusServiceUnavailable
	})
	refused := one.open(503, configMaps+"?watch=1", "application/json")
	require.Equal(t, "1", refused.response.Header.Get("Retry-After"))
	require.True(t, refused.response.Close)
	one.get(configMaps) // everything but watches is still served
	<-drained
	for _, w := range plain {
		w.expect(added(a))
		w.expectEnd()
	}
	var last string
	for _, w := range marked {
		e := w.next()
		require.Equal(t, "BOOKMARK", e["type"])
		last = fmt.Sprint(e.field("object.metadata.resourceVersion"))
		require.GreaterOrEqual(t, last, a.revision())
		w.expectEnd()
	}
	two.watch("resourceVersion=" + last).expect(added(two.create("b", "")))
}

// TestServeDrains: the listener's side: the last answers go out, connections close, and the server ends.
func TestServeDrains(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serving.Serve(ctx, listener, s.watcher, nil, s.watcher.Drain) }()
	front := &server{t: t, url: "http://" + listener.Addr().String()}
	w := front.watch("allowWatchBookmarks=true&resourceVersion=" + s.get(configMaps).revision())
	stop()
	require.Equal(t, "BOOKMARK", w.next()["type"])
	w.expectEnd()
	require.NoError(t, <-ended)
}

// TestWatchLimits: beyond a limit the answer is 429, and a watch that ends makes room.
func TestWatchLimits(t *testing.T) {
	t.Parallel()
	tokens := filepath.Join(t.TempDir(), "tokens")
	require.NoError(t, os.WriteFile(tokens, []byte("ann-token,ann,1,system:masters\nbob-token,bob,2,system:masters\n"), 0o600))
	s := newCell(t).serve(t, func(c *watcher.Config) {
		c.Authentication.TokenFile = tokens
		c.Watches.Process, c.Watches.User = 3, 2
	})
	watch := func(token string) (*http.Response, context.CancelFunc) {
		ctx, cancel := context.WithCancel(t.Context())
		request, err := http.NewRequestWithContext(ctx, "GET", s.url+configMaps+"?watch=1", nil)
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := http.DefaultClient.Do(request)
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
	refused("ann-token", "user 'ann' has 2 watches")
	admitted("bob-token")
	refused("bob-token", "this process serves 3 watches")
	end()
	eventlogtest.Eventually(t, "there is room again", func() bool {
		response, _ := watch("bob-token")
		return response.StatusCode == 200
	})
}

// TestSlowClient: a client that does not read is cut off, and nobody waits for it.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(c *watcher.Config) {
		c.Watches.Patience = 300 * time.Millisecond
		c.Watches.Process = 2
	})
	start := "resourceVersion=" + s.get(configMaps).revision()
	slow, fast := s.watch(start), s.watch(start)
	require.NotNil(t, slow.response)
	s.open(429, configMaps+"?watch=1", "application/json")
	const changes = 40
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
	s.create("a", "")
	for i := range changes { // 16 MB, far more than sockets hold
		s.patch(configMaps+"/a", fmt.Sprintf(`{"data":{"k":"%d%s"}}`, i, strings.Repeat("x", 400<<10)))
	}
	<-received
	eventlogtest.Eventually(t, "the slow client is cut off", func() bool {
		response, err := http.Get(s.url + configMaps + "?watch=1&timeoutSeconds=1")
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.StatusCode == 200
	})
	var last object
	for slow.events.Decode(&last) == nil { // what was sent before
	}
	require.NotEqual(t, "", last.revision())
}
