package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// snippets returns the README's fenced blocks by their info string.
func snippets(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	found := map[string][]string{}
	for _, block := range regexp.MustCompile("(?ms)^```([^\n]+)\n(.*?)^```$").FindAllSubmatch(text, -1) {
		found[string(block[1])] = append(found[string(block[1])], string(block[2]))
	}
	return found
}

// TestReadmeTour executes the README's ten minutes with kubectl, in its order. What the reader does by hand
// in between, stopping and starting 'make dev', the shell functions here do; its 'pkill' ends this server only.
func TestReadmeTour(t *testing.T) {
	t.Parallel()
	blocks := snippets(t)
	require.Len(t, blocks["sh tour"], 3)
	require.Len(t, blocks["sh tour restarted"], 1)
	require.Len(t, blocks["sh tour stopped"], 1)
	home := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(home, "bin"), 0o755))
	require.NoError(t, os.Symlink(binary(t, "LOGPLANE_BINARY", "logplane"), filepath.Join(home, "bin/logplane")))
	script := strings.Join([]string{
		tourShell, "start",
		strings.Join(blocks["sh tour"][:2], "\n"), "await_commit",
		blocks["sh tour"][2],
		"start", blocks["sh tour restarted"][0],
		"kill $SERVER; wait $SERVER", blocks["sh tour stopped"][0],
	}, "\n")
	tour := exec.Command("bash", "-euo", "pipefail", "-c", script)
	tour.Dir = home
	tour.Env = append(os.Environ(), "HOME="+home, "KUBECONFIG="+home+"/.logplane/kubeconfig",
		"PATH="+filepath.Dir(binary(t, "KUBECTL", "kubectl"))+":"+os.Getenv("PATH"))
	var out bytes.Buffer
	tour.Stdout, tour.Stderr = &out, &out
	err := tour.Run()
	t.Log(out.String())
	require.NoError(t, err)
	for _, expected := range []string{
		"namespace/tour created", "configmap/greeting patched", "/.logplane/bucket/logplane/root",
		`"type":"MODIFIED"`, `"text":"before the kill"`, `"applied": "`,
		"modified", "added", "main/configmaps/tour/greeting",
	} {
		require.Contains(t, out.String(), expected)
	}
}

// tourShell starts a server on the same port each time, and waits until it is ready. await_commit waits until
// the bucket has a root, which the reader's own pace does.
const tourShell = `
ADDRESS=127.0.0.1:0
start() {
  bin/logplane dev --listen $ADDRESS >> dev.out 2>&1 &
  SERVER=$!
  until kubectl get --raw /readyz >/dev/null 2>&1; do kill -0 $SERVER; done
  ADDRESS=$(sed -n 's|.*server: http://||p' ~/.logplane/kubeconfig)
}
pkill() { kill $1 $SERVER; wait $SERVER || true; }
await_commit() { until [ -e ~/.logplane/bucket/logplane/root ]; do kill -0 $SERVER; done; }
trap 'kill -9 $SERVER 2>/dev/null || true' EXIT
`

// TestReadmeCommands: the commands that a newcomer copies exist as make targets.
func TestReadmeCommands(t *testing.T) {
	blocks := snippets(t)
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	for _, target := range regexp.MustCompile(`make ([a-z-]+)`).FindAllStringSubmatch(strings.Join(blocks["sh"], "\n"), -1) {
		require.Regexp(t, `(?m)^`+target[1]+`:`, string(makefile))
	}
}

// TestReadmeSubscriber runs the README's subscriber, which is compiled here, against 'logplane dev', and shows
// that a subscriber can neither write to the log nor ask JetStream for it.
func TestReadmeSubscriber(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("subscriber_test.go")
	require.NoError(t, err)
	indented := regexp.MustCompile(`(?m)^(.+)$`).ReplaceAllString(strings.TrimSpace(snippets(t)["go subscriber"][0]), "\t$1")
	require.Contains(t, string(source), indented, "the README's subscriber is not the one compiled here")

	server := dev(t, t.TempDir(), "--in-memory", "--events-listen", "127.0.0.1:0")
	url := regexp.MustCompile(`nats://[0-9.:]+`).FindString(server.output())
	received := make(chan string, 1)
	conn, err := subscribe(url, func(line string) { received <- line })
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.Flush())
	_, typed, _ := clientsFor(t, server.url())
	_, err = typed.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tour"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	made, err := typed.CoreV1().ConfigMaps("tour").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "seen"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintln("dev.logplane.object.added", "/configmaps/tour/seen", "revision", made.ResourceVersion), <-received)

	refused := make(chan error, 2)
	conn.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err })
	require.NoError(t, conn.Publish("logplane.log.main.%core.configmaps.tour.forged", nil))
	require.ErrorIs(t, <-refused, nats.ErrPermissionViolation)
	require.NoError(t, conn.Publish("$JS.API.STREAM.INFO.logplane", nil))
	require.ErrorIs(t, <-refused, nats.ErrPermissionViolation)
}
