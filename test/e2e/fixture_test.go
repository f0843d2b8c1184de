package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/test/product"
)

// TestFixture: 'fixture save' writes all acknowledged writes of a dev, running or killed. A dev in memory begins with
// them, and keeps revisions and uids.
func TestFixture(t *testing.T) {
	t.Parallel()
	folder, fixtures := t.TempDir(), t.TempDir()
	dev := product.Dev(t, folder)
	of := func(p *product.Process) *kubernetes.Clientset {
		clients, err := kubernetes.NewForConfig(&rest.Config{Host: p.URL()})
		require.NoError(t, err)
		return clients
	}
	create := func(name string) *corev1.ConfigMap {
		made, err := of(dev).CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		require.NoError(t, err)
		return made
	}
	save := func(name string, arguments ...string) (file string) {
		file = filepath.Join(fixtures, name)
		command := exec.Command(product.Logplane(t), append([]string{"fixture", "save", file}, arguments...)...)
		command.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig(folder))
		out, err := command.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Regexp(t, `^saved [0-9]+ objects as of revision [0-9]+ in '.*'\n$`, string(out))
		return file
	}
	create("gone")
	require.NoError(t, of(dev).CoreV1().ConfigMaps("default").Delete(t.Context(), "gone", metav1.DeleteOptions{}))
	one := create("one")
	running := save("running")
	save("running") // an idle cell has nothing to wait for
	two := create("two")
	dev.Kill()
	stopped := save("stopped", "--data", folder)

	for file, names := range map[string][]string{running: {"one"}, stopped: {"one", "two"}} {
		loaded := of(product.Serve(t, "dev", "--in-memory", "--fixture", file))
		for _, was := range []*corev1.ConfigMap{one, two} {
			is, err := loaded.CoreV1().ConfigMaps("default").Get(t.Context(), was.Name, metav1.GetOptions{})
			if was == two && len(names) == 1 {
				require.True(t, apierrors.IsNotFound(err), "%v", err)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, was, is)
		}
		_, err := loaded.CoreV1().ConfigMaps("default").Get(t.Context(), "gone", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
		later, err := loaded.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "later"}}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.Greater(t, revisionOf(t, later), revisionOf(t, two))
	}

	refuses(t, "give --in-memory too", "dev", "--data", folder, "--fixture", running)
	refuses(t, "is not a whole file of 'logplane fixture save'", "dev", "--in-memory", "--fixture", kubeconfig(folder))
	refuses(t, "no such file", "dev", "--in-memory", "--fixture", filepath.Join(folder, "nowhere"))
	refuses(t, "is not a data folder of 'logplane dev'", "fixture", "save", filepath.Join(fixtures, "none"), "--data", fixtures)
	memory := filepath.Join(folder, "memory")
	product.Serve(t, "dev", "--in-memory", "--kubeconfig", memory)
	refuses(t, "because it is in memory", "fixture", "save", filepath.Join(fixtures, "none"), "--kubeconfig", memory)
	require.ElementsMatch(t, []string{"running", "stopped"}, namesIn(t, fixtures))
}

func revisionOf(t *testing.T, object metav1.Object) int {
	t.Helper()
	n, err := strconv.Atoi(object.GetResourceVersion())
	require.NoError(t, err)
	return n
}
