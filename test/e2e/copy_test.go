package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

// TestRestoreWithoutTheLog: the log and its servers are lost, and then the bucket becomes read-only. As
// docs/run/copy.md says, a new cell is made from the bucket, with a new log. The new cell has all committed objects.
// Its revisions are above every revision that was ever seen, and a request for an old revision gets 410.
func TestRestoreWithoutTheLog(t *testing.T) {
	folder := t.TempDir()
	old, renewed := filepath.Join(folder, "old"), filepath.Join(folder, "new")
	lost := eventlogtest.Run(t, t.TempDir())
	where := product.Init(t, lost.ClientURL(), old)
	serve := func(where []string, command string) *product.Process {
		return product.Serve(t, append([]string{command, "--listen", "127.0.0.1:0", "--authorization-mode", "AlwaysAllow"}, where...)...)
	}
	run := func(args ...string) string {
		t.Helper()
		p := product.Run(t, args...)
		<-p.Exited
		require.Zero(t, p.Cmd.ProcessState.ExitCode(), p.Output())
		return p.Output()
	}
	config := func(i string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Data: map[string]string{"i": i}}
	}
	api := serve(where, "api")
	_, client, _ := clientsFor(t, api.URL())
	first, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), config("1"), metav1.CreateOptions{})
	require.NoError(t, err)
	run(append([]string{"projector", "--once"}, where...)...)
	// only the log has this update
	gone, err := client.CoreV1().ConfigMaps("default").Update(t.Context(), config("2"), metav1.UpdateOptions{})
	require.NoError(t, err)
	api.Stop()
	lost.Shutdown()

	out := run("restore", "--to", "0s", "--from", "file://"+old, "--into", "file://"+renewed)
	require.Contains(t, out, "give it a log that was never used, with 'logplane init --nats URL --stream logplane --bucket file://"+renewed+"'")
	require.NoError(t, os.RemoveAll(old))

	where = []string{"--nats", eventlogtest.Run(t, t.TempDir()).ClientURL(), "--bucket", "file://" + renewed}
	require.Regexp(t, "the cell was restored: its log begins at revision [0-9]+", run(append([]string{"init"}, where...)...))
	require.NotContains(t, run(append([]string{"init"}, where...)...), "was restored")
	_, client, _ = clientsFor(t, serve(where, "watcher").URL())
	found, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "c", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, first, found)
	_, client, _ = clientsFor(t, serve(where, "api").URL())
	updated, err := client.CoreV1().ConfigMaps("default").Update(t.Context(), config("3"), metav1.UpdateOptions{})
	require.NoError(t, err)
	before, err := strconv.Atoi(gone.ResourceVersion)
	require.NoError(t, err)
	after, err := strconv.Atoi(updated.ResourceVersion)
	require.NoError(t, err)
	require.Greater(t, after, before+1<<20)
	_, err = client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{
		ResourceVersion: first.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	require.ErrorContains(t, err, "is too old")
	run(append([]string{"projector", "--once"}, where...)...)
	require.Contains(t, run(append([]string{"inspect", "fsck"}, where...)...), "clean")
}
