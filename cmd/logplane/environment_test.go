package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestUnknownVariables: a variable that belongs to no flag is named once, with the variable that was perhaps meant.
// Flags of other commands and the variables that Kubernetes sets for Services are not mistakes.
func TestUnknownVariables(t *testing.T) {
	for name, value := range map[string]string{
		"LOGPLANE_LISTN": ":1", "LOGPLANE_NOTHING_LIKE_IT": "1",
		"LOGPLANE_WATCHER_URL": "https://w", "LOGPLANE_PASSWORD": "secret", "LOGPLANE_BINARY": "/logplane",
		"LOGPLANE_SERVICE_HOST": "10.0.0.1", "LOGPLANE_SERVICE_PORT": "7373", "LOGPLANE_SERVICE_PORT_HTTPS": "7373",
		"LOGPLANE_PORT": "tcp://10.0.0.1:7373", "LOGPLANE_PORT_7373_TCP": "tcp://10.0.0.1:7373",
		"LOGPLANE_PORT_7373_TCP_PROTO": "tcp", "LOGPLANE_PORT_7373_TCP_PORT": "7373", "LOGPLANE_PORT_7373_TCP_ADDR": "10.0.0.1",
		"LOGPLANE_API_SERVICE_HOST": "10.0.0.2", "LOGPLANE_API_SERVICE_PORT": "7373", "LOGPLANE_API_PORT": "tcp://10.0.0.2:7373",
		"LOGPLANE_API_PORT_7373_TCP_ADDR": "10.0.0.2",
	} {
		t.Setenv(name, value)
	}
	var said bytes.Buffer
	require.Zero(t, run(t.Context(), []string{"version"}, io.Discard, &said))
	require.Equal(t, 2, strings.Count(said.String(), "\n"), said.String())
	require.Contains(t, said.String(), "LOGPLANE_LISTN is ignored, because no flag has this name (did you mean 'LOGPLANE_LISTEN'?): ")
	require.Contains(t, said.String(), "LOGPLANE_NOTHING_LIKE_IT is ignored, because no flag has this name: ")
}
