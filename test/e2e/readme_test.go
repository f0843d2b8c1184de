package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/test/product"
)

// TestReadmeTour executes the commands of the README's ten minutes with kubectl, in order. In between, the reader stops
// and starts 'make dev' by hand; shell functions do that here.
func TestReadmeTour(t *testing.T) {
	if testing.Short() {
		t.Skip("runs docs/start.md")
	}
	t.Parallel()
	blocks := product.Snippets(t, "docs/start.md")
	require.Len(t, blocks["sh tour"], 3)
	require.Len(t, blocks["sh tour restarted"], 1)
	require.Len(t, blocks["sh tour stopped"], 1)
	require.Len(t, blocks["sh tour undone"], 1)
	said := tour(t, strings.Join(blocks["sh tour"][:2], "\n"), "await_commit",
		blocks["sh tour"][2], "wait $SERVER || true",
		"start", blocks["sh tour restarted"][0],
		"kill $SERVER; wait $SERVER", blocks["sh tour stopped"][0],
		"start", blocks["sh tour undone"][0])
	for _, expected := range []string{
		"namespace/tour created", "configmap/greeting patched", "/.logplane/bucket/logplane/root",
		`"type":"MODIFIED"`, `"text":"before the kill"`, `"applied": "`,
		"modified", "added", "main/configmaps/tour/greeting",
	} {
		require.Contains(t, said, expected)
	}
	require.Regexp(t, "configmaps/greeting was reverted, revision [0-9]+\nhello again", said)
}

// TestHistoryTour executes every command of docs/history.md, and the README's commands about the past, in order.
func TestHistoryTour(t *testing.T) {
	if testing.Short() {
		t.Skip("runs all of docs/history.md")
	}
	t.Parallel()
	start, history := product.Snippets(t, "docs/start.md"), product.Snippets(t, "docs/history.md")
	require.Len(t, start["sh past"], 1)
	require.NotEmpty(t, history["sh history"])
	said := tour(t, "kubectl create namespace tour; kubectl create configmap greeting --namespace tour --from-literal=text=hello",
		strings.Join(history["sh history"], "\n"),
		"until kubectl get --raw /at/10s/api >/dev/null 2>&1; do kill -0 $SERVER; done", start["sh past"][0])
	for _, expected := range []string{
		"spec.template.spec.containers[0].image", "data.coffee", `"type":"MODIFIED"`, "deployment.apps/web   0/2", "manager: kubectl-patch",
		`"coffee":"40"`, "configmaps/greeting",
	} {
		require.Contains(t, said, expected)
	}
}

// TestBranchesTour executes every command of docs/branches.md, in order.
func TestBranchesTour(t *testing.T) {
	if testing.Short() {
		t.Skip("runs all of docs/branches.md")
	}
	t.Parallel()
	blocks := product.Snippets(t, "docs/branches.md")["sh branches"]
	require.Len(t, blocks, 6)
	said := tour(t, "PATH=$PWD/bin:$PATH", strings.Join(blocks[:5], "\n"), "echo; echo then", blocks[5])
	for _, expected := range []string{"cluster 'trial' was created", "deployment.apps/web", "note", `namespace "shop" deleted`, "configmap/note created", "  second", "blank"} {
		require.Contains(t, said, expected)
	}
	require.Contains(t, said, "4cluster 'second' was created", "it begins before the change")
	_, end, _ := strings.Cut(said, "\nthen\n")
	require.Regexp(t, "4$", end, "a branch outlives its source")
}

// tour starts a server with a home folder of its own, runs the commands in that folder, and returns their output.
func tour(t *testing.T, commands ...string) string {
	home := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(home, "bin"), 0o755))
	for _, name := range []string{"logplane", "kubectl-logplane"} {
		require.NoError(t, os.Symlink(product.Logplane(t), filepath.Join(home, "bin", name)))
	}
	shell := exec.Command("bash", "-euo", "pipefail", "-c", tourShell+"start\n"+strings.Join(commands, "\n"))
	shell.Dir = home
	shell.Env = append(os.Environ(), "HOME="+home, "KUBECONFIG="+home+"/.logplane/kubeconfig",
		"PATH="+filepath.Join(home, "bin")+":"+filepath.Dir(product.Binary(t, "KUBECTL", "kubectl"))+":"+os.Getenv("PATH"))
	var out bytes.Buffer
	shell.Stdout, shell.Stderr = &out, &out
	err := shell.Run()
	t.Log(out.String())
	require.NoError(t, err)
	return out.String()
}

// tourShell: start runs a server, on the same port each time, and waits until it is ready. await_commit waits until the
// bucket has a root; a human reader is slow enough not to need that.
const tourShell = `
ADDRESS=127.0.0.1:0
start() {
  bin/logplane dev --listen $ADDRESS >> dev.out 2>&1 &
  SERVER=$!
  until kubectl get --raw /readyz >/dev/null 2>&1; do kill -0 $SERVER; done
  ADDRESS=$(sed -n 's|.*server: http://||p' ~/.logplane/kubeconfig)
}
await_commit() { until [ -e ~/.logplane/bucket/logplane/root ]; do kill -0 $SERVER; done; }
trap 'kill -9 $SERVER 2>/dev/null || true' EXIT
`

// TestReadmeCommands: the commands that a newcomer copies are make targets.
func TestReadmeCommands(t *testing.T) {
	blocks := slices.Concat(product.Snippets(t, "README.md")["sh"], product.Snippets(t, "docs/start.md")["sh"])
	var makefile strings.Builder
	for _, name := range []string{"Makefile", "localstack/localstack.mk"} {
		text, err := os.ReadFile(filepath.Join("../..", name))
		require.NoError(t, err)
		makefile.Write(text)
	}
	for _, target := range regexp.MustCompile(`make ([a-z-]+)`).FindAllStringSubmatch(strings.Join(blocks, "\n"), -1) {
		require.Regexp(t, `(?m)^`+target[1]+`:`, makefile.String())
	}
}
