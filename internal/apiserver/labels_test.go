package apiserver

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/logplane/logplane/internal/apiserver/resources"
)

// TestDecodesLabels: the code knows every built-in kind whose objects get labels when they are decoded. Upstream's
// defaults copy these labels from a template. Lists select objects of all other kinds by their stored labels.
func TestDecodesLabels(t *testing.T) {
	groups := newServer(t).groups
	found := map[schema.GroupResource]bool{}
	checked := 0
	for kind := range legacyscheme.Scheme.AllKnownTypes() {
		object, err := legacyscheme.Scheme.New(kind)
		require.NoError(t, err)
		g := groups[kind.Group]
		if g == nil || !g.serves(kind.Version) || !hasMetadata(object) { // nothing is stored in a version that is not served
			continue
		}
		checked++
		label(reflect.ValueOf(object).Elem(), 0)
		accessor, err := meta.Accessor(object)
		require.NoError(t, err)
		accessor.SetLabels(nil)
		legacyscheme.Scheme.Default(object)
		plural, _ := meta.UnsafeGuessKindToResource(kind)
		resource := schema.GroupResource{Group: kind.Group, Resource: plural.Resource}
		found[resource] = found[resource] || len(accessor.GetLabels()) > 0
	}
	require.Greater(t, checked, 50)
	for resource, changed := range found {
		require.Equal(t, changed, resources.DecodesLabels(resource), resource)
	}
}

func hasMetadata(object runtime.Object) bool {
	_, isList := object.(metav1.ListInterface)
	_, err := meta.Accessor(object)
	return err == nil && !isList
}

// label gives labels to all metadata in a value, and allocates the missing parts of the value.
func label(v reflect.Value, depth int) {
	if depth > 8 {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() && v.CanSet() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		if !v.IsNil() {
			label(v.Elem(), depth+1)
		}
	case reflect.Struct:
		if metadata, ok := v.Addr().Interface().(*metav1.ObjectMeta); ok {
			metadata.Labels = map[string]string{"of": "template"}
			return
		}
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				label(v.Field(i), depth+1)
			}
		}
	}
}
