package watcher_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/kubestore/kubestoretest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/watcher"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // unless the command line sets it; these tests mostly wait
	flag.Parse()
	// Clients and processes are killed all the time in these tests, so log lines about that do not matter.
	level := slog.LevelError
	if testing.Verbose() {
		level = slog.LevelWarn
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})))
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

// The protocols that clients speak.
const (
	http1 = "HTTP/1.1"
	http2 = "HTTP/2.0" // over TLS; all streams to a server share one connection
)

// overEach runs a test over each protocol, on a cell of its own.
func overEach(t *testing.T, run func(t *testing.T, c cell)) {
	t.Parallel()
	for _, protocol := range []string{http1, http2} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			c := newCell(t)
			c.protocol = protocol
			run(t, c)
		})
	}
}

// cell is one log and one bucket, which any number of watchers may serve.
type cell struct {
	log    *eventlog.Log
	bucket bucket.Bucket
	// protocol of the cell's servers.
	protocol string
}

func newCell(t testing.TB) cell {
	t.Helper()
	return cell{eventlogtest.Log(t), memory.Strict(t), http1}
}

// server is one watcher, as in a process of its own: it shares nothing with another watcher of the cell.
type server struct {
	t          testing.TB
	cell       cell
	url        string
	client     *http.Client
	listener   *httptest.Server
	watcher    *watcher.Watcher
	projection *projection.Projection
	// stop ends the feed and every connection, as a kill would. It may be called twice.
	stop func()
}

// serve starts a watcher that runs until the test ends or its stop is called.
func (c cell) serve(t testing.TB, change ...func(*watcher.Config)) *server {
	t.Helper()
	config := watcher.Config{Config: apiserver.Config{Cell: kubestoretest.Cell(t, projection.Config{Log: c.log, Bucket: c.bucket})}}
	for _, f := range change {
		f(&config)
	}
	w, err := watcher.New(config)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	listener := httptest.NewUnstartedServer(w)
	listener.EnableHTTP2 = c.protocol == http2
	if listener.EnableHTTP2 {
		listener.StartTLS()
	} else {
		listener.Start()
	}
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	s := &server{t: t, url: listener.URL, client: listener.Client(), listener: listener, cell: c, watcher: w, projection: config.Cell.Projection}
	s.stop = sync.OnceFunc(func() {
		listener.CloseClientConnections()
		stop()
		assert.NoError(t, <-ended)
		listener.Close()
	})
	t.Cleanup(s.stop)
	return s
}

// newServer serves a new cell that has the namespace default.
func newServer(t testing.TB, change ...func(*watcher.Config)) *server {
	t.Helper()
	return newCell(t).start(t, change...)
}

// start does the work of serve, and creates the namespace default.
func (c cell) start(t testing.TB, change ...func(*watcher.Config)) *server {
	t.Helper()
	s := c.serve(t, change...)
	s.post("/api/v1/namespaces", `{"metadata":{"name":"default"}}`)
	return s
}

// trust is a client's TLS configuration for the server, without a choice of protocols.
func (s *server) trust() *tls.Config {
	return &tls.Config{RootCAs: s.client.Transport.(*http.Transport).TLSClientConfig.RootCAs}
}

const configMaps = "/api/v1/namespaces/default/configmaps"

// object is an object in JSON.
type object map[string]any

func (o object) field(path string) any {
	var value any = map[string]any(o)
	for name := range strings.SplitSeq(path, ".") {
		m, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = m[name]
	}
	return value
}

func (o object) revision() string { return fmt.Sprint(o.field("metadata.resourceVersion")) }

