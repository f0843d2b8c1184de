package check

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

// TestPort: the container of Cloud Run and Knative serves on the port that the platform names. The container continues
// after it had no processor time between two requests, and exits with success when it is told to end.
func TestPort(t *testing.T) {
	folder := t.TempDir()
	where := product.Init(t, eventlogtest.Run(t, t.TempDir()).ClientURL(), filepath.Join(folder, "bucket"), "--credentials", folder)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "tokens.csv"), []byte("admin,admin,0,system:masters\n"), 0o600))
	_, port, _ := strings.Cut(ports(t, 1)[0], ":")
	t.Setenv("PORT", port)
	t.Setenv("LOGPLANE_NATS", where[1])
	t.Setenv("LOGPLANE_BUCKET", where[3])
	for name, id := range map[string]string{"cloudrun": "Service/logplane-api", "knative": "Service/logplane-api"} {
		args := rendered(t, name)[id].Spec.Template.Spec.Containers[0].Args
		for i, arg := range args {
			if flag, path, found := strings.Cut(arg, "=/files/"); found {
				args[i] = flag + "=" + filepath.Join(folder, filepath.Base(path))
			}
		}
		p := product.Serve(t, args...)
		assert.Equal(t, "[::]:"+port, p.Address, name)
		ask := func() int {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:"+port+"/api/v1/namespaces/default", http.NoBody)
			require.NoError(t, err)
			r.Header.Set("Authorization", "Bearer admin")
			answer, err := http.DefaultClient.Do(r)
			require.NoError(t, err)
			_ = answer.Body.Close()
			return answer.StatusCode
		}
		assert.Equal(t, http.StatusOK, ask(), name)
		require.NoError(t, p.Cmd.Process.Signal(syscall.SIGSTOP))
		require.NoError(t, p.Cmd.Process.Signal(syscall.SIGCONT))
		assert.Equal(t, http.StatusOK, ask(), name)
		p.Stop()
	}
}
