package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/collector"
	"github.com/logplane/logplane/test/product"
)

// TestTrace: one trace leads from a request, through the log, to another process's commit of the request's event.
func TestTrace(t *testing.T) {
	folder, collected := t.TempDir(), collector.Run(t)
	tokens := filepath.Join(folder, "tokens.csv")
	require.NoError(t, os.WriteFile(tokens, []byte("admin,admin,1,system:masters\n"), 0o600))
	where := product.Init(t, eventlogtest.Run(t, t.TempDir()).ClientURL(), filepath.Join(folder, "bucket"))
	traced := append(where, "--tracing-config-file", collected.File)
	api := product.Serve(t, slices.Concat([]string{"api", "--listen", "127.0.0.1:0", "--token-auth-file", tokens}, traced)...)

	const trace = "0af7651916cd43dd8448eb211c80319c"
	create := func(name, parent string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, api.URL()+"/api/v1/namespaces/default/configmaps", strings.NewReader(`{"metadata":{"name":"`+name+`"}}`))
		require.NoError(t, err)
		r.Header = http.Header{"Authorization": {"Bearer admin"}, "Content-Type": {"application/json"}, "Traceparent": {parent}}
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, http.StatusCreated, answer.StatusCode)
	}
	create("untraced", "")
	create("traced", "00-"+trace+"-b7ad6b7169203331-01")
	api.Stop()
	projector := product.Run(t, slices.Concat([]string{"projector", "--once"}, traced)...)
	<-projector.Exited
	require.Zero(t, projector.Cmd.ProcessState.ExitCode(), projector.Output())
	traces := collected.Traces()
	require.Len(t, traces, 1, "what nobody traces costs nothing")
	for _, name := range []string{"Create", "log append", "commit"} {
		require.Contains(t, traces[trace], name)
	}
}
