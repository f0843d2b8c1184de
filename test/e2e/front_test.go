package e2e

import (
	"bufio"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/test/product"
)

// TestFront: through the front, clients with a token need one address for all requests, and no redirect. A watch
// through the front shows writes through the front. The watch ends when the watcher drains, as without a front, and
// then the watcher ends, too. An api refuses a client without credentials.
func TestFront(t *testing.T) {
	t.Parallel()
	cell := product.RunCell(t, "")
	front, watcher := cell.Front()
	config := cell.Kubeconfig("admin")
	kubectl := func(args ...string) *exec.Cmd {
		return exec.CommandContext(t.Context(), product.Binary(t, "KUBECTL", "kubectl"), append([]string{"--kubeconfig", config, "--cache-dir", t.TempDir(), "-v=6"}, args...)...)
	}
	run := func(args ...string) string {
		t.Helper()
		out, err := kubectl(args...).CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	run("create", "namespace", "fronted")
	watching := kubectl("get", "configmaps", "--namespace", "fronted", "--watch", "--output-watch-events")
	out, err := watching.StdoutPipe()
	require.NoError(t, err)
	var said strings.Builder
	watching.Stderr = &said
	require.NoError(t, watching.Start())
	lines := bufio.NewScanner(out)
	event := func(kind, name string) {
		t.Helper()
		for lines.Scan() {
			if fields := strings.Fields(lines.Text()); fields[0] == kind && fields[1] == name {
				return
			}
		}
		t.Fatalf("the watch ended without %s of %s: %s", kind, name, said.String())
	}
	event("ADDED", "kube-root-ca.crt")
	run("create", "configmap", "x", "--namespace", "fronted", "--from-literal=a=b")
	event("ADDED", "x")
	run("delete", "configmap", "x", "--namespace", "fronted")
	event("DELETED", "x")
	run("api-resources")

	watcher.Stop()
	for lines.Scan() { // until kubectl ends, with its watch
	}
	require.NoError(t, watching.Wait(), said.String())
	require.NotContains(t, said.String(), `status="307`)
	require.Contains(t, said.String(), "https://"+front.Address+"/api/v1/namespaces/fronted/configmaps?")

	client, err := kubernetes.NewForConfig(cell.Admin())
	require.NoError(t, err)
	_, err = client.CoreV1().ConfigMaps("fronted").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "y"}}, metav1.CreateOptions{})
	require.NoError(t, err, "without a watcher")
	stranger, err := kubernetes.NewForConfig(rest.AnonymousClientConfig(cell.Admin()))
	require.NoError(t, err)
	_, err = stranger.CoreV1().ConfigMaps("fronted").Get(t.Context(), "y", metav1.GetOptions{})
	require.True(t, apierrors.IsUnauthorized(err), "%v", err)
}
