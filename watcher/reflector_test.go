package watcher_test

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/serving"
	"github.com/logplane/logplane/watcher"
)

// TestReflectorsOverRestarts: client-go's own reflectors list only once, at the start, while the watchers that they use
// are replaced one after the other.
func TestReflectorsOverRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts servers again and again")
	}
	overEach(t, reflectorsOverRestarts)
}

func reflectorsOverRestarts(t *testing.T, c cell) {
	quick := func(c *watcher.Config) { c.Spread = 100 * time.Millisecond }
	now := c.start(t, quick)
	var front atomic.Value // the address to which new connections go
	address, terminate := now.process()
	front.Store(address)
	var lists atomic.Int64
	source := cache.NewListWatchFromClient(now.reflected(&front, &lists), "configmaps", "default", fields.Everything())
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var stores []cache.Store
	for range 20 {
		store := cache.NewStore(cache.MetaNamespaceKeyFunc)
		stores = append(stores, store)
		reflector := cache.NewReflectorWithOptions(source, &corev1.ConfigMap{}, store, cache.ReflectorOptions{})
		running.Go(func() { reflector.RunWithContext(ctx) })
	}
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	for _, name := range []string{"a", "b", "c", "d"} {
		now.create(name, "")
		eventlogtest.Eventually(t, "every reflector has "+name, func() bool {
			for _, store := range stores {
				if _, found, err := store.GetByKey("default/" + name); err != nil || !found {
					return false
				}
			}
			return true
		})
		old, terminateOld := now, terminate
		now = c.serve(t, quick)
		address, terminate = now.process()
		front.Store(address)
		terminateOld()
		old.stop()
	}
	require.EqualValues(t, len(stores), lists.Load())
}

// process serves the watcher as its real process does. terminate ends the process as a signal would.
func (s *server) process() (address string, terminate func()) {
	s.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(s.t, err)
	var secure *tls.Config
	if s.cell.protocol == http2 {
		secure = &tls.Config{Certificates: s.listener.TLS.Certificates}
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- serving.Serve(ctx, listener, s.watcher, serving.Config{TLS: secure, Drain: s.watcher.Drain})
	}()
	terminate = sync.OnceFunc(func() {
		stop()
		assert.NoError(s.t, <-ended)
	})
	s.t.Cleanup(terminate)
	return listener.Addr().String(), terminate
}

// reflected returns a client. Each new connection of the client goes to the address that front has at the time. The
// client counts its requests for a whole collection, as a list or as a stream.
func (s *server) reflected(front *atomic.Value, lists *atomic.Int64) rest.Interface {
	s.t.Helper()
	config := &rest.Config{Host: s.url, QPS: -1, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, front.Load().(string))
	}}
	if s.cell.protocol == http2 {
		config.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.listener.Certificate().Raw})
		config.ServerName = "example.com"
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			query := r.URL.Query()
			if query.Get("watch") == "" || query.Get("sendInitialEvents") != "" {
				lists.Add(1)
			}
			response, err := next.RoundTrip(r)
			if err == nil {
				assert.Equal(s.t, s.cell.protocol, response.Proto)
			}
			return response, err
		})
	})
	client, err := kubernetes.NewForConfig(config)
	require.NoError(s.t, err)
	return client.CoreV1().RESTClient()
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
