package kubestore

import (
	"reflect"
	"sync"
	"time"
)

// Size returns how much memory a decoded object takes. That memory depends far more on the object's structure than on
// its encoded size: a text takes about its own length, many small fields take twenty times their encoded length. So
// Size walks the object. Walking an object costs a fraction of decoding it.
func Size(object any) int64 { return beyond(reflect.ValueOf(object)) }

// Sizes are rounded up to granules. The allocator rounds sizes up to its size classes. This rounding wastes an eighth
// at most.
const granule = 16

func allocated(bytes uintptr) int64 { return int64((bytes + granule - 1) &^ (granule - 1)) }

// A map stores keys and values in groups of slots, of which about three quarters are used.
const (
	mapHeader  = 48
	groupSlots = 8
	groupUsed  = 6
)

// beyond returns the memory that a value refers to. Memory that is not the object's own, such as a time zone, does not
// count.
func beyond(v reflect.Value) (bytes int64) {
	switch v.Kind() {
	case reflect.String:
		return allocated(uintptr(v.Len()))
	case reflect.Pointer:
		if v.IsNil() {
			return 0
		}
		return allocated(v.Type().Elem().Size()) + beyond(v.Elem())
	case reflect.Interface:
		if v.IsNil() {
			return 0
		}
		return boxed(v.Elem())
	case reflect.Slice:
		bytes = allocated(uintptr(v.Cap()) * v.Type().Elem().Size())
		if refers(v.Type().Elem()) {
			for i := range v.Len() {
				bytes += beyond(v.Index(i))
			}
		}
	case reflect.Map:
		bytes = mapBytes(v)
		for each := v.MapRange(); each.Next(); {
			bytes += beyond(each.Key()) + beyond(each.Value())
		}
	case reflect.Struct:
		for _, i := range fieldsOf(v.Type()) {
			bytes += beyond(v.Field(i))
		}
	}
	return bytes
}

// boxed returns the memory of a value in an interface. The interface refers to the value, except that a pointer or a
// map is held directly.
func boxed(v reflect.Value) int64 {
	if v.Kind() == reflect.Pointer || v.Kind() == reflect.Map {
		return beyond(v)
	}
	return allocated(v.Type().Size()) + beyond(v)
}

func mapBytes(v reflect.Value) int64 {
	if v.IsNil() {
		return 0
	}
	slot := v.Type().Key().Size() + v.Type().Elem().Size()
	groups := 1
	if v.Len() > groupSlots {
		groups = (v.Len() + groupUsed - 1) / groupUsed
	}
	return mapHeader + int64(groups)*allocated(groupSlots*(slot+1))
}

// refers says whether values of a type may refer to memory.
func refers(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.String, reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map:
		return true
	case reflect.Struct:
		return len(fieldsOf(t)) > 0
	}
	return false
}

var (
	timeType  = reflect.TypeFor[time.Time]()
	referring sync.Map // from the type of a struct to its fields that may refer to memory
)

func fieldsOf(t reflect.Type) []int {
	if known, ok := referring.Load(t); ok {
		return known.([]int)
	}
	var fields []int
	for i := range t.NumField() {
		if t != timeType && refers(t.Field(i).Type) {
			fields = append(fields, i)
		}
	}
	referring.Store(t, fields)
	return fields
}
