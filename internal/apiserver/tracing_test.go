package apiserver

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// spans is an OpenTelemetry collector that remembers the names of spans by their trace.
type spans struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	names map[string][]string
}

func (s *spans) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, resource := range r.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			for _, span := range scope.Spans {
				trace := fmt.Sprintf("%x", span.TraceId)
				s.names[trace] = append(s.names[trace], span.Name)
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// A client that traces a request finds what the server did for it in its own trace: the log's part and upstream's.
func TestTracing(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	got := &spans{names: map[string][]string{}}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, got)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	file := filepath.Join(t.TempDir(), "tracing.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: %s\n", listener.Addr()), 0o600))

	s := newServer(t, func(c *Config) { c.TracingConfigFile = file })
	const trace = "0af7651916cd43dd8448eb211c80319c"
	require.Equal(t, http.StatusCreated, request{method: "POST", path: "/api/v1/namespaces/default/configmaps", body: `{"metadata":{"name":"c"}}`,
		header: http.Header{"Traceparent": {"00-" + trace + "-b7ad6b7169203331-01"}}}.do(t, s).code)
	require.Equal(t, http.StatusOK, request{method: "GET", path: "/api/v1/namespaces/default/configmaps/c"}.do(t, s).code) // nobody traces it
	s.StopTracing()

	got.mu.Lock()
	defer got.mu.Unlock()
	require.Len(t, got.names, 1, "what nobody traces costs nothing")
	for _, name := range []string{"POST /api/v1/namespaces/{:namespace}/configmaps", "Create", "log head", "log append"} {
		require.Contains(t, got.names[trace], name)
	}
}

func TestTracingConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tracing.yaml")
	for content, says := range map[string]string{
		"":         "does not exist",
		"kind: No": "unable to decode",
		"apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nsamplingRatePerMillion: -1\n": "samplingRatePerMillion",
	} {
		if content != "" {
			require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		}
		path := file
		if content == "" {
			path += ".missing"
		}
		_, err := New(Config{Cell: newCell(t), TracingConfigFile: path})
		require.ErrorContains(t, err, says)
	}
}
