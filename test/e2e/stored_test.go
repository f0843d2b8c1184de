package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/logplane/logplane/test/product"
)

const storedCells = "testdata/cells"

var storeAs = flag.String("store", "", "write testdata/cells/NAME.tar.gz: a cell made by this binary, for all later ones to open")

// sightings has what a client was told of a cell when it was stored: answers by their paths.
type sightings map[string]json.RawMessage

// TestStoredCells: this version opens the cells that earlier versions have stored, each a log and a bucket. It answers
// as they did about the present and about the past, writes, and leaves a clean cell. A cell of every released format
// and minor version of Kubernetes belongs here: 'go test ./test/e2e -run StoredCells -store NAME'.
func TestStoredCells(t *testing.T) {
	if *storeAs != "" {
		storeCell(t, filepath.Join(storedCells, *storeAs+".tar.gz"))
	}
	files, err := filepath.Glob(filepath.Join(storedCells, "*.tar.gz"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".tar.gz"), func(t *testing.T) {
			folder := t.TempDir()
			out, err := exec.Command("tar", "-xzf", file, "-C", folder).CombinedOutput()
			require.NoError(t, err, string(out))
			text, err := os.ReadFile(filepath.Join(folder, "seen.json"))
			require.NoError(t, err)
			var seen sightings
			require.NoError(t, json.Unmarshal(text, &seen))
			require.NotEmpty(t, seen)

			// Expiry goes by the log's time, so the past of an old cell stays only with long periods.
			const ever = "876000h"
			server := product.Dev(t, folder, "--retention", ever, "--history", ever, "--history-rules", "none")
			_, client, _ := clientsFor(t, server.URL())
			for path, want := range seen {
				answer, err := client.RESTClient().Get().AbsPath(path).DoRaw(t.Context())
				require.NoError(t, err, path)
				require.JSONEq(t, string(want), string(answer), path)
			}
			web, err := client.AppsV1().Deployments("stored").Get(t.Context(), "web", metav1.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, "web:1", web.Spec.Template.Spec.Containers[0].Image)
			_, err = client.AppsV1().Deployments("stored").Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"replicas":5}}`), metav1.PatchOptions{})
			require.NoError(t, err)
			deleteNamespace(t, client, "stored")
			server.Stop()
			checked := product.Run(t, "inspect", "fsck", "--data", folder)
			<-checked.Exited
			require.Contains(t, checked.Output(), "clean")
		})
	}
}

// deleteNamespace deletes a namespace, and waits until it is gone.
func deleteNamespace(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	watch, err := client.CoreV1().Namespaces().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	require.NoError(t, err)
	defer watch.Stop()
	require.NoError(t, client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}))
	for event := range watch.ResultChan() {
		if event.Type == "DELETED" {
			return
		}
	}
	t.Fatal("the namespace stays")
}

// storeCell makes a cell with objects of all encodings, with a past, with segments, and with a tail, and stores it.
func storeCell(t *testing.T, file string) {
	folder := t.TempDir()
	server := product.Dev(t, folder)
	_, client, untyped := clientsFor(t, server.URL())
	ctx := t.Context()
	_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "stored"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	configs := client.CoreV1().ConfigMaps("stored")
	first, err := configs.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "changed"}, Data: map[string]string{"text": "größer", "n": "1"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = configs.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "deleted"}, BinaryData: map[string][]byte{"bytes": {0, 1, 0xff}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	for i := range 24 { // more than a root holds
		_, err = configs.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("large-", i)}, Data: map[string]string{"text": strings.Repeat("log ", 100_000)}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	labels := map[string]string{"app": "web"}
	_, err = client.AppsV1().Deployments("stored").Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web:1"}}}},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = client.CoreV1().Secrets("stored").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret"}, Data: map[string][]byte{"key": []byte("value")}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = client.RbacV1().Roles("stored").Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	defineWidgets(t, untyped)
	_, err = untyped.Resource(widgets).Namespace("stored").Create(ctx, widget("w", map[string]any{"size": int64(1) << 60, "list": []any{1.5, "a", nil, true}}), metav1.CreateOptions{})
	require.NoError(t, err)

	root := filepath.Join(folder, "bucket", "logplane", "root")
	segments := filepath.Join(folder, "bucket", "logplane", "seg")
	require.Eventually(t, func() bool { _, err := os.Stat(segments); return err == nil }, startTimeout, 50*time.Millisecond)
	committed, err := os.ReadFile(root)
	require.NoError(t, err)
	_, err = configs.Patch(ctx, "changed", types.MergePatchType, []byte(`{"data":{"n":"2"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.NoError(t, configs.Delete(ctx, "deleted", metav1.DeleteOptions{}))
	seen := sightings{}
	const base = "/api/v1/namespaces/stored"
	for _, path := range []string{
		base + "/configmaps/changed", base + "/configmaps/large-7", base + "/secrets/secret", "/apis/rbac.authorization.k8s.io/v1/namespaces/stored/roles/reader",
		"/apis/example.com/v1/namespaces/stored/widgets/w", "/at/" + first.ResourceVersion + base + "/configmaps/changed",
	} {
		answer, err := client.RESTClient().Get().AbsPath(path).DoRaw(ctx)
		require.NoError(t, err, path)
		seen[path] = answer
	}
	require.Eventually(t, func() bool { // until the root has the changes
		now, err := os.ReadFile(root)
		return err == nil && string(now) != string(committed)
	}, startTimeout, 50*time.Millisecond)
	_, err = configs.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "tail"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	tail, err := client.RESTClient().Get().AbsPath(base + "/configmaps/tail").DoRaw(ctx)
	require.NoError(t, err)
	seen[base+"/configmaps/tail"] = tail
	server.Kill() // so that the log has events that the bucket lacks
	text, err := json.MarshalIndent(seen, "", " ")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "seen.json"), text, 0o600))
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	out, err := exec.Command("tar", "-czf", file, "-C", folder, "bucket", "log", "seen.json").CombinedOutput()
	require.NoError(t, err, string(out))
}
