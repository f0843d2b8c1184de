package products

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	graphs      = schema.GroupVersionResource{Group: "kro.run", Version: "v1alpha1", Resource: "resourcegraphdefinitions"}
	webApps     = schema.GroupVersionResource{Group: "kro.run", Version: "v1alpha1", Resource: "webapps"}
	crds        = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	deployments = appsv1.SchemeGroupVersion.WithResource("deployments")
	services    = corev1.SchemeGroupVersion.WithResource("services")
	ingresses   = schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "ingresses"}
)

// TestKro: kro's chart is installed. kro's controller runs with a token of its service account, and with the roles of
// the chart, into which the rights to kro's objects are aggregated. One of kro's examples becomes a CRD. An instance of
// the CRD creates, changes and deletes objects, and all objects are deleted with the graph.
func TestKro(t *testing.T) {
	controller, chart := shipped(t, "kro/controller"), shipped(t, "kro/chart")
	h := newHost(t)
	h.install(chart, "kro", map[string]any{"rbac": map[string]any{"mode": "aggregation"}, "config": map[string]any{"allowCRDDeletion": true}})
	require.NoError(t, h.apply(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: webapps, labels: {rbac.kro.run/aggregate-to-controller: "true"}}
rules:
- {apiGroups: [kro.run], resources: [webapps, webapps/status], verbs: ["*"]}
- {apiGroups: [apps], resources: [deployments], verbs: ["*"]}
- {apiGroups: [""], resources: [services], verbs: ["*"]}
- {apiGroups: [networking.k8s.io], resources: [ingresses], verbs: ["*"]}
`))
	h.finish()
	h.run(controller, "kro", "kro", "--metrics-bind-address", "0", "--health-probe-bind-address", "0", "--leader-election-namespace", "kro")

	example := func(name string) string {
		text, err := os.ReadFile(shipped(t, "kro/webapp/"+name))
		require.NoError(t, err)
		return string(text)
	}
	require.NoError(t, h.apply(example("rg.yaml")))
	h.until(graphs, "", "webapp.kro.run", func(u *unstructured.Unstructured) bool {
		state, _, _ := unstructured.NestedString(u.Object, "status", "state")
		return state == "Active" && hasCondition("Ready")(u)
	})
	h.until(crds, "", "webapps.kro.run", hasCondition("Established"))

	require.NoError(t, h.apply(example("instance.yaml")))
	h.until(services, "default", "test-app", func(*unstructured.Unstructured) bool { return true })
	h.until(ingresses, "default", "test-app", func(*unstructured.Unstructured) bool { return true })
	h.until(webApps, "default", "test-app", func(u *unstructured.Unstructured) bool {
		available, _, _ := unstructured.NestedInt64(u.Object, "status", "availableReplicas")
		return available == 1
	})

	require.NoError(t, h.apply(strings.Replace(example("instance.yaml"), "enabled: true", "enabled: false", 1)+"  replicas: 3\n"))
	h.untilGone(ingresses, "default", "test-app")
	h.until(deployments, "default", "test-app", func(u *unstructured.Unstructured) bool {
		replicas, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
		return replicas == 3
	})
	h.until(webApps, "default", "test-app", func(u *unstructured.Unstructured) bool {
		available, _, _ := unstructured.NestedInt64(u.Object, "status", "availableReplicas")
		return available == 3 && hasCondition("Ready")(u)
	})

	require.NoError(t, h.dynamic.Resource(webApps).Namespace("default").Delete(t.Context(), "test-app", metav1.DeleteOptions{}))
	h.untilGone(webApps, "default", "test-app")
	h.untilGone(deployments, "default", "test-app")
	h.untilGone(services, "default", "test-app")
	require.NoError(t, h.dynamic.Resource(graphs).Delete(t.Context(), "webapp.kro.run", metav1.DeleteOptions{}))
	h.untilGone(graphs, "", "webapp.kro.run")
	h.untilGone(crds, "", "webapps.kro.run")
	h.cell.NoErrors()
}
