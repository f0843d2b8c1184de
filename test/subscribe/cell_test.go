// Package subscribe tests the module subscribe on a real cell. The module itself must not depend on Logplane.
package subscribe

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/apiserver/access"
	"github.com/logplane/logplane/internal/kubestore/kubestoretest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/subscribe"
	"github.com/logplane/logplane/watcher"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // connections break often in these tests
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

var configMaps = corev1.SchemeGroupVersion.WithResource("configmaps")

// cell is a cell, served by one process at a time.
type cell struct {
	t      testing.TB
	nats   *natsserver.Server
	conn   *nats.Conn
	log    *eventlog.Log
	bucket bucket.Bucket
	server
}

// server is a watcher that serves all requests, and a client that may do everything.
type server struct {
	projection *projection.Projection
	rest       *rest.Config
	client     *kubernetes.Clientset
	requests   *requests
	stop       func()
}

func newCell(t testing.TB) *cell {
	t.Helper()
	c := &cell{t: t, nats: eventlogtest.Run(t, t.TempDir()), bucket: memory.Strict(t)}
	c.conn = eventlogtest.Connect(t, c.nats)
	c.log = eventlogtest.Open(t, eventlog.Config{Conn: c.conn})
	c.serve()
	for _, name := range []string{"ours", "theirs"} {
		_, err := c.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	return c
}

// serve starts a new process, which has nothing in memory from earlier ones.
func (c *cell) serve() {
	c.t.Helper()
	cell := kubestoretest.Cell(c.t, projection.Config{Log: c.log, Bucket: c.bucket})
	w, err := watcher.New(watcher.Config{Config: apiserver.Config{Cell: cell, Authorization: access.Authorization{Mode: "RBAC"}}})
	require.NoError(c.t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	counted := &requests{}
	listener := httptest.NewServer(counted.count(w))
	config := &rest.Config{Host: listener.URL, QPS: -1}
	c.server = server{projection: cell.Projection, rest: config, client: kubernetes.NewForConfigOrDie(config), requests: counted}
	c.stop = sync.OnceFunc(func() {
		listener.CloseClientConnections()
		stop()
		assert.NoError(c.t, <-ended)
		listener.Close()
	})
	c.t.Cleanup(c.stop)
}

// requests counts the watches.
type requests struct {
	mu      sync.Mutex
	open    int // guarded by mu; open now
	watches int // guarded by mu; since the start
}

func (r *requests) count(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if request.URL.Query().Get("watch") == "" {
			h.ServeHTTP(w, request)
			return
		}
		r.add(1, 1)
		defer r.add(-1, 0)
		h.ServeHTTP(w, request)
	})
}

func (r *requests) add(open, watches int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open, r.watches = r.open+open, r.watches+watches
}

// begun returns how many watches were begun since the start.
func (r *requests) begun() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.watches
}

// unwatched waits until no watch is open.
func (c *cell) unwatched() {
	c.t.Helper()
	eventlogtest.Eventually(c.t, "no watch is open", func() bool {
		c.requests.mu.Lock()
		defer c.requests.mu.Unlock()
		return c.requests.open == 0
	})
}

// put writes a ConfigMap, and returns the line that a subscriber must get for that write.
func (c *cell) put(namespace, name, value string) string {
	c.t.Helper()
	ctx, maps := context.Background(), c.client.CoreV1().ConfigMaps(namespace)
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": value}}
	if old, err := maps.Get(ctx, name, metav1.GetOptions{}); err == nil {
		o.ResourceVersion = old.ResourceVersion
		o, err = maps.Update(ctx, o, metav1.UpdateOptions{})
		require.NoError(c.t, err)
		return told(watch.Modified, namespace, name, o.ResourceVersion)
	}
	o, err := maps.Create(ctx, o, metav1.CreateOptions{})
	require.NoError(c.t, err)
	return told(watch.Added, namespace, name, o.ResourceVersion)
}

// remove deletes a ConfigMap. No other client writes, so the head is the deletion's revision.
func (c *cell) remove(namespace, name string) string {
	c.t.Helper()
	require.NoError(c.t, c.client.CoreV1().ConfigMaps(namespace).Delete(context.Background(), name, metav1.DeleteOptions{}))
	return told(watch.Deleted, namespace, name, c.head())
}

func (c *cell) head() string {
	c.t.Helper()
	list, err := c.client.CoreV1().ConfigMaps("ours").List(context.Background(), metav1.ListOptions{Limit: 1})
	require.NoError(c.t, err)
	return list.ResourceVersion
}

func told(t watch.EventType, namespace, name, revision string) string {
	return fmt.Sprintf("%s %s/%s %s", t, namespace, name, revision)
}

// announce turns republishing on or off. Events that are stored while republishing is off are never announced, as if
// the server had died after it stored them.
func (c *cell) announce(on bool) {
	c.t.Helper()
	js, err := jetstream.New(c.conn)
	require.NoError(c.t, err)
	s, err := js.Stream(context.Background(), "logplane")
	require.NoError(c.t, err)
	config := s.CachedInfo().Config
	config.RePublish = nil
	if on {
		config.RePublish = &jetstream.RePublish{Source: "logplane.log.>", Destination: "logplane.events.>", HeadersOnly: true}
	}
	_, err = js.UpdateStream(context.Background(), config)
	require.NoError(c.t, err)
}

// subscriber is a running subscriber, and the events that its handler got.
type subscriber struct {
	t      testing.TB
	events chan subscribe.Event
	ended  chan error
	stop   func() error
}

// subscribe runs a subscriber to the ConfigMaps of the namespace 'ours' until the test ends or the subscriber's stop is
// called.
func (c *cell) subscribe(change ...func(*subscribe.Config)) *subscriber {
	c.t.Helper()
	config := subscribe.Config{Conn: c.conn, REST: c.rest, Resource: configMaps, Namespace: "ours", Linger: 3 * time.Second}
	for _, f := range change {
		f(&config)
	}
	s := &subscriber{t: c.t, events: make(chan subscribe.Event), ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		s.ended <- subscribe.Run(ctx, config, func(ctx context.Context, e subscribe.Event) error {
			select {
			case s.events <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		close(s.events)
	}()
	s.stop = sync.OnceValue(func() error {
		cancel()
		for range s.events { // the remaining events were not handled
		}
		return <-s.ended
	})
	c.t.Cleanup(func() { _ = s.stop() })
	return s
}

// next returns the next event.
func (s *subscriber) next() subscribe.Event {
	s.t.Helper()
	e, ok := <-s.events
	if !ok {
		s.t.Fatalf("the subscriber ended: %v", s.stop())
	}
	return e
}

// expect requires the next events, and returns the From of the last event.
func (s *subscriber) expect(lines ...string) (from string) {
	s.t.Helper()
	for _, line := range lines {
		e := s.next()
		require.Equal(s.t, line, told(e.Type, e.Namespace, e.Name, e.Revision))
		from = e.From
	}
	return from
}

// fails requires that the subscriber ends by itself, and returns its error.
func (s *subscriber) fails() error {
	s.t.Helper()
	e, ok := <-s.events
	require.False(s.t, ok, "%v", e)
	return s.stop()
}
