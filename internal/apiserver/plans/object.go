package plans

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/logplane/logplane/internal/sides"
)

// kept are the fields of metadata that the server keeps for itself. No client can write them.
var kept = []string{"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink", "deletionTimestamp",
	"deletionGracePeriodSeconds"}

// cleaned returns a copy of an object without the kept fields, and without its status if that is a subresource.
func cleaned(object *unstructured.Unstructured, k sides.Kind) *unstructured.Unstructured {
	out := object.DeepCopy()
	for _, name := range kept {
		unstructured.RemoveNestedField(out.Object, "metadata", name)
	}
	if k.GroupResource() == daemonSets { // the API counts the templates in this annotation
		unstructured.RemoveNestedField(out.Object, "metadata", "annotations", appsv1.DeprecatedTemplateGeneration)
	}
	if _, aggregated := out.Object["aggregationRule"].(map[string]any); aggregated && k.GroupResource() == clusterRoles {
		delete(out.Object, "rules") // the API gathers them from other roles
	}
	if isTokenOf(out, k) { // the API issues the token, and an old one may have been revoked on purpose
		unstructured.RemoveNestedField(out.Object, "data", corev1.ServiceAccountTokenKey)
	}
	if k.HasStatus {
		delete(out.Object, "status")
	}
	return out
}

// onto returns the wanted object as a new version of the live one: with the live object's kept fields and status.
func onto(live *unstructured.Unstructured, wanted map[string]any, k sides.Kind) *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(wanted)}
	for _, name := range kept {
		if value, found, _ := unstructured.NestedFieldCopy(live.Object, "metadata", name); found {
			_ = unstructured.SetNestedField(out.Object, value, "metadata", name) // metadata is an object
		}
	}
	token, found, _ := unstructured.NestedFieldCopy(live.Object, "data", corev1.ServiceAccountTokenKey)
	if found && isTokenOf(live, k) {
		_ = unstructured.SetNestedField(out.Object, token, "data", corev1.ServiceAccountTokenKey) // data is an object
	}
	if status, found := live.Object["status"]; found && k.HasStatus {
		out.Object["status"] = runtime.DeepCopyJSONValue(status)
	}
	return out
}
