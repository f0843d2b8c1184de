package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/logplane/logplane/test/product"
)

// TestInMemoryIsIsolated: several 'dev --in-memory' run beside each other and beside the user's own data folder. They
// share nothing, and leave nothing behind but the kubeconfigs that they were asked for.
func TestInMemoryIsIsolated(t *testing.T) {
	home, temporary, files := t.TempDir(), t.TempDir(), t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("TMPDIR", temporary)
	require.NoError(t, os.Mkdir(filepath.Join(home, ".logplane"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(home, ".logplane", "kubeconfig"), []byte("the user's own"), 0o600))

	var servers []*product.Process
	var clients []*kubernetes.Clientset
	for _, arguments := range [][]string{{}, {"--secure"}, {"--secure"}} {
		file := filepath.Join(files, string(rune('a'+len(servers))))
		servers = append(servers, product.Serve(t, append([]string{"dev", "--in-memory", "--kubeconfig", file}, arguments...)...))
		to, err := clientcmd.BuildConfigFromFlags("", file)
		require.NoError(t, err)
		client, err := kubernetes.NewForConfig(to)
		require.NoError(t, err)
		clients = append(clients, client)
	}
	_, err := clients[0].CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	for _, other := range clients[1:] {
		_, err := other.CoreV1().ConfigMaps("default").Get(t.Context(), "mine", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
	}
	for _, server := range servers {
		server.Stop()
	}
	require.Empty(t, namesIn(t, temporary))
	require.Equal(t, []string{"a", "b", "c"}, namesIn(t, files))
	require.Equal(t, []string{"kubeconfig"}, namesIn(t, filepath.Join(home, ".logplane")))
	left, err := os.ReadFile(filepath.Join(home, ".logplane", "kubeconfig"))
	require.NoError(t, err)
	require.Equal(t, "the user's own", string(left))
}

// TestKubeconfigFile: --kubeconfig replaces an empty file and a kubeconfig of Logplane's, and nothing else.
func TestKubeconfigFile(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := filepath.Join(folder, "kubeconfig")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	first := product.Serve(t, "dev", "--in-memory", "--kubeconfig", file)
	first.Stop()
	second := product.Dev(t, filepath.Join(folder, "data"), "--kubeconfig", file)
	to, err := clientcmd.BuildConfigFromFlags("", file)
	require.NoError(t, err)
	require.Equal(t, second.URL(), to.Host)
	require.NoFileExists(t, kubeconfig(filepath.Join(folder, "data")))

	refuses(t, "stop what listens there, or give 127.0.0.1:0 for a free port", "dev", "--in-memory", "--listen", second.Address)
	config, err := clientcmd.LoadFromFile(file)
	require.NoError(t, err)
	config.Clusters["production"] = config.Clusters["logplane"]
	merged := filepath.Join(folder, "merged")
	require.NoError(t, clientcmd.WriteToFile(*config, merged))
	before, err := os.ReadFile(merged)
	require.NoError(t, err)
	refuses(t, "which Logplane has not written and so does not replace: name another file", "dev", "--in-memory", "--kubeconfig", merged)
	after, err := os.ReadFile(merged)
	require.NoError(t, err)
	require.Equal(t, string(before), string(after))
	refuses(t, "which is not a file: name a file", "dev", "--in-memory", "--kubeconfig", folder)
	refuses(t, "the folder does not exist: make it, or name another", "dev", "--in-memory", "--kubeconfig", filepath.Join(folder, "nowhere", "kubeconfig"))
	require.ElementsMatch(t, []string{"data", "kubeconfig", "merged"}, namesIn(t, folder))
}

// TestTestsPage runs the commands that docs/tests.md has for tests in any language.
func TestTestsPage(t *testing.T) {
	t.Parallel()
	blocks := product.Snippets(t, "docs/tests.md")["sh any"]
	require.Len(t, blocks, 1)
	shell := exec.Command("bash", "-euo", "pipefail", "-c", blocks[0]+"\nkubectl get namespaces; kill $!; wait $!")
	shell.Dir = t.TempDir()
	bin := t.TempDir()
	require.NoError(t, os.Symlink(product.Logplane(t), filepath.Join(bin, "logplane")))
	require.NoError(t, os.Symlink(product.Binary(t, "KUBECTL", "kubectl"), filepath.Join(bin, "kubectl")))
	shell.Env = append(os.Environ(), "TMPDIR="+shell.Dir, "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := shell.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "kube-system")
	require.Len(t, namesIn(t, shell.Dir), 1, "only the kubeconfig stays")
}

// refuses runs a command, which must end with 1 and a single line that has the message.
func refuses(t *testing.T, message string, args ...string) {
	t.Helper()
	said, code := logplane(t, args...)
	require.Equal(t, 1, code, said)
	require.Contains(t, said, message)
	require.Equal(t, 1, strings.Count(said, "\n"), said)
}

func namesIn(t *testing.T, folder string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}
