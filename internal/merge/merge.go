// Package merge takes a change of an object back that others have changed since, field by field.
package merge

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// None stands for a value that is not there.
type None struct{}

// element is one part of the way to a value: a field, or the item of a list whose field has a value.
type element struct {
	field string
	item  any // nil if it is a field
}

// Path is the way from an object to a value in it. Items are found by what names them, because their places change.
type Path []element

// String is the path for people: spec.containers[name=web].image.
func (p Path) String() string {
	var b strings.Builder
	for _, s := range p {
		switch {
		case s.item != nil:
			fmt.Fprintf(&b, "[%s=%v]", s.field, s.item)
		case strings.ContainsAny(s.field, "./"):
			fmt.Fprintf(&b, "[%q]", s.field)
		default:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(s.field)
		}
	}
	if b.Len() == 0 {
		return "the object"
	}
	return b.String()
}

func (p Path) with(s element) Path { return append(slices.Clone(p), s) }

// Of returns what is at the path.
func (p Path) Of(value any) any {
	for _, s := range p {
		var next any = None{}
		switch v := value.(type) {
		case map[string]any:
			if field, ok := v[s.field]; ok && s.item == nil {
				next = field
			}
		case string: // an annotation with a document
			if fields, ok := documentIn(v); ok && s.item == nil {
				next = fieldOf(fields, s.field)
			}
		case []any:
			for _, item := range v {
				if fields, ok := item.(map[string]any); ok && s.item != nil && reflect.DeepEqual(fields[s.field], s.item) {
					next = item
				}
			}
		}
		value = next
	}
	return value
}

// Reversal takes a change back. It has the value before the change, the one after it, and the one that is there now,
// and makes of the latter what it would be without the change. What somebody else has changed since stays as it is.
type Reversal struct {
	// Undone says that the value at a path is not what the change left, but what it was before an older change that is
	// taken back too. So an undo that was carried out finds nothing to do.
	Undone func(p Path, now any) bool
	// Reverted and Conflicts are the fields that were taken back, and those that cannot be.
	Reverted, Conflicts []Path
}

// Value returns what shall be at the path.
func (r *Reversal) Value(p Path, before, after, now any) any {
	if reflect.DeepEqual(before, after) || reflect.DeepEqual(now, before) {
		return now
	}
	left := reflect.DeepEqual(now, after) // as the change left it
	if !left && r.Undone != nil && r.Undone(p, now) {
		return now
	}
	if parts := r.parts(p, before, after, now); parts != nil {
		if value := parts(); !left {
			return value
		}
		return before // the same, and in the same order
	}
	if left {
		r.Reverted = append(r.Reverted, p)
		return before
	}
	r.Conflicts = append(r.Conflicts, p)
	return now
}

// parts returns how the value is taken back part by part, nil if it is one thing. An item that the change has made or
// removed is one.
func (r *Reversal) parts(p Path, before, after, now any) func() any {
	isItem := len(p) > 0 && p[len(p)-1].item != nil
	if isItem && (before == any(None{}) || after == any(None{})) {
		return nil
	}
	if len(p) > 0 && p[len(p)-1].field == LastApplied {
		return r.document(p, before, after, now)
	}
	if fields, ok := allAre[map[string]any](before, after, now); ok {
		return func() any { return r.object(p, fields[0], fields[1], fields[2]) }
	}
	if items, ok := allAre[[]any](before, after, now); ok {
		if by := Identity(items...); by != "" && sameOrder(items[0], items[1], by) {
			return func() any { return r.list(p, by, items[0], items[1], items[2]) }
		}
	}
	return nil
}

// LastApplied is the annotation in which 'kubectl apply' keeps the whole of what was applied. Each apply changes it, so
// that as one text it would stand against every undo.
const LastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// document takes back what has changed in texts that are objects in JSON. It returns nil if one is not.
func (r *Reversal) document(p Path, before, after, now any) func() any {
	var fields [3]map[string]any
	for i, value := range []any{before, after, now} {
		text, _ := value.(string)
		var ok bool
		if fields[i], ok = documentIn(text); !ok {
			return nil
		}
	}
	return func() any {
		text, err := json.Marshal(r.object(p, fields[0], fields[1], fields[2]))
		if err != nil {
			r.Conflicts = append(r.Conflicts, p)
			return now
		}
		return string(text) + "\n" // as kubectl writes it
	}
}

