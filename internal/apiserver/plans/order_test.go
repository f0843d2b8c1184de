package plans

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/logplane/logplane/internal/sides"
)

// TestOrder: definitions come before their namespaces, roles before bindings, and owners before the objects that they
// own, even if the owner's kind has a later rank. An object that owns itself does not make an endless loop.
func TestOrder(t *testing.T) {
	type thing struct {
		kind   sides.Kind
		object *unstructured.Unstructured
	}
	made := func(group, resource, kindName, name string, namespaced bool, owners ...string) thing {
		object := &unstructured.Unstructured{Object: map[string]any{}}
		object.SetAPIVersion(schema.GroupVersion{Group: group, Version: "v1"}.String())
		object.SetKind(kindName)
		object.SetName(name)
		if namespaced {
			object.SetNamespace("default")
		}
		var references []metav1.OwnerReference
		for i := 0; i+1 < len(owners); i += 2 {
			references = append(references, metav1.OwnerReference{APIVersion: owners[i], Kind: owners[i+1], Name: "owner"})
		}
		object.SetOwnerReferences(references)
		return thing{sides.Kind{GroupVersionResource: schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}, Namespaced: namespaced}, object}
	}
	ordered := inOrder([]thing{
		made("admissionregistration.k8s.io", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", "hook", false),
		made("apps", "replicasets", "ReplicaSet", "owned", true, "apps/v1", "Deployment"),
		made("", "configmaps", "ConfigMap", "owned", true, "example.com/v1", "Widget"),
		made("example.com", "widgets", "Widget", "owner", true, "example.com/v1", "Widget"),
		made("apps", "deployments", "Deployment", "owner", true),
		made("rbac.authorization.k8s.io", "clusterrolebindings", "ClusterRoleBinding", "b", false),
		made("rbac.authorization.k8s.io", "clusterroles", "ClusterRole", "r", false),
		made("", "nodes", "Node", "n", false),
		made("", "namespaces", "Namespace", "ns", false),
		made("apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition", "d", false),
	}, func(x thing) (sides.Kind, *unstructured.Unstructured) { return x.kind, x.object })
	var kinds []string
	for _, x := range ordered {
		kinds = append(kinds, x.object.GetKind())
	}
	require.Equal(t, []string{"CustomResourceDefinition", "Namespace", "ClusterRole", "ClusterRoleBinding", "Node", "Widget", "ConfigMap", "Deployment",
		"ReplicaSet", "ValidatingWebhookConfiguration"}, kinds)
}
