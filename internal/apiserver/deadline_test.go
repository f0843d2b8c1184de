package apiserver

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// lines is what was logged.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A client that goes away is no timeout, and is logged for debugging only. A deadline that passes is a timeout.
func TestClientGoesAway(t *testing.T) {
	var logged lines
	logger := slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelWarn}))
	klog.SetSlogLogger(logger)
	t.Cleanup(func() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) })
	s := newServer(t, func(c *Config) { c.Logger = logger })
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`})

	began, served := make(chan struct{}), make(chan struct{})
	listener := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(served)
		close(began)
		s.ServeHTTP(w, r)
	}))
	defer listener.Close()
	for _, sent := range []request{
		{method: "GET", path: configMaps + "?resourceVersion=1000"}, // it waits for its revision
		{method: "GET", path: configMaps + "/x?resourceVersion=1000"},
	} {
		began, served = make(chan struct{}), make(chan struct{})
		ctx, leave := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, sent.method, listener.URL+sent.path, nil)
		require.NoError(t, err)
		go func() {
			<-began
			leave()
		}()
		_, err = http.DefaultClient.Do(r)
		require.ErrorIs(t, err, context.Canceled)
		<-served
	}
	require.Empty(t, logged.String())

	// A handler that runs on after its deadline is logged.
	release := make(chan struct{})
	stubborn := s.withTimeout(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	ctx, cancel := context.WithTimeout(apirequest.WithRequestInfo(t.Context(), &apirequest.RequestInfo{Verb: "get"}), time.Millisecond)
	defer cancel()
	w := httptest.NewRecorder()
	stubborn.ServeHTTP(w, httptest.NewRequest("GET", "/", nil).WithContext(ctx))
	require.Equal(t, 504, w.Code)
	close(release)
	eventlogtest.Eventually(t, "the end of its handler is logged", func() bool { return strings.Contains(logged.String(), "Post-timeout activity") })
}
