package history

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	crdserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// decode returns the object of a row in the version in which it is stored, as clients see it.
func (s *store) decode(ctx context.Context, row projection.Row) (*unstructured.Unstructured, error) {
	resource := resourceOf(row)
	plain, err := kubestore.Plain(ctx, s.Stores.Transformer(resource), row)
	if err != nil {
		return nil, fmt.Errorf("decrypt revision %d: %w", row.Revision, err)
	}
	object := &unstructured.Unstructured{}
	if row.ContentType == runtime.ContentTypeProtobuf {
		typed, kind, err := decoderOf(resource.Group).Decode(resources.Unpadded(plain), nil, nil)
		if err != nil {
			return nil, fmt.Errorf("decode revision %d: %w", row.Revision, err)
		}
		if object.Object, err = runtime.DefaultUnstructuredConverter.ToUnstructured(typed); err != nil {
			return nil, fmt.Errorf("decode revision %d: %w", row.Revision, err)
		}
		object.SetGroupVersionKind(*kind)
	} else {
		decoded, _, err := resources.CustomCodec().Decode(plain, nil, object)
		if err != nil {
			return nil, fmt.Errorf("decode revision %d: %w", row.Revision, err)
		}
		object = decoded.(*unstructured.Unstructured)
	}
	object.SetResourceVersion(fmt.Sprint(uint64(row.Revision)))
	return object, nil
}

func decoderOf(group string) runtime.Decoder {
	switch group {
	case customresources.Resource.Group:
		return crdserver.Codecs.UniversalDeserializer()
	case apiregistration.GroupName:
		return aggregatorscheme.Codecs.UniversalDeserializer()
	}
	return legacyscheme.Codecs.UniversalDeserializer()
}

func resourceOf(row projection.Row) schema.GroupResource {
	return schema.GroupResource{Group: row.ID.Group, Resource: row.ID.Resource}
}

// managerOf is the field manager that has made an object of the version before, empty if nothing says so. It is the one
// whose entry is new, or has a new time or new fields, or else the owner of a field that has changed: an entry stays as
// it is if its fields do. An entry that has only lost fields is that of somebody whose fields another one took.
func managerOf(before, after *unstructured.Unstructured, patch []Operation) string {
	known := map[managed]metav1.ManagedFieldsEntry{}
	if before != nil {
		for _, entry := range before.GetManagedFields() {
			known[identityOf(entry)] = entry
		}
	}
	var changed, owner metav1.ManagedFieldsEntry
	for _, entry := range after.GetManagedFields() {
		was, ok := known[identityOf(entry)]
		if (!ok || !was.Time.Equal(entry.Time) || gained(was, entry)) && !newer(changed, entry) {
			changed = entry
		}
		if owns(entry, patch) && !newer(owner, entry) {
			owner = entry
		}
	}
	return cmp.Or(changed.Manager, owner.Manager)
}

// managed tells entries of managed fields apart.
type managed struct {
	manager, subresource, version string
	operation                     metav1.ManagedFieldsOperationType
}

func identityOf(e metav1.ManagedFieldsEntry) managed {
	return managed{e.Manager, e.Subresource, e.APIVersion, e.Operation}
}

// fieldsOf are those that an entry owns, nil if they cannot be read.
func fieldsOf(e metav1.ManagedFieldsEntry) map[string]any {
	var all map[string]any
	if e.FieldsV1 == nil || json.Unmarshal(e.FieldsV1.GetRawBytes(), &all) != nil {
		return nil
	}
	return all
}

// gained says whether an entry has fields that it did not have before.
func gained(before, after metav1.ManagedFieldsEntry) bool {
	if before.FieldsV1 != nil && after.FieldsV1 != nil && before.FieldsV1.GetRawString() == after.FieldsV1.GetRawString() {
		return false
	}
	return hasMore(fieldsOf(before), fieldsOf(after))
}

func hasMore(before, after map[string]any) bool {
	for name, value := range after {
		was, ok := before[name]
		if !ok {
			return true
		}
		below, _ := value.(map[string]any)
		if wasBelow, _ := was.(map[string]any); hasMore(wasBelow, below) {
			return true
		}
	}
	return false
}

func newer(a, b metav1.ManagedFieldsEntry) bool {
	return a.Time != nil && (b.Time == nil || b.Time.Before(a.Time))
}

// owns says whether one of the fields is the entry's, down to the first list: items are not owned by their index.
func owns(entry metav1.ManagedFieldsEntry, patch []Operation) bool {
	all := fieldsOf(entry)
	for _, op := range patch {
		at, steps := all, 0
		for _, part := range strings.Split(strings.TrimPrefix(op.Path, "/"), "/") {
			below, ok := at["f:"+unescape.Replace(part)].(map[string]any)
			if !ok {
				break
			}
			at, steps = below, steps+1
		}
		if steps > 1 { // more than 'metadata' or 'spec'
			return true
		}
	}
	return false
}
