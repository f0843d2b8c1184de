package check

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

// TestAzure: the custom handler serves on the port that its host names, and the handler's settings are flags of the
// binary.
func TestAzure(t *testing.T) {
	var host struct {
		CustomHandler struct {
			Description struct {
				DefaultExecutablePath string
				Arguments             []string
			}
			Forwards bool `json:"enableForwardingHttpRequest"`
		}
		Extensions struct{ HTTP struct{ RoutePrefix *string } }
	}
	parse(t, "../azure/host.json", &host)
	handler := host.CustomHandler
	assert.True(t, handler.Forwards)
	assert.NotContains(t, strings.Join(handler.Description.Arguments, " "), "%", "the host has no value for it yet")
	require.NotNil(t, host.Extensions.HTTP.RoutePrefix)
	assert.Empty(t, *host.Extensions.HTTP.RoutePrefix, "it would be 'api' before every path")
	var function struct {
		Bindings []struct{ Type, Route string }
	}
	parse(t, "../azure/api/function.json", &function)
	assert.Equal(t, "httpTrigger", function.Bindings[0].Type)
	assert.Equal(t, "{*path}", function.Bindings[0].Route)
	settings := map[string]string{}
	parse(t, "../azure/settings.json", &settings)
	for name := range settings {
		if strings.HasPrefix(name, "LOGPLANE_") {
			assert.True(t, flags(t, "api")[flagOf(name)], "'logplane api' has no flag for %s", name)
		}
	}

	folder := t.TempDir()
	script, err := os.ReadFile(filepath.Join("../azure", handler.Description.DefaultExecutablePath))
	require.NoError(t, err)
	start := filepath.Join(folder, "start.sh")
	require.NoError(t, os.WriteFile(start, script, 0o700))
	require.NoError(t, os.Symlink(product.Logplane(t), filepath.Join(folder, "logplane")))
	tokens := filepath.Join(folder, "tokens.csv")
	require.NoError(t, os.WriteFile(tokens, []byte("0123456789abcdef0123456789abcdef,admin,0,system:masters\n"), 0o600))
	where := product.Init(t, eventlogtest.Run(t, t.TempDir()).ClientURL(), filepath.Join(folder, "bucket"))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	cmd := exec.CommandContext(t.Context(), start)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "FUNCTIONS_CUSTOMHANDLER_PORT=" + port, "LOGPLANE_NATS=" + where[1], "LOGPLANE_BUCKET=" + where[3],
		"LOGPLANE_TOKEN_AUTH_FILE=" + tokens, "LOGPLANE_WATCHER_URL=" + settings["LOGPLANE_WATCHER_URL"],
	}
	log, err := os.Create(filepath.Join(folder, "log"))
	require.NoError(t, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	served := func() bool {
		response, err := http.Get("http://127.0.0.1:" + port + "/readyz")
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	}
	if !assert.Eventually(t, served, 30*time.Second, 20*time.Millisecond) {
		said, _ := os.ReadFile(log.Name())
		t.Fatalf("%s", said)
	}
}

func parse(t *testing.T, name string, into any) {
	t.Helper()
	content, err := os.ReadFile(name)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(content, into), name)
}
