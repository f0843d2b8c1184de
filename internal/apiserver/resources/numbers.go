package resources

import (
	"io"
	"maps"
	"math"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// wholeNumbers stores numbers without a fraction as integers. Upstream's JSON in etcd has the same effect. A client
// that sent 1.0 gets 1, and sending 1 back changes nothing (row 48).
type wholeNumbers struct{ runtime.Encoder }

// Encode implements runtime.Encoder.
func (e wholeNumbers) Encode(obj runtime.Object, w io.Writer) error {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		if whole, changed := Whole(u.Object); changed {
			obj = &unstructured.Unstructured{Object: whole.(map[string]any)}
		}
	}
	return e.Encoder.Encode(obj, w)
}

// Whole returns a value of JSON with integers for whole numbers. It does not modify value, but copies the parts that
// change.
func Whole(value any) (_ any, changed bool) {
	switch v := value.(type) {
	case float64:
		if v != math.Trunc(v) || math.Abs(v) >= 1e21 { // from here on JSON writes an exponent
			return v, false
		}
		whole, err := strconv.ParseInt(strconv.FormatFloat(v, 'f', -1, 64), 10, 64)
		if err == nil { // a number beyond int64 would be read as a float64 again
			return whole, true
		}
	case map[string]any:
		var whole map[string]any
		for name, member := range v {
			one, changed := Whole(member)
			if !changed {
				continue
			}
			if whole == nil {
				whole = maps.Clone(v)
			}
			whole[name] = one
		}
		if whole != nil {
			return whole, true
		}
	case []any:
		var whole []any
		for i, element := range v {
			one, changed := Whole(element)
			if !changed {
				continue
			}
			if whole == nil {
				whole = slices.Clone(v)
			}
			whole[i] = one
		}
		if whole != nil {
			return whole, true
		}
	}
	return value, false
}
