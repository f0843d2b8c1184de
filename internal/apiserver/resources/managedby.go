package resources

import (
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// ManagedBy returns the two converters that upstream's field manager needs for the scheme's types: a TypeConverter and
// a converter of versions. The two must be used together.
//
// These converters do less work than upstream's converters, with the same outcome:
//   - For each manager of an object, upstream makes a whole unstructured object of the typed object. Upstream then
//     looks only at the version, which is nearly always the wanted version. Here an object is read only when it is
//     converted.
//   - Nobody looks at the managed fields of a typed object, but upstream parses all of them. Here one empty entry takes
//     their place.
func ManagedBy(scheme *runtime.Scheme) (managedfields.TypeConverter, runtime.ObjectConvertor) {
	return managing{ConvertersOf(scheme)}, reading{runtime.UnsafeObjectConvertor(scheme)}
}

// unread is a typed object of which only version and kind have been read. Its Go type is not registered in a scheme, so
// only the converter 'reading' can convert it.
type unread struct {
	metav1.TypeMeta
	value *typed.TypedValue
}

// DeepCopyObject implements runtime.Object. Copies share the value, which is never written to.
func (u *unread) DeepCopyObject() runtime.Object { c := *u; return &c }

// managing adapts TypeConverters for a field manager, as ManagedBy describes.
type managing struct{ *TypeConverters }

// ObjectToTyped implements managedfields.TypeConverter.
func (c managing) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	return c.TypeConverters.ObjectToTyped(withEmptyManager(obj), opts...)
}

// withEmptyManager returns the object with one empty entry in place of its managed fields. A comparison of objects
// takes the list of managed fields as one value. The list must not be removed: an update lacks the list, and a manager
// that owns the list itself must then lose that ownership. An apply leaves the list as it is.
func withEmptyManager(obj runtime.Object) runtime.Object {
	m, err := meta.Accessor(obj)
	if err != nil || len(m.GetManagedFields()) == 0 {
		return obj
	}
	if _, ok := obj.(runtime.Unstructured); ok { // an apply patch, which must not have managed fields
		return obj
	}
	flat := reflect.New(reflect.TypeOf(obj).Elem())
	flat.Elem().Set(reflect.ValueOf(obj).Elem())
	obj = flat.Interface().(runtime.Object)
	m, _ = meta.Accessor(obj)
	m.SetManagedFields(emptyManager)
	return obj
}

var emptyManager = []metav1.ManagedFieldsEntry{{}}

// TypedToObject implements managedfields.TypeConverter.
func (c managing) TypedToObject(value *typed.TypedValue) (runtime.Object, error) {
	u := &unread{value: value}
	var versioned, named bool
	u.APIVersion, versioned = textIn(value, "apiVersion")
	u.Kind, named = textIn(value, "kind")
	if !versioned || !named {
		return c.TypeConverters.TypedToObject(value)
	}
	return u, nil
}

// textIn returns a string field at the top level of an object.
func textIn(object *typed.TypedValue, name string) (text string, found bool) {
	v := object.AsValue()
	if !v.IsMap() {
		return "", false
	}
	field, found := v.AsMap().Get(name)
	if !found || !field.IsString() {
		return "", false
	}
	return field.AsString(), true
}

// reading is a converter that also converts unread objects.
type reading struct{ runtime.ObjectConvertor }

// ConvertToVersion implements runtime.ObjectConvertor.
func (c reading) ConvertToVersion(in runtime.Object, to runtime.GroupVersioner) (runtime.Object, error) {
	object, err := read(in)
	if err != nil {
		return nil, err
	}
	return c.ObjectConvertor.ConvertToVersion(object.(runtime.Object), to)
}

// Convert implements runtime.ObjectConvertor.
func (c reading) Convert(in, out, context any) error {
	in, err := read(in)
	if err != nil {
		return err
	}
	return c.ObjectConvertor.Convert(in, out, context)
}

func read(object any) (any, error) {
	if u, ok := object.(*unread); ok {
		return managedfields.NewDeducedTypeConverter().TypedToObject(u.value)
	}
	return object, nil
}
