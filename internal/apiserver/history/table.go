package history

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apiserver/pkg/registry/rest"
)

// table prints versions. If 'of' is set, as it is for changes, it also prints the object of each version.
type table struct{ of bool }

// shown is how many changed fields a row names at most.
const shown = 4

// ConvertToTable implements rest.TableConvertor. It replaces the columns of upstream's table.
func (t table) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	out, err := rest.NewDefaultTableConvertor(schema.GroupResource{}).ConvertToTable(ctx, object, options)
	if err != nil {
		return nil, err
	}
	if len(out.ColumnDefinitions) > 0 { // the client wants headers
		out.ColumnDefinitions = []metav1.TableColumnDefinition{
			{Name: "Revision", Type: "string", Description: "The revision that the version had as its resourceVersion."},
			{Name: "Age", Type: "string", Description: "How long ago it was written."},
			{Name: "User", Type: "string", Description: "Who wrote it."},
			{Name: "Verb", Type: "string", Description: "What was done."},
			{Name: "Object", Type: "string", Description: "Whose version it is."},
			{Name: "Changed", Type: "string", Description: "The fields that have changed."},
		}
		if !t.of {
			out.ColumnDefinitions = slices.Delete(out.ColumnDefinitions, 4, 5) // Object
		}
	}
	for i := range out.Rows {
		row := &out.Rows[i]
		v := row.Object.Object.(interface{ version() *Version }).version()
		row.Cells = []any{v.Name, duration.HumanDuration(time.Since(v.CreationTimestamp.Time)), v.Author(), v.Verb, v.Object.String(), v.Summary()}
		if !t.of {
			row.Cells = slices.Delete(row.Cells, 4, 5)
		}
	}
	return out, nil
}

func (v *Version) version() *Version { return v }

// String is the name of the object as a client writes it.
func (r Reference) String() string {
	name := r.Resource
	if r.Group != "" {
		name += "." + r.Group
	}
	return name + "/" + r.Name
}

// IsAfter says whether revision a is newer than b. Both are decimal numbers, as the server writes revisions.
func IsAfter(a, b string) bool {
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) > 0
}

// In names the object in an answer about a namespace. It adds the object's own namespace if that is another namespace.
func (r Reference) In(namespace string) string {
	if r.Namespace == "" || r.Namespace == namespace {
		return r.String()
	}
	return r.String() + " -n " + r.Namespace
}

// Named returns the reference without kind and UID. The result also names a later object of the same name.
func (r Reference) Named() Reference {
	r.Kind, r.UID = "", ""
	return r
}

// Author names, for people, the writer of the version and the user whose deletion caused the write.
func (v *Version) Author() string {
	author := nameOf(v.User, v.ActingAs)
	if v.Cause != nil {
		author += " because of " + nameOf(v.Cause.User, v.Cause.ActingAs) + " at " + v.Cause.Revision
	}
	return author
}

func nameOf(user, actingAs string) string {
	if actingAs != "" {
		return user + " as " + actingAs
	}
	return user
}

// Summary describes the changes, for people.
func (v *Version) Summary() string {
	switch {
	case v.Unreadable != "":
		return "<unreadable>"
	case v.Verb == "update" && len(v.Changed) == 0 && v.Manager != "":
		return "<managed fields>"
	case v.PatchOmitted:
		return fmt.Sprintf("%s and many more", strings.Join(v.Changed[:min(shown, len(v.Changed))], ", "))
	}
	return Shorten(v.Changed)
}

// Shorten lists the first names, and counts the other names.
func Shorten(all []string) string {
	if len(all) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:shown], ", "), len(all)-shown)
	}
	return strings.Join(all, ", ")
}

// Decoded returns the object of a version that was requested with include=object.
func (v *Version) Decoded() (*unstructured.Unstructured, error) {
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

// GroupResource is the resource of the object.
func (r Reference) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Resource}
}
