package resources

import (
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// ManagedBy returns what upstream's field manager of a kind needs, and what must be used together: a TypeConverter and
// a converter of versions, which both know the scheme's types. TypeConverter is nil for a scheme that has none.
//
// They do less than upstream's, with the same outcome:
//   - For each manager of an object, upstream makes a whole unstructured object of the typed one, and then looks only
//     at its version, which is nearly always the one it wants. Here an object is read when it is converted.
//   - Nobody looks at the managed fields of a typed object, but upstream parses all of them. Here there is one empty
//     entry in their place.
func ManagedBy(scheme *runtime.Scheme) (managedfields.TypeConverter, runtime.ObjectConvertor) {
	types, versions := ConvertersOf(scheme), runtime.UnsafeObjectConvertor(scheme)
	if types == nil {
		return nil, versions
	}
	return managing{types}, reading{versions}
}

// unread is a typed object of which only version and kind have been read. It is of no registered type, so nothing but
// reading can convert it.
type unread struct {
	metav1.TypeMeta
	value *typed.TypedValue
}

// DeepCopyObject implements runtime.Object. Nobody writes to the value.
func (u *unread) DeepCopyObject() runtime.Object { c := *u; return &c }

// managing is what TypeConverters are for a field manager.
type managing struct{ *TypeConverters }

// ObjectToTyped implements managedfields.TypeConverter.
func (c managing) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	return c.TypeConverters.ObjectToTyped(withEmptyManager(obj), opts...)
}

// withEmptyManager returns the object with one empty entry for all its managed fields. To those who compare objects,
// that list is one value. An update lacks it, whatever was in it, and that must show: a manager may claim the list
// itself, and loses it then. An apply leaves it as it is.
func withEmptyManager(obj runtime.Object) runtime.Object {
	m, err := meta.Accessor(obj)
	if err != nil || len(m.GetManagedFields()) == 0 {
		return obj
	}
	if _, ok := obj.(runtime.Unstructured); ok { // an apply patch, which must have none
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
	var read bool
	if u.APIVersion, read = textIn(value, "apiVersion"); !read {
		return c.TypeConverters.TypedToObject(value)
	}
	if u.Kind, read = textIn(value, "kind"); !read {
		return c.TypeConverters.TypedToObject(value)
	}
	return u, nil
}

// textIn is a text at the top of an object.
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

// reading converts objects that were left unread, too.
type reading struct{ runtime.ObjectConvertor }

// ConvertToVersion implements runtime.ObjectConvertor.
func (c reading) ConvertToVersion(in runtime.Object, to runtime.GroupVersioner) (runtime.Object, error) {
	in, err := read(in)
	if err != nil {
		return nil, err
	}
	return c.ObjectConvertor.ConvertToVersion(in, to)
}

// Convert implements runtime.ObjectConvertor.
func (c reading) Convert(in, out, context any) error {
	if u, ok := in.(*unread); ok {
		object, err := read(u)
		if err != nil {
			return err
		}
		in = object
	}
	return c.ObjectConvertor.Convert(in, out, context)
}

func read(object runtime.Object) (runtime.Object, error) {
	if u, ok := object.(*unread); ok {
		return managedfields.NewDeducedTypeConverter().TypedToObject(u.value)
	}
	return object, nil
}