// call sends a request and requires its code.
func (s *server) call(code int, method, path, contentType, body string) object {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	require.NoError(s.t, err)
	request.Header.Set("Content-Type", contentType)
	response, err := s.client.Do(request)
	require.NoError(s.t, err)
	defer response.Body.Close()
	require.Equal(s.t, s.cell.protocol, response.Proto)
	data, err := io.ReadAll(response.Body)
	require.NoError(s.t, err)
	require.Equal(s.t, code, response.StatusCode, "%s %s: %s", method, path, data)
	var o object
	if len(bytes.TrimSpace(data)) > 0 {
		require.NoError(s.t, json.Unmarshal(data, &o), "%s", data)
	}
	return o
}

func (s *server) get(path string) object { s.t.Helper(); return s.call(200, "GET", path, "", "") }

func (s *server) post(path, body string) object {
	s.t.Helper()
	return s.call(201, "POST", path, "application/json", body)
}

func (s *server) patch(path, body string) object {
	s.t.Helper()
	return s.call(200, "PATCH", path, "application/merge-patch+json", body)
}

func (s *server) delete(path string) object {
	s.t.Helper()
	return s.call(200, "DELETE", path, "", "")
}

// create makes a ConfigMap in the namespace default, with the label unless it is empty.
func (s *server) create(name, label string) object {
	s.t.Helper()
	return s.post(configMaps, configMap(name, label))
}

func configMap(name, label string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"color":%q}},"data":{"k":"v"}}`, name, label)
}

func (s *server) paint(name, label string) object {
	s.t.Helper()
	return s.patch(configMaps+"/"+name, fmt.Sprintf(`{"metadata":{"labels":{"color":%q}}}`, label))
}

// stream is one watch.
type stream struct {
	t        testing.TB
	response *http.Response
	events   *json.Decoder
	cancel   context.CancelFunc
}

// open sends a watch and requires its code.
func (s *server) open(code int, path, accept string) *stream {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	s.t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, "GET", s.url+path, nil)
	require.NoError(s.t, err)
	request.Header.Set("Accept", accept)
	response, err := s.client.Do(request)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = response.Body.Close() })
	require.Equal(s.t, s.cell.protocol, response.Proto)
	if response.StatusCode != code {
		body, _ := io.ReadAll(response.Body)
		require.Equal(s.t, code, response.StatusCode, "%s: %s", path, body)
	}
	return &stream{s.t, response, json.NewDecoder(response.Body), cancel}
}

// watch opens a JSON watch of the namespace's ConfigMaps, or of another collection if query begins with '/'.
func (s *server) watch(query string) *stream {
	s.t.Helper()
	if !strings.HasPrefix(query, "/") {
		query = configMaps + "?watch=1&" + query
	}
	return s.open(200, query, "application/json")
}

func (w *stream) next() object {
	w.t.Helper()
	var e object
	require.NoError(w.t, w.events.Decode(&e))
	return e
}

// line is an event in a short form: 'ADDED name revision'.
func line(e object) string {
	if e["type"] == "ERROR" {
		return fmt.Sprintf("ERROR %v %v", e.field("object.code"), e.field("object.reason"))
	}
	name := e.field("object.metadata.name")
	if e["type"] == "BOOKMARK" {
		return fmt.Sprintf("BOOKMARK %v", e.field("object.metadata.resourceVersion"))
	}
	return fmt.Sprintf("%v %v %v", e["type"], name, e.field("object.metadata.resourceVersion"))
}

// expect requires the next events, in their short form.
func (w *stream) expect(lines ...string) {
	w.t.Helper()
	for _, want := range lines {
		require.Equal(w.t, want, line(w.next()))
	}
}

// expectEnd requires the stream to end cleanly, without another event.
func (w *stream) expectEnd() {
	w.t.Helper()
	var e object
	err := w.events.Decode(&e)
	require.True(w.t, errors.Is(err, io.EOF), "%v, %v", err, e)
}

func added(o object) string    { return event("ADDED", o, o) }
func modified(o object) string { return event("MODIFIED", o, o) }

// event is the short form of an event about an object, at the revision of another object.
func event(kind string, o, at object) string {
	return fmt.Sprintf("%s %v %s", kind, o.field("metadata.name"), at.revision())
}
