package apiserver

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/kubestore/fanout"
)

// Rows 11 and 12, through all filters: list, then watch from the list's revision.
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

// drain ends all watches at once, like a watcher that stops.
func (s *Server) drain() {
	ends, ended := s.StopWatches()
	for _, end := range ends {
		end()
	}
	<-ended
}

// withFeed makes a server serve watches.
func withFeed(t testing.TB) func(*Config) {
	return func(c *Config) {
		c.Cell.Feed = fanout.NewFeed(c.Cell.Projection)
		runFeed(t, c.Cell.Feed)
	}
}

func runFeed(t testing.TB, feed *fanout.Feed) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- feed.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
}

// TestIdleWatchEndsWell: a watch ends cleanly even if it was idle for far longer than a client may take to receive an
// event.
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

// TestStartsOfWatches: only a bounded number of one user's watches start at once. A watch that has begun holds no seat,
// another user's watch does not wait, and no start holds a seat for long.
func TestStartsOfWatches(t *testing.T) {
	if testing.Short() {
		t.Skip("seats are held for a second")
	}
	s := newServer(t, withTokens(t), func(c *Config) { c.Cell.Feed = fanout.NewFeed(c.Cell.Projection) })
	listener := httptest.NewServer(s)
	t.Cleanup(listener.Close)
	begun := make(chan string, 100)
	watch := func(user string) {
		r, err := http.NewRequestWithContext(t.Context(), "GET", listener.URL+configMaps+"?watch=1", nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+user+"-token")
		go func() {
			response, err := http.DefaultClient.Do(r)
			if err != nil {
				return
			}
			defer response.Body.Close()
			begun <- user
			_, _ = io.Copy(io.Discard, response.Body)
		}()
	}
	// Without a feed no watch gets to its first event.
	share := 0
	t.Run("share", func(t *testing.T) { share = takeAll(t, s.gate.Starts, "cid") })
	for range 3 * share {
		watch("ann")
	}
	eventlogtest.Eventually(t, "ann's watches wait for seats", func() bool {
		held, waiting, _ := s.gate.Starts.Of("ann")
		return held == share && waiting > 0
	})
	watch("bob")
	eventlogtest.Eventually(t, "bob's does not", func() bool { held, _, _ := s.gate.Starts.Of("bob"); return held == 1 })
	for range 3*share + 1 { // each watch begins when an earlier start loses its seat
		<-begun
	}
	runFeed(t, s.config.Cell.Feed)
	eventlogtest.Eventually(t, "all have begun", func() bool { return unused(s.gate.Starts, "ann") && unused(s.gate.Starts, "bob") })
}

// TestWatchesOfLargeObjects: a watch holds only one event of a large object at a time. The test has such events in
// every form, at the start and later, also for kinds whose objects are decorated.
func TestWatchesOfLargeObjects(t *testing.T) {
	s := newServer(t, withFeed(t))
	listener := httptest.NewServer(s)
	t.Cleanup(listener.Close)
	s.must(t, 201, request{method: "POST", path: crdsPath, body: widgetCRD, contentType: "application/yaml"})
	const before, after = 20, 20
	large := strings.Repeat("x", 100<<10)
	write := func(path, rest string, n int) {
		body := fmt.Sprintf(`{"metadata":{"name":"o%02d","annotations":{"v":%q}}%s}`, n, large, rest)
		s.must(t, 201, request{method: "POST", path: path, body: body})
	}
	for path, rest := range map[string]string{
		"/api/v1/namespaces/default/services": `,"spec":{"clusterIP":"None"}`, configMaps: "",
		customs: `,"apiVersion":"example.com/v1","kind":"Widget","spec":{"size":1}`,
	} {
		for n := range before {
			write(path, rest, n)
		}
		var reading sync.WaitGroup
		for _, accept := range []string{
			"application/json", "application/json", "application/json", "application/vnd.kubernetes.protobuf,application/json",
			"application/json;as=Table;g=meta.k8s.io;v=v1", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
		} {
			r, err := http.NewRequestWithContext(t.Context(), "GET", listener.URL+path+"?watch=1&timeoutSeconds=30", nil)
			require.NoError(t, err)
			r.Header.Set("Accept", accept)
			response, err := http.DefaultClient.Do(r)
			require.NoError(t, err)
			require.Equal(t, 200, response.StatusCode)
			reading.Go(func() {
				defer response.Body.Close()
				events := bufio.NewReader(response.Body)
				for n := 0; n < before+after; {
					event, err := next(events, response.Header.Get("Content-Type"))
					if !assert.NoError(t, err, "%s as %s", path, accept) {
						return
					}
					if strings.Contains(event, large) { // otherwise the server itself has made the object
						assert.Contains(t, event, fmt.Sprintf("o%02d", n), "%s as %s", path, accept)
						n++
					}
				}
			})
		}
		for n := range after {
			write(path, rest, before+n)
		}
		reading.Wait()
	}
}

// next reads an event of a watch.
func next(events *bufio.Reader, contentType string) (string, error) {
	if strings.HasPrefix(contentType, "application/json") {
		return events.ReadString('\n')
	}
	var length [4]byte
	if _, err := io.ReadFull(events, length[:]); err != nil {
		return "", err
	}
	frame := make([]byte, binary.BigEndian.Uint32(length[:]))
	_, err := io.ReadFull(events, frame)
	return string(frame), err
}

// TestStartsOfCustomResources: a watch of custom resources, too, holds a seat while it reads its state, and gives the
// seat back while its client is slow.
func TestStartsOfCustomResources(t *testing.T) {
	s := newServer(t, withTokens(t), withFeed(t))
	listener := httptest.NewServer(s)
	t.Cleanup(listener.Close)
	ann := http.Header{"Authorization": {"Bearer ann-token"}}
	s.must(t, 201, request{method: "POST", path: crdsPath, body: widgetCRD, contentType: "application/yaml", header: ann})
	large := strings.Repeat("x", 250<<10)
	for n := range 80 { // more than the kernel buffers
		body := fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"o%02d","annotations":{"v":%q}}}`, n, large)
		s.must(t, 201, request{method: "POST", path: customs, body: body, header: ann})
	}
	r, err := http.NewRequestWithContext(t.Context(), "GET", listener.URL+customs+"?watch=1", nil)
	require.NoError(t, err)
	r.Header = ann
	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, 200, response.StatusCode)
	eventlogtest.Eventually(t, "it waits for its client", func() bool { _, _, away := s.gate.Starts.Of("ann"); return away == 1 })
	go func() { _, _ = io.Copy(io.Discard, response.Body) }()
	eventlogtest.Eventually(t, "it has started", func() bool { return unused(s.gate.Starts, "ann") })
}
