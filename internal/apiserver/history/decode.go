package history

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	crdserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// decode returns the object of a row as clients see it: in the version in which it is stored, with today's defaults.
func (s *store) decode(ctx context.Context, page *page, row projection.Row) (*unstructured.Unstructured, error) {
	resource := schema.GroupResource{Group: row.ID.Group, Resource: row.ID.Resource}
	transformer := s.Stores.Transformer(resource)
	plain, err := kubestore.Plain(ctx, transformer, row)
	if err != nil {
		return nil, fmt.Errorf("decrypt revision %d: %w", row.Revision, err)
	}
	object := &unstructured.Unstructured{}
	if row.ContentType == runtime.ContentTypeProtobuf {
		scheme, codecs := SchemeOf(resource.Group)
		internal, kind, err := codecs.UniversalDecoder().Decode(resources.Unpadded(plain), nil, nil) // with defaults
		if err != nil {
			return nil, fmt.Errorf("decode revision %d: %w", row.Revision, err)
		}
		if err := scheme.Convert(internal, object, kind.GroupVersion()); err != nil {
			return nil, fmt.Errorf("decode revision %d: %w", row.Revision, err)
		}
	} else {
		if _, _, err := resources.CustomCodec().Decode(plain, nil, object); err != nil {
			return nil, fmt.Errorf("decode revision %d: %w", row.Revision, err)
		}
		schema, err := page.schemas.of(ctx, s.Definitions, resource, object.GroupVersionKind().Version)
		if err != nil {
			return nil, err
		}
		if schema != nil {
			structuraldefaulting.Default(object.Object, schema)
			structuraldefaulting.PruneNonNullableNullsWithoutDefaults(object.Object, schema)
		}
	}
	if transformer != nil {
		if err := kubestore.IsOf(row.Key, object); err != nil {
			return nil, fmt.Errorf("decrypt revision %d: %w", row.Revision, err)
		}
	}
	object.SetResourceVersion(fmt.Sprint(uint64(row.Revision)))
	return object, nil
}

// schemas caches the compiled schemas of custom resources. An entry is used while its definition is unchanged.
type schemas map[schema.GroupVersionResource]compiled

type compiled struct {
	definition types.UID
	revision   string // of the definition
	schema     *structuralschema.Structural
}

// of returns the schema that today's definition has for a version, nil if it has none.
func (s schemas) of(ctx context.Context, definitions *customresources.Reader, resource schema.GroupResource, version string) (*structuralschema.Structural, error) {
	definition, err := definitions.Get(ctx, resource.String())
	if err != nil || definition == nil {
		return nil, err
	}
	id := resource.WithVersion(version)
	known, ok := s[id]
	if !ok || known.definition != definition.UID || known.revision != definition.ResourceVersion {
		known = compiled{definition.UID, definition.ResourceVersion, customresources.SchemaOf(definition, version)}
		s[id] = known
	}
	return known.schema, nil
}

// SchemeOf returns the scheme and the codecs for the built-in objects of a group.
func SchemeOf(group string) (*runtime.Scheme, serializer.CodecFactory) {
	switch group {
	case customresources.Resource.Group:
		return crdserver.Scheme, crdserver.Codecs
	case apiregistration.GroupName:
		return aggregatorscheme.Scheme, aggregatorscheme.Codecs
	}
	return legacyscheme.Scheme, legacyscheme.Codecs
}

