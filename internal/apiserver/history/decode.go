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
	case "apiregistration.k8s.io":
		return aggregatorscheme.Codecs.UniversalDeserializer()
	}
	return legacyscheme.Codecs.UniversalDeserializer()
}

func resourceOf(row projection.Row) schema.GroupResource {
	return schema.GroupResource{Group: row.ID.Group, Resource: row.ID.Resource}
}

// managerOf is the field manager that has made an object of the version before, empty if nothing says so. It is the one
// of which an entry is new, or else the owner of a field that has changed: an entry stays as it is if its fields do.
func managerOf(before, after *unstructured.Unstructured, patch []Operation) string {
	known := map[managed]bool{}
	if before != nil {
		for _, entry := range before.GetManagedFields() {
			known[identityOf(entry)] = true
		}
	}
	var changed, owner metav1.ManagedFieldsEntry
	for _, entry := range after.GetManagedFields() {
		if !known[identityOf(entry)] && !newer(changed, entry) {
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
	manager, subresource, fields string
	operation                    metav1.ManagedFieldsOperationType
	time                         metav1.Time
}

func identityOf(e metav1.ManagedFieldsEntry) managed {
	m := managed{manager: e.Manager, subresource: e.Subresource, operation: e.Operation}
	if e.Time != nil {
		m.time = *e.Time
	}
	if e.FieldsV1 != nil {
		m.fields = e.FieldsV1.GetRawString()
	}
	return m
}

func newer(a, b metav1.ManagedFieldsEntry) bool {
	return a.Time != nil && (b.Time == nil || b.Time.Before(a.Time))
}

// owns says whether one of the fields is the entry's, down to the first list: items are not owned by their index.
func owns(entry metav1.ManagedFieldsEntry, patch []Operation) bool {
	var all map[string]any
	if entry.FieldsV1 == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &all) != nil {
		return false
	}
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
