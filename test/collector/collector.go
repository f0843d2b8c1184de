// Package collector is an OpenTelemetry collector for tests.
package collector

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	otlp "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// Collector is an OpenTelemetry collector that remembers the names of spans, by trace.
type Collector struct {
	// File is a configuration file for --tracing-config-file that names this collector.
	File string

	otlp.UnimplementedTraceServiceServer
	mu    sync.Mutex
	names map[string][]string // guarded by mu
}

// Run runs a collector until the test ends.
func Run(t testing.TB) *Collector {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := &Collector{File: filepath.Join(t.TempDir(), "tracing.yaml"), names: map[string][]string{}}
	require.NoError(t, os.WriteFile(c.File, fmt.Appendf(nil, "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: %s\n", listener.Addr()), 0o600))
	server := grpc.NewServer()
	otlp.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return c
}

// Export implements the collector's interface, which receives spans.
func (c *Collector) Export(_ context.Context, r *otlp.ExportTraceServiceRequest) (*otlp.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			for _, span := range scope.Spans {
				trace := fmt.Sprintf("%x", span.TraceId)
				c.names[trace] = append(c.names[trace], span.Name)
			}
		}
	}
	return &otlp.ExportTraceServiceResponse{}, nil
}

// Traces returns the names of all spans that were received, by trace.
func (c *Collector) Traces() map[string][]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[string][]string, len(c.names))
	for trace, names := range c.names {
		all[trace] = slices.Clone(names)
	}
	return all
}
