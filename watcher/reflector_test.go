package watcher_test

import (
	"context"
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
	"github.com/logplane/logplane/watcher"
)

// TestReflectorsOverRestarts: client-go's own reflectors, on watchers that are replaced one after the other,
// list once, at the start.
func TestReflectorsOverRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts servers again and again")
	}
	overEach(t, reflectorsOverRestarts)
}

func reflectorsOverRestarts(t *testing.T, c cell) {
	quick := func(c *watcher.Config) { c.Drain = 100 * time.Millisecond }
	now := c.start(t, quick)
	var front atomic.Pointer[server] // where new connections go
	front.Store(now)
	var lists atomic.Int64
	source := cache.NewListWatchFromClient(clientOf(t, &front, &lists), "configmaps", "default", fields.Everything())
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
		old := now
		now = c.serve(t, quick)
		front.Store(now)
		old.watcher.Drain(t.Context())
		old.stop()
	}
	require.EqualValues(t, len(stores), lists.Load())
}

// clientOf returns a client all of whose new connections go to the server of the time. It counts the requests for
// a whole collection, as a list or as a stream.
func clientOf(t *testing.T, front *atomic.Pointer[server], lists *atomic.Int64) rest.Interface {
	t.Helper()
	s := front.Load()
	config := &rest.Config{Host: s.url, QPS: -1, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, front.Load().listener.Listener.Addr().String())
	}}
	if s.cell.protocol == http2 {
		config.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.listener.Certificate().Raw})
		config.ServerName = "example.com"
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if query := r.URL.Query(); query.Get("watch") == "" || query.Get("sendInitialEvents") != "" {
				lists.Add(1)
			}
			response, err := next.RoundTrip(r)
			if err == nil {
				assert.Equal(t, s.cell.protocol, response.Proto)
			}
			return response, err
		})
	})
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client.CoreV1().RESTClient()
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
