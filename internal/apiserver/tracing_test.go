package apiserver

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/internal/kubestore/kubestoretest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/test/collector"
)

// If a client traces a request, the client's trace contains the server's work: the spans of the log and of upstream.
func TestTracing(t *testing.T) {
	got := collector.Run(t)
	s := newServer(t, func(c *Config) { c.TracingConfigFile = got.File })
	const trace = "0af7651916cd43dd8448eb211c80319c"
	require.Equal(t, http.StatusCreated, request{method: "POST", path: "/api/v1/namespaces/default/configmaps", body: `{"metadata":{"name":"c"}}`,
		header: http.Header{"Traceparent": {"00-" + trace + "-b7ad6b7169203331-01"}}}.do(t, s).code)
	require.Equal(t, http.StatusOK, request{method: "GET", path: "/api/v1/namespaces/default/configmaps/c"}.do(t, s).code) // a request that nobody traces
	s.StopTracing()

	traces := got.Traces()
	require.Len(t, traces, 1, "what nobody traces costs nothing")
	for _, name := range []string{"POST /api/v1/namespaces/{:namespace}/configmaps", "Create", "log head", "log append"} {
		require.Contains(t, traces[trace], name)
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
		_, err := New(Config{Cell: kubestoretest.Cell(t, projection.Config{}), TracingConfigFile: path})
		require.ErrorContains(t, err, says)
	}
}