// managerOf returns the field manager that wrote the version 'after', empty if the managed fields do not tell. The
// result is the manager whose entry is new, or whose entry has a new time or new fields. An entry that has only lost
// fields does not count: another manager took the fields.
//
// Times are whole seconds, so a manager leaves its entry unchanged if it writes, twice in a second, fields that it
// already owns. If no entry tells, the writer is the manager that owns a field whose value has changed: any other owner
// would have lost that field.
func managerOf(before, after *unstructured.Unstructured) string {
	known := map[metav1.ManagedFieldsEntry]metav1.ManagedFieldsEntry{}
	if before != nil {
		for _, entry := range before.GetManagedFields() {
			known[identityOf(entry)] = entry
		}
	}
	var changed metav1.ManagedFieldsEntry
	for _, entry := range after.GetManagedFields() {
		was, ok := known[identityOf(entry)]
		if (!ok || !was.Time.Equal(entry.Time) || gained(was, entry)) && !newer(changed, entry) {
			changed = entry
		}
	}
	if changed.Manager != "" || before == nil {
		return changed.Manager
	}
	all := &fieldpath.Set{}
	for _, entry := range slices.Concat(before.GetManagedFields(), after.GetManagedFields()) {
		fieldsOf(entry).Iterate(all.Insert)
	}
	for _, entry := range after.GetManagedFields() {
		if all.Empty() || differs(fieldsOf(entry), all, before.Object, after.Object) {
			return entry.Manager
		}
	}
	return ""
}

// identityOf returns the part of an entry that tells entries apart.
func identityOf(e metav1.ManagedFieldsEntry) metav1.ManagedFieldsEntry {
	e.Time, e.FieldsV1 = nil, nil
	return e
}

// fieldsOf returns the fields that an entry owns, none if they cannot be read.
func fieldsOf(e metav1.ManagedFieldsEntry) *fieldpath.Set {
	fields := &fieldpath.Set{}
	if fields.FromJSON(e.FieldsV1.GetRawReader()) != nil {
		return &fieldpath.Set{}
	}
	return fields
}

// gained says whether an entry has fields now that the entry before did not have.
func gained(before, after metav1.ManagedFieldsEntry) bool {
	if before.FieldsV1.GetRawString() == after.FieldsV1.GetRawString() {
		return false
	}
	return !fieldsOf(after).Difference(fieldsOf(before)).Empty()
}

func newer(a, b metav1.ManagedFieldsEntry) bool {
	return a.Time != nil && (b.Time == nil || b.Time.Before(a.Time))
}

// differs says whether one of the fields has changed. An absent value is nil. If managers own parts of a value, the
// owner of the value itself owns only the value's existence. Otherwise that owner owns the whole value.
func differs(fields, all *fieldpath.Set, was, is any) bool {
	old, now := within(was), within(is)
	for step := range fields.Members.All() {
		_, parts := all.Children.Get(step)
		before, after := old(step), now(step)
		if (before == nil) != (after == nil) || !parts && !reflect.DeepEqual(before, after) {
			return true
		}
	}
	changed := false
	for step := range fields.Children.All() { // All does not let a loop end early
		below, _ := fields.Children.Get(step)
		of, _ := all.Children.Get(step)
		changed = changed || differs(below, of, old(step), now(step))
	}
	return changed
}

// within returns a function that finds a part of a value by its step in managed fields: a field, or an item by its
// keys, its value or its index.
func within(parent any) func(fieldpath.PathElement) any {
	fields, _ := parent.(map[string]any)
	list, _ := parent.([]any)
	var items map[string]any // all steps to the items of one list have the same key names, or none
	return func(step fieldpath.PathElement) any {
		switch {
		case step.FieldName != nil:
			return fields[*step.FieldName]
		case step.Index != nil && *step.Index >= 0 && *step.Index < len(list):
			return list[*step.Index]
		case items == nil:
			items = map[string]any{}
			for _, item := range list {
				like := fieldpath.ValueElement(value.NewValueInterface(item))
				if step.Key != nil {
					of, _ := item.(map[string]any)
					keys := slices.Clone(*step.Key)
					for i := range keys {
						keys[i].Value = value.NewValueInterface(of[keys[i].Name])
					}
					like = fieldpath.KeyElement(keys...)
				}
				items[textOf(like)] = item
			}
		}
		return items[textOf(step)]
	}
}

// textOf returns a step as a map key. A number has the same text whatever its Go type.
func textOf(step fieldpath.PathElement) string {
	text, _ := fieldpath.SerializePathElement(step) // every step can be serialized
	return text
}

// encoded returns a value as JSON. A number has the same text in JSON whatever its Go type.
func encoded(value any) string {
	text, _ := json.Marshal(value) // every value in an object can be encoded
	return string(text)
}
