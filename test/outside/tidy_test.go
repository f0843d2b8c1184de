package outside

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTidy makes the module of a user who begins to use logplanetest: the module requires only Logplane. 'go mod tidy'
// then also resolves the imports of upstream's tests, and upstream's own modules require versions v0.0.0 of one
// another.
func TestTidy(t *testing.T) {
	checkout, err := filepath.Abs("../..")
	require.NoError(t, err)
	folder := t.TempDir()
	source, err := os.ReadFile("manager_test.go")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "manager_test.go"), source, 0o600))
	run := func(in string, arguments ...string) string {
		command := exec.CommandContext(t.Context(), "go", arguments...)
		command.Dir, command.Env = in, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
		out, err := command.CombinedOutput()
		require.NoError(t, err, "go %s: %s", strings.Join(arguments, " "), out)
		return string(out)
	}
	run(folder, "mod", "init", "example.com/controller")
	run(folder, "mod", "edit", "-require=github.com/logplane/logplane@v0.0.0",
		"-replace=github.com/logplane/logplane="+checkout, "-require=sigs.k8s.io/controller-runtime@"+strings.TrimSpace(run(".", "list", "-m", "-f", "{{.Version}}", "sigs.k8s.io/controller-runtime")))
	run(folder, "mod", "tidy")
	for _, module := range []string{"k8s.io/api", "k8s.io/client-go", "sigs.k8s.io/controller-runtime"} {
		require.Equal(t, run(".", "list", "-m", module), run(folder, "list", "-m", module),
			"the test of the manager runs with another version")
	}
}
