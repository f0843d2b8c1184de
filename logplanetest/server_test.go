package logplanetest_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/logplane/logplane/logplanetest"
)

const definition = `
apiVersion: v1
kind: ConfigMap
metadata: {name: left-out}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: drinks.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: drinks, singular: drink, kind: Drink, listKind: DrinkList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}
`

// TestUsers: users have the rights that RBAC grants and no others, on a server with certificates and on one without.
func TestUsers(t *testing.T) {
	for name, server := range map[string]*logplanetest.Server{"plain": {}, "secure": {Secure: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := server.AddUser("ann", "developers")
			require.ErrorContains(t, err, "call Start or Run first")
			admin := clientsOf(t, server.Start(t))
			ann, err := server.AddUser("ann", "developers")
			require.NoError(t, err)
			_, err = clientsOf(t, ann).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
			require.True(t, apierrors.IsForbidden(err), "%v", err)
			_, err = admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: "developers"}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "cluster-admin", APIGroup: rbacv1.GroupName},
				Subjects: []rbacv1.Subject{{Kind: "Group", Name: "developers", APIGroup: rbacv1.GroupName}},
			}, metav1.CreateOptions{})
			require.NoError(t, err)
			_, err = clientsOf(t, ann).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)

			file, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig())
			require.NoError(t, err)
			_, err = clientsOf(t, file).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			stranger := *file
			stranger.TLSClientConfig.CertData, stranger.TLSClientConfig.KeyData = nil, nil
			_, err = clientsOf(t, &stranger).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
			require.Equal(t, server.Secure, err != nil, "%v", err)
		})
	}
}

// TestAdmissionPlugins: a plug-in that is disabled leaves objects as they are.
func TestAdmissionPlugins(t *testing.T) {
	t.Parallel()
	volumes := func(server *logplanetest.Server) int {
		pod, err := clientsOf(t, server.Start(t)).CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		return len(pod.Spec.Volumes)
	}
	require.Equal(t, 1, volumes(&logplanetest.Server{}))
	require.Equal(t, 0, volumes(&logplanetest.Server{DisableAdmission: []string{"ServiceAccount"}}))
	_, err := (&logplanetest.Server{EnableAdmission: []string{"Unheard"}}).Run(t.Context())
	require.ErrorContains(t, err, "admission plugin 'Unheard' is not known here")
}

// TestFixture: a server begins with CustomResourceDefinitions from files. What it holds is saved, and two other servers
// begin with it: all objects are as they were, and newer writes have newer revisions.
func TestFixture(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "drinks.yaml"), []byte(definition), 0o600))
	first := &logplanetest.Server{CRDs: []string{folder}}
	config := first.Start(t)
	drinks := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "drinks"}
	tea, err := dynamicOf(t, config).Resource(drinks).Namespace("default").Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Drink", "metadata": map[string]any{"name": "tea"}, "spec": map[string]any{"size": int64(3)},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	file := filepath.Join(folder, "fixture")
	require.NoError(t, first.SaveFixture(t.Context(), file))
	require.NoError(t, dynamicOf(t, config).Resource(drinks).Namespace("default").Delete(t.Context(), "tea", metav1.DeleteOptions{}))

	for range 2 {
		server := &logplanetest.Server{Fixture: file}
		config := server.Start(t)
		same, err := dynamicOf(t, config).Resource(drinks).Namespace("default").Get(t.Context(), "tea", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, asJSON(t, tea), asJSON(t, same))
		later, err := clientsOf(t, config).CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "later"}}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.Greater(t, revisionOf(t, later), revisionOf(t, tea))
	}

	text := filepath.Join(folder, "drinks.yaml")
	_, err = (&logplanetest.Server{Fixture: text}).Run(t.Context())
	require.ErrorContains(t, err, "is not a whole file of 'logplane fixture save'")
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	root := bytes.Index(whole, []byte("logplane/root")) // the name in the header of the last file
	for _, size := range []int{0, 700, root / 2, root, root + 700} {
		require.NoError(t, os.WriteFile(text, whole[:size], 0o600))
		_, err = (&logplanetest.Server{Fixture: text}).Run(t.Context())
		require.ErrorContains(t, err, "is not a whole file of 'logplane fixture save'", "%d of %d bytes", size, len(whole))
	}
	_, err = (&logplanetest.Server{CRDs: []string{filepath.Join(folder, "fixture")}}).Run(t.Context())
	require.Error(t, err)
	_, err = (&logplanetest.Server{CRDs: []string{t.TempDir()}}).Run(t.Context())
	require.ErrorContains(t, err, "has no CustomResourceDefinition")
}

func clientsOf(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	clients, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return clients
}

func dynamicOf(t *testing.T, config *rest.Config) *dynamic.DynamicClient {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	return client
}

func revisionOf(t *testing.T, object metav1.Object) int {
	t.Helper()
	n, err := strconv.Atoi(object.GetResourceVersion())
	require.NoError(t, err)
	return n
}

func asJSON(t *testing.T, object any) string {
	t.Helper()
	text, err := json.Marshal(object)
	require.NoError(t, err)
	return string(text)
}