// documentIn is the object that a text is in JSON. Its numbers keep their digits.
func documentIn(text string) (map[string]any, bool) {
	var fields map[string]any
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	return fields, strings.HasPrefix(text, "{") && decoder.Decode(&fields) == nil && !decoder.More()
}

// object takes back what has changed in the fields of an object.
func (r *Reversal) object(p Path, before, after, now map[string]any) any {
	out := map[string]any{}
	for name, value := range now {
		out[name] = value
	}
	names := map[string]bool{}
	for name := range before {
		names[name] = true
	}
	for name := range after {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		value := r.Value(p.with(element{field: name}), fieldOf(before, name), fieldOf(after, name), fieldOf(now, name))
		if value == any(None{}) {
			delete(out, name)
		} else {
			out[name] = value
		}
	}
	return out
}

// list takes back what has changed in the items of a list that have names.
func (r *Reversal) list(p Path, by string, before, after, now []any) any {
	out := slices.Clone(now)
	place := func(name any) int {
		return slices.IndexFunc(out, func(item any) bool { return reflect.DeepEqual(nameOf(item, by), name) })
	}
	var names []any
	for _, item := range slices.Concat(before, after) {
		if name := nameOf(item, by); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		to := Path{{field: by, item: name}}
		value := r.Value(p.with(to[0]), to.Of(before), to.Of(after), to.Of(now))
		i := place(name)
		switch {
		case value == any(None{}):
			if i >= 0 {
				out = slices.Delete(out, i, i+1)
			}
		case i >= 0:
			out[i] = value
		default: // after the item that it came after
			at := 0
			for _, item := range before {
				if reflect.DeepEqual(nameOf(item, by), name) {
					break
				}
				if j := place(nameOf(item, by)); j >= 0 {
					at = j + 1
				}
			}
			out = slices.Insert(out, at, value)
		}
	}
	return out
}

// allAre returns three objects, or three lists. One that was not there before or after the change is an empty one.
func allAre[T any](before, after, now any) ([]T, bool) {
	all := make([]T, 3)
	missing := 0
	for i, value := range []any{before, after, now} {
		v, ok := value.(T)
		if !ok && value != any(None{}) {
			return nil, false
		}
		if !ok {
			missing++
		}
		all[i] = v
	}
	return all, missing == 0 || missing == 1 && now != any(None{})
}

// identities are the fields by which upstream's lists are merged.
var identities = []string{"name", "key", "type", "mountPath", "devicePath", "containerPort", "port", "ip", "uid", "topologyKey"}

// Identity returns the field that names the items of all lists, empty if there is none.
func Identity(lists ...[]any) string {
	for _, by := range identities {
		if !slices.ContainsFunc(lists, func(list []any) bool { return !names(list, by) }) {
			return by
		}
	}
	return ""
}

// names says whether each item has the field, with a value of its own.
func names(list []any, by string) bool {
	seen := map[any]bool{}
	for _, item := range list {
		name := nameOf(item, by)
		switch name.(type) {
		case string, int64, float64, json.Number:
		default:
			return false
		}
		if seen[name] {
			return false
		}
		seen[name] = true
	}
	return true
}

func nameOf(item any, by string) any {
	fields, ok := item.(map[string]any)
	if !ok {
		return nil
	}
	return fields[by]
}

// sameOrder says whether the items that are in both lists stand in the same order.
func sameOrder(a, b []any, by string) bool {
	common := func(list, other []any) (out []any) {
		for _, item := range list {
			name := nameOf(item, by)
			if slices.ContainsFunc(other, func(o any) bool { return reflect.DeepEqual(nameOf(o, by), name) }) {
				out = append(out, name)
			}
		}
		return out
	}
	return reflect.DeepEqual(common(a, b), common(b, a))
}

func fieldOf(object map[string]any, name string) any {
	if value, ok := object[name]; ok {
		return value
	}
	return None{}
}
