package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

// TestCellInTenCommands executes the commands with which docs/run/cell.md makes a cell. The nats-server runs in this
// process, the ports are replaced by free ones, and kubectl waits until the server listens.
func TestCellInTenCommands(t *testing.T) {
	if testing.Short() {
		t.Skip("many processes")
	}
	t.Parallel()
	commands := product.Snippets(t, "docs/run/cell.md")["sh cell"]
	require.Len(t, commands, 1)
	require.Equal(t, 10, strings.Count(commands[0], "\n"))
	home := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(home, "bin"), 0o755))
	require.NoError(t, os.Symlink(product.Logplane(t), filepath.Join(home, "bin/logplane")))
	script := strings.NewReplacer("127.0.0.1:7380", eventlogtest.FreeAddress(t), "127.0.0.1:7381", eventlogtest.FreeAddress(t)).Replace(commands[0])
	shell := exec.Command("bash", "-euo", "pipefail", "-c", `
trap 'kill $(jobs -p); wait' EXIT
nats-server() { grep -q 'sync_interval: always' $2; }
kubectl() { until command kubectl "$@"; do kill -0 $!; done; }
`+script)
	shell.Dir = home
	shell.Env = append(os.Environ(), "HOME="+home, "KUBECONFIG=", "LOGPLANE_NATS="+eventlogtest.Run(t, t.TempDir()).ClientURL(),
		"PATH="+filepath.Dir(product.Binary(t, "KUBECTL", "kubectl"))+":"+os.Getenv("PATH"))
	out, err := shell.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "the cell is ready. Each NATS server must have 'sync_interval: always'")
	require.Regexp(t, "kube-system +Active", string(out))
}

// TestInit: 'init' lists the parts that it made and the parts that already existed, and refuses to join a log to
// another cell's bucket.
func TestInit(t *testing.T) {
	folder := t.TempDir()
	nats := eventlogtest.Run(t, t.TempDir()).ClientURL()
	initialize := func(bucket string, code int) string {
		t.Helper()
		p := product.Run(t, "init", "--nats", nats, "--bucket", "file://"+filepath.Join(folder, bucket))
		<-p.Exited
		require.Equal(t, code, p.Cmd.ProcessState.ExitCode(), p.Output())
		return p.Output()
	}
	require.Contains(t, initialize("right", 0), "made a cell with the log 'logplane', below 'logplane' in 'file://"+folder+"/right'")
	require.Regexp(t, "found a cell with the log 'logplane', which holds revisions 1 to [0-9]+, below 'logplane'", initialize("right", 0))
	require.Regexp(t, "the log 'logplane' holds revisions 1 to [0-9]+ of a cell, and 'file://.*/wrong' has no cell .* give the --bucket of that cell", initialize("wrong", 1))
	require.NoFileExists(t, filepath.Join(folder, "wrong/logplane/root"))
}

// TestBootstrapElsewhere: the binary of a function says what is missing if no Lambda platform runs it.
func TestBootstrapElsewhere(t *testing.T) {
	bootstrap := filepath.Join(t.TempDir(), "bootstrap")
	require.NoError(t, os.Symlink(product.Logplane(t), bootstrap))
	out, err := exec.Command(bootstrap).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "AWS_LAMBDA_RUNTIME_API is not set")
}
