package apiserver

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/memory"
)

func TestGenerateName(t *testing.T) {
	s := newServer(t)
	seen := map[any]bool{}
	for range 20 {
		got := s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"generateName":"x-"}}`})
		name := fieldOf(got.object(t), "metadata.name")
		require.False(t, seen[name])
		seen[name] = true
	}
}

// A request whose deadline has passed is answered and writes nothing.
func TestTimeout(t *testing.T) {
	s := newServer(t)
	got := request{method: "POST", path: configMaps + "?timeout=1ns", body: `{"metadata":{"name":"x"}}`}.do(t, s)
	require.Equal(t, 504, got.code, got.body)
	require.Equal(t, "Timeout", fieldOf(got.object(t), "reason"))
	s.must(t, 404, request{method: "GET", path: configMaps + "/x"})
}

// Without the log, a request is refused with 503 and may be sent again. The process still reports that it is alive.
func TestLogUnreachable(t *testing.T) {
	conn := eventlogtest.Start(t)
	config := eventlog.Config{Conn: conn, Replicas: 1, Timeout: time.Second}
	require.NoError(t, eventlog.Create(t.Context(), config))
	log, err := eventlog.Open(t.Context(), config)
	require.NoError(t, err)
	p, err := projection.Open(projection.Config{Log: log, Bucket: memory.Strict(t)})
	require.NoError(t, err)
	s := newServer(t, func(c *Config) { c.Cell.Log, c.Cell.Projection = log, p })
	conn.Close()
	for _, r := range []request{{method: "GET", path: configMaps}, {method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`}, {method: "GET", path: "/apis"}} {
		got := s.must(t, 503, r)
		require.Equal(t, "ServiceUnavailable", fieldOf(got.object(t), "reason"))
		require.Equal(t, "1", got.header.Get("Retry-After"))
	}
	s.must(t, 500, request{method: "GET", path: "/readyz"})
	for _, path := range []string{"/livez", "/healthz", "/version", "/metrics"} {
		s.must(t, 200, request{method: "GET", path: path})
	}
}

// Upstream answers 500 to a `resourceVersion` that is not a number. Here the answer is 422.
func TestMalformedResourceVersion(t *testing.T) {
	s := newServer(t)
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`})
	for _, sent := range []request{
		{method: "PUT", path: configMaps + "/x", body: `{"metadata":{"name":"x","resourceVersion":"1x"}}`},
		{method: "PATCH", path: configMaps + "/x", body: `{"metadata":{"resourceVersion":"-1"}}`, contentType: "application/merge-patch+json"},
	} {
		status := s.must(t, 422, sent).object(t)
		require.Equal(t, "Invalid", status["reason"])
		cause := fieldOf(status, "details.causes").([]any)[0].(map[string]any)
		require.Equal(t, "metadata.resourceVersion", cause["field"])
	}
}

// Upstream also answers 500 if a Pod is bound to nothing. Here the answer is 400.
func TestBindingToNothing(t *testing.T) {
	s := newServer(t)
	s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces/default/pods", body: `{"metadata":{"name":"x"},"spec":{"containers":[{"name":"c","image":"i"}]}}`})
	for _, path := range []string{"pods/x/binding", "bindings"} {
		status := s.must(t, 400, request{method: "POST", path: "/api/v1/namespaces/default/" + path, body: `{"metadata":{"name":"x"},"target":{"kind":"Node"}}`}).object(t)
		require.Contains(t, status["message"], "target.name: Required value")
	}
}
