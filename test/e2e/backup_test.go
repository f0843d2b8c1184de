package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

// TestBackupOfServe: the commands of docs/run/copy.md back up a 'serve' cell while it serves, and restore it elsewhere.
// The administrator's kubeconfig stays valid. A copy of the whole folder, once it is fenced, gives no revision twice.
func TestBackupOfServe(t *testing.T) {
	page := product.Snippets(t, "docs/run/copy.md")
	require.Len(t, page["sh backup"], 1)
	require.Len(t, page["sh restored"], 1)
	restoring, serving, found := strings.Cut(page["sh restored"][0], "\nlogplane ")
	require.True(t, found)
	folder, address := t.TempDir(), eventlogtest.FreeAddress(t)
	in := func(data, text string) string {
		return strings.NewReplacer("/var/lib/logplane", filepath.Join(folder, data), "/backup", filepath.Join(folder, "backup"), "logplane.example.com:7373", address).Replace(text)
	}
	shell := func(commands string) {
		t.Helper()
		run := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", commands)
		run.Env = append(os.Environ(), "PATH="+filepath.Dir(product.Logplane(t))+":"+os.Getenv("PATH"))
		out, err := run.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	serve := func(data string) *product.Process {
		t.Helper()
		return product.Serve(t, append(strings.Fields(in(data, serving)), "--listen", address)...)
	}
	admin := func(data string) *rest.Config {
		t.Helper()
		config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(folder, data, "admin.kubeconfig"))
		require.NoError(t, err)
		return config
	}
	// create returns the revision of a new object, and 0 if the object is there already.
	create := func(data, name string) (revision int) {
		t.Helper()
		made, err := kubernetes.NewForConfigOrDie(admin(data)).CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return 0
		}
		require.NoError(t, err)
		revision, err = strconv.Atoi(made.ResourceVersion)
		require.NoError(t, err)
		return revision
	}

	first := serve("first")
	create("first", "kept")
	require.Eventually(t, func() bool {
		return strings.Contains(got(t, admin("first"), "/metrics"), "\nlogplane_projection_lag_revisions 0\n")
	}, startTimeout, 50*time.Millisecond)
	first.Stop()
	shell("cp -rp " + filepath.Join(folder, "first") + " " + filepath.Join(folder, "copy"))
	first = serve("first")
	shell(in("first", page["sh backup"][0]))
	lost := create("first", "lost")
	first.Kill()

	shell(in("second", restoring))
	second := serve("second")
	require.Zero(t, create("second", "kept"), "it was backed up")
	require.NotZero(t, create("second", "lost"), "it came after the backup")
	second.Stop()

	shell("logplane fence --yes --data " + filepath.Join(folder, "copy"))
	third := serve("copy")
	require.Zero(t, create("copy", "kept"))
	require.Greater(t, create("copy", "lost"), lost)
	third.Stop()
}
