package lifecycle

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// before runs f right before the lifecycle's first deletion in a namespace. Deletions by other clients do not count.
func (c *cluster) before(namespace string, f func()) {
	var once sync.Once
	c.restart(through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/namespaces/"+namespace+"/") {
			once.Do(f)
		}
		return next.RoundTrip(r)
	}))
}

// fill makes a namespace with objects that must not be deleted.
func (c *cluster) fill(client *life, namespace string) {
	_, err := client.client.CoreV1().Namespaces().Create(c.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	require.NoError(c, err)
	for _, name := range []string{"a", "b"} {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{"example.com/" + name}}}
		_, err = client.client.CoreV1().ConfigMaps(namespace).Create(c.Context(), object, metav1.CreateOptions{})
		require.NoError(c, err)
	}
}

// untouched requires that all of these objects live.
func (c *cluster) untouched(namespace string) {
	maps, err := c.client.CoreV1().ConfigMaps(namespace).List(c.Context(), metav1.ListOptions{})
	require.NoError(c, err)
	require.Len(c, maps.Items, 2)
	for _, m := range maps.Items {
		require.Nil(c, m.DeletionTimestamp, m.Name)
	}
	_, err = c.client.CoreV1().ServiceAccounts(namespace).Get(c.Context(), "default", metav1.GetOptions{})
	require.NoError(c, err)
}

// spares runs a task that another process has overtaken. The task must fail, do nothing the next time, and leave alone
// all objects that were made again.
func (c *cluster) spares(do func(context.Context, task) error, t task) {
	require.Error(c, do(c.Context(), t))
	c.untouched(t.namespace)
	require.NoError(c, do(c.Context(), t))
	c.untouched(t.namespace)
}

// TestNamespaceIsMadeAgain: any number of lifecycles may run. Suppose that two lifecycles empty the same namespace, and
// that a client makes a namespace of the same name after the faster lifecycle has finished. The slower lifecycle must
// not empty the new namespace.
func TestNamespaceIsMadeAgain(t *testing.T) {
	c := newCluster(t)
	other := c.life
	c.before("again", func() {
		require.NoError(t, other.emptyNamespace(t.Context(), task{kind: namespaceTask, namespace: "again"}))
		c.fill(other, "again")
	})
	c.createNamespace("again")
	c.createConfigMap("again", "old")
	c.deleteNamespace("again")
	c.spares(c.emptyNamespace, task{kind: namespaceTask, namespace: "again"})
}

// TestNamespaceOfStraysIsMadeAgain: a lifecycle that deletes leftovers must not empty a namespace that was made again.
func TestNamespaceOfStraysIsMadeAgain(t *testing.T) {
	c := newCluster(t)
	other := c.life
	c.before("again", func() { c.fill(other, "again") })
	c.spares(c.deleteLeftovers, task{kind: leftoverTask, namespace: "again"})
}

// TestDefinitionIsMadeAgain: a lifecycle that deletes the instances of a definition must spare the instances of a later
// definition of the same name.
func TestDefinitionIsMadeAgain(t *testing.T) {
	c := newCluster(t)
	c.createDefinition()
	c.createWidget("default", "old")
	old, err := c.extensions.ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), "widgets.example.com", metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, c.extensions.ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), old.Name, metav1.DeleteOptions{}))
	require.NoError(t, c.emptyDefinition(t.Context(), task{kind: definitionTask, name: old.Name}))
	_, err = c.extensions.ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), old.Name, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))
	c.createDefinition()
	c.createWidget("default", "new")
	namespaces, err := c.namespacesOf(t.Context(), old)
	require.NoError(t, err)
	require.True(t, namespaces["default"])
	require.Error(t, c.deleteFrom(t.Context(), old, namespaces)) // as the slower lifecycle would
	namespaces, err = c.namespacesOf(t.Context(), old)
	require.NoError(t, err)
	require.True(t, namespaces["default"], "the new instance lives")
}
