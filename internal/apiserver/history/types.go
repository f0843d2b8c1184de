package history

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName of the API of the past.
const GroupName = "history.logplane.dev"

// GroupVersion is the only one.
var GroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1"}

// Version is one version of an object, or its deletion. Its name is its revision, and it was created at the log's time
// of the event. It lies in the namespace of its object.
type Version struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Object is whose version this is.
	Object Reference `json:"object"`
	// Verb is 'create', 'update' or 'delete'.
	Verb string `json:"verb"`
	// User who wrote it, 'unknown' if the event does not say. ActingAs is whom the user impersonated.
	User     string `json:"user"`
	ActingAs string `json:"actingAs,omitempty"`
	// UserAgent is the program that the user used, as it named itself.
	UserAgent string `json:"userAgent,omitempty"`
	// Manager is the field manager whose fields have changed, if there is one.
	Manager string `json:"manager,omitempty"`
	// RequestID begins with the Audit-Id of the request.
	RequestID string `json:"requestID,omitempty"`
	// Before is the revision of the version before, empty if there is none.
	Before string `json:"before,omitempty"`
	// Changed are the fields that an update has changed, without those that the server keeps for itself.
	Changed []string `json:"changed,omitempty"`
	// Patch is the same as a JSON patch, from the version before to this one.
	Patch []Operation `json:"patch,omitempty"`
	// Unreadable says why the object could not be decoded. Then there is no patch and no content.
	Unreadable string `json:"unreadable,omitempty"`
	// Content is the object, if it was asked for by '?include=object'. A deletion has the last state.
	Content *runtime.RawExtension `json:"content,omitempty"`
}

// Reference names an object.
type Reference struct {
	Group     string `json:"group,omitempty"`
	Resource  string `json:"resource"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Kind      string `json:"kind,omitempty"`
	UID       string `json:"uid,omitempty"`
}

// Operation is one of a JSON patch (RFC 6902).
type Operation struct {
	Op    string                `json:"op"`
	Path  string                `json:"path"`
	Value *runtime.RawExtension `json:"value,omitempty"`
}

// VersionList is a list of versions.
type VersionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Version `json:"items"`
}

// Change is a version among those of other objects.
type Change struct {
	Version `json:",inline"`
}

// ChangeList is a list of changes.
type ChangeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Change `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (c *Change) DeepCopyObject() runtime.Object { return &Change{*c.deepCopy()} }

// DeepCopyObject implements runtime.Object.
func (l *ChangeList) DeepCopyObject() runtime.Object {
	out := *l
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = make([]Change, len(l.Items))
	for i := range l.Items {
		out.Items[i] = Change{*l.Items[i].deepCopy()}
	}
	return &out
}

// DeepCopyObject implements runtime.Object.
func (v *Version) DeepCopyObject() runtime.Object { return v.deepCopy() }

func (v *Version) deepCopy() *Version {
	out := *v
	v.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Changed = append([]string(nil), v.Changed...)
	out.Patch = make([]Operation, len(v.Patch))
	for i, op := range v.Patch {
		op.Value = op.Value.DeepCopy()
		out.Patch[i] = op
	}
	out.Content = v.Content.DeepCopy()
	return &out
}

// DeepCopyObject implements runtime.Object.
func (l *VersionList) DeepCopyObject() runtime.Object {
	out := *l
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = make([]Version, len(l.Items))
	for i := range l.Items {
		out.Items[i] = *l.Items[i].deepCopy()
	}
	return &out
}
