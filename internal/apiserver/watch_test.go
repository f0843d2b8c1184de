package apiserver

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/internal/kubestore"
)

// Rows 11 and 12, through the whole chain of filters: list, then watch from there.
func TestWatch(t *testing.T) {
	s := newServer(t, withFeed(t))
	listener := httptest.NewServer(s)
	t.Cleanup(listener.Close)
	revision := fieldOf(s.must(t, 200, request{method: "GET", path: configMaps}).object(t), "metadata.resourceVersion")
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`})
	for _, path := range []string{configMaps + "?watch=1&", "/api/v1/watch/namespaces/default/configmaps?"} {
		t.Run(path, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), "GET", fmt.Sprintf("%s%sresourceVersion=%v&timeoutSeconds=30", listener.URL, path, revision), nil)
			require.NoError(t, err)
			response, err := http.DefaultClient.Do(r)
			require.NoError(t, err)
			defer response.Body.Close()
			require.Equal(t, 200, response.StatusCode)
			line, err := bufio.NewReader(response.Body).ReadString('\n')
			require.NoError(t, err)
			var event map[string]any
			require.NoError(t, json.Unmarshal([]byte(line), &event))
			require.Equal(t, "ADDED", event["type"])
			require.Equal(t, "x", fieldOf(event, "object.metadata.name"))
		})
	}
	s.must(t, 404, request{method: "GET", path: "/apis/no.such.group/v1/things?watch=true"})
}

// withFeed lets a server serve watches.
func withFeed(t *testing.T) func(*Config) {
	return func(c *Config) {
		c.Cell.Feed = kubestore.NewFeed(c.Cell.Log, c.Cell.Projection)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- c.Cell.Feed.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			require.NoError(t, <-ended)
		})
	}
}

// TestIdleWatchEndsWell: a watch that was idle for far longer than a client may take to receive something still has a
// clean end.
func TestIdleWatchEndsWell(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits")
	}
	s := newServer(t, withFeed(t), func(c *Config) { c.Watches.Patience = 50 * time.Millisecond })
	revision := fieldOf(s.must(t, 200, request{method: "GET", path: configMaps}).object(t), "metadata.resourceVersion")
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`})
	for _, multiplexed := range []bool{false, true} {
		t.Run(fmt.Sprintf("multiplexed=%v", multiplexed), func(t *testing.T) {
			listener := httptest.NewUnstartedServer(s)
			listener.EnableHTTP2 = multiplexed
			listener.StartTLS()
			t.Cleanup(listener.Close)
			response, err := listener.Client().Get(fmt.Sprintf("%s%s?watch=1&resourceVersion=%v&timeoutSeconds=1", listener.URL, configMaps, revision))
			require.NoError(t, err)
			defer response.Body.Close()
			require.Equal(t, multiplexed, response.ProtoMajor == 2)
			events, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			require.Contains(t, string(events), `"ADDED"`)
		})
	}
}
