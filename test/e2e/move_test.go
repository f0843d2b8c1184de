package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

// TestMoveBucket: an operator moves a cell to another bucket as docs/run/copy.md says: stop the cell's processes, copy
// the objects, start the processes on the new bucket. Reads and watches continue at their earlier revisions, and the
// moved cell also has the changes that only the log had.
func TestMoveBucket(t *testing.T) {
	url := eventlogtest.Run(t, t.TempDir()).ClientURL()
	before, after := filepath.Join(t.TempDir(), "before"), filepath.Join(t.TempDir(), "after")
	where := product.Init(t, url, before)
	serve := func(command string) *product.Process {
		return product.Serve(t, append([]string{command, "--listen", "127.0.0.1:0", "--authorization-mode", "AlwaysAllow"}, where...)...)
	}
	config := func(i string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Data: map[string]string{"i": i}}
	}

	api := serve("api")
	_, client, _ := clientsFor(t, api.URL())
	first, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), config("1"), metav1.CreateOptions{})
	require.NoError(t, err)
	logplane(t, append([]string{"projector", "--once"}, where...)...)
	// only the log has this update
	_, err = client.CoreV1().ConfigMaps("default").Update(t.Context(), config("2"), metav1.UpdateOptions{})
	require.NoError(t, err)
	api.Stop()

	require.NoError(t, os.CopyFS(after, os.DirFS(before)))
	require.NoError(t, os.RemoveAll(before))
	where = []string{"--nats", url, "--bucket", "file://" + after}

	_, client, _ = clientsFor(t, serve("watcher").URL())
	watch, err := client.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: first.ResourceVersion})
	require.NoError(t, err)
	defer watch.Stop()
	require.Equal(t, "2", (<-watch.ResultChan()).Object.(*corev1.ConfigMap).Data["i"])
	_, client, _ = clientsFor(t, serve("api").URL())
	_, err = client.CoreV1().ConfigMaps("default").Update(t.Context(), config("3"), metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, "3", (<-watch.ResultChan()).Object.(*corev1.ConfigMap).Data["i"])
	old, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=c",
		ResourceVersion: first.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	require.NoError(t, err)
	require.Len(t, old.Items, 1)
	require.Equal(t, "1", old.Items[0].Data["i"])
	said, code := logplane(t, append([]string{"inspect", "fsck"}, where...)...)
	require.Zero(t, code, said)
}
