package shape

import (
	"reflect"
	"time"
)

// Value measures an object in memory roughly as it would be in JSON. It does not stop at the limits: an object that was
// stored before there were limits can still be made smaller. Raw types hold JSON or CBOR.
func Value(object any, raw map[reflect.Type]bool) Shape {
	var s Shape
	s.Bytes = s.value(reflect.ValueOf(object), raw, 0)
	return s
}

// scalarSize is roughly the size of a number, or of a member's quotes and colon.
const scalarSize = 4

func (s *Shape) value(v reflect.Value, raw map[reflect.Type]bool, depth int) (bytes int) {
	switch v.Kind() {
	case reflect.String:
		return v.Len() + scalarSize
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return s.value(v.Elem(), raw, depth)
		}
		return scalarSize
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() { // its fields include the local time zone
			return len(time.RFC3339)
		}
		if raw[v.Type()] {
			return s.rawValue(v, depth)
		}
	case reflect.Map:
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return 4 * v.Len() / 3
		}
	default:
		return scalarSize
	}
	s.Values++
	depth++
	s.Depth = max(s.Depth, depth)
	here := level{list: v.Kind() == reflect.Slice}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); !f.IsZero() {
				here.members++
				bytes += len(v.Type().Field(i).Name) + s.value(f, raw, depth)
			}
		}
	case reflect.Map:
		here.members = v.Len()
		for entries := v.MapRange(); entries.Next(); {
			if list, ok := entries.Value().Interface().([]any); ok {
				s.count(countedLists[entries.Key().String()], len(list))
			}
			bytes += s.value(entries.Key(), raw, depth) + s.value(entries.Value(), raw, depth)
		}
	case reflect.Slice:
		here.members = v.Len()
		here.counted = countedTypes[v.Type().Elem().Name()]
		for i := range v.Len() {
			bytes += s.value(v.Index(i), raw, depth) + 1
		}
	}
	s.leave(&here, bytes)
	return bytes
}

// rawValue measures the bytes that a raw message holds in its first field.
func (s *Shape) rawValue(v reflect.Value, depth int) int {
	content := v.Field(0)
	if content.Kind() != reflect.Slice {
		return 0
	}
	_ = s.raw(content.Bytes(), depth)
	return content.Len()
}
