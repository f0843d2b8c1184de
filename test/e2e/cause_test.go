package e2e

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

// TestHistoryNamesWhoDeletedTheNamespace: a person deletes a namespace. The history of its objects names that person as
// the user who deleted them, and an undo of all changes by that person restores the objects.
func TestHistoryNamesWhoDeletedTheNamespace(t *testing.T) {
	t.Parallel()
	server := product.Dev(t, t.TempDir(), "--in-memory")
	config, client, _ := clientsFor(t, server.URL())
	_, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	configs := client.CoreV1().ConfigMaps("shop")
	var last *corev1.ConfigMap
	for _, name := range []string{"prices", "child"} {
		made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"is": name}}
		if last != nil {
			made.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: last.Name, UID: last.UID}}
		}
		last, err = configs.Create(t.Context(), made, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	config.Impersonate = rest.ImpersonationConfig{UserName: alice, Groups: []string{"system:masters"}}
	person, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	require.NoError(t, person.CoreV1().Namespaces().Delete(t.Context(), "shop", metav1.DeleteOptions{}))
	eventlogtest.Eventually(t, "the namespace is gone", func() bool {
		_, err := client.CoreV1().Namespaces().Get(t.Context(), "shop", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})

	logplane := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(product.Logplane(t), append(args, "--server", server.URL(), "--namespace", "shop")...)
		cmd.Env = append(os.Environ(), "KUBECONFIG=", "HOME="+t.TempDir())
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	for _, name := range []string{"prices", "child"} {
		require.Regexp(t, `system:logplane:lifecycle as system:serviceaccount:kube-system:\S+ because of system:admin as alice at [0-9]+ .* delete`,
			logplane("history", "configmap/"+name))
	}
	logplane("undo", "--by", alice, "--since", last.ResourceVersion, "--all-namespaces", "--yes")
	for _, name := range []string{"prices", "child"} {
		is, err := configs.Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, name, is.Data["is"])
	}
}
