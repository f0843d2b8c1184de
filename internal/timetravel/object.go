package timetravel

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/logplane/logplane/internal/apiserver/history"
)

// kept are the fields of metadata that the server keeps for itself. No client can write them.
var kept = []string{"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink", "deletionTimestamp",
	"deletionGracePeriodSeconds"}

// cleaned is a copy of an object without what the server keeps, and without its status if that is written by itself.
func cleaned(object *unstructured.Unstructured, k kind) *unstructured.Unstructured {
	out := object.DeepCopy()
	for _, name := range kept {
		unstructured.RemoveNestedField(out.Object, "metadata", name)
	}
	if k.HasStatus {
		delete(out.Object, "status")
	}
	return out
}

// onto is what was wanted, as a new version of the live object: with what the server keeps, and with its status.
func onto(live *unstructured.Unstructured, wanted map[string]any, k kind) *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(wanted)}
	for _, name := range kept {
		if value, found, _ := unstructured.NestedFieldCopy(live.Object, "metadata", name); found {
			_ = unstructured.SetNestedField(out.Object, value, "metadata", name) // metadata is an object
		}
	}
	if status, found := live.Object["status"]; found && k.HasStatus {
		out.Object["status"] = runtime.DeepCopyJSONValue(status)
	}
	return out
}

// contentOf returns the object of a version.
func contentOf(v *history.Version) (*unstructured.Unstructured, error) {
	if v.Unreadable != "" {
		return nil, fmt.Errorf("revision %s cannot be read: %s", v.Name, v.Unreadable)
	}
	if v.Content == nil {
		return nil, fmt.Errorf("revision %s is no longer kept", v.Name)
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(v.Content.Raw); err != nil {
		return nil, fmt.Errorf("decode revision %s: %w", v.Name, err)
	}
	return object, nil
}

// resourceOf is the resource of the object that a version names.
func resourceOf(r history.Reference) schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Resource}
}

// title names an object for a line: as one names it on the command line, with its namespace if that is another one.
func (c *Client) title(r history.Reference) string {
	if r.Namespace == "" || r.Namespace == c.Namespace {
		return r.String()
	}
	return r.String() + " -n " + r.Namespace
}
