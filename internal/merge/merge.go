// Package merge takes back a change of an object, field by field, even if others have changed the object since. As in
// server-side apply, the schema of the object's kind defines the fields. The items of a list are fields if the schema
// says which keys name the items. An atomic map or list is one value.
package merge

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// None stands for an absent value.
type None struct{}

// element is one step on the way to a value: a field, or the item of a list.
type element struct {
	name string
	list *schema.List // nil if the element is a field
}

// Path is the way from an object to a value in the object. Items are found by name, because their positions change.
type Path []element

// String is the path for people: spec.containers[name=web].image.
func (p Path) String() string {
	var b strings.Builder
	for _, s := range p {
		switch {
		case s.list != nil:
			fmt.Fprintf(&b, "[%s]", s.name)
		case strings.ContainsAny(s.name, "./"):
			fmt.Fprintf(&b, "[%q]", s.name)
		default:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(s.name)
		}
	}
	if b.Len() == 0 {
		return "the object"
	}
	return b.String()
}

func (p Path) with(s element) Path { return append(slices.Clone(p), s) }

// Of returns the value at the path.
func (p Path) Of(value any) any {
	for _, s := range p {
		switch v := value.(type) {
		case map[string]any:
			value = fieldOf(v, s.name)
		case string: // an annotation with a document
			fields, _ := documentIn(v)
			value = fieldOf(fields, s.name)
		case []any:
			value = itemOf(v, s)
		default:
			return None{}
		}
	}
	return value
}

// Reversal takes a change back. It computes the value that there would be now without the change, from three values:
// before the change, after the change, and now. Later changes by others stay.
type Reversal struct {
	// Type is any value of the object's kind.
	Type *typed.TypedValue
	// Undone says that the value at a path is not the value that the change left, but the value before an older change
	// that is also taken back. So after an undo was carried out, the same undo finds nothing to do.
	Undone func(p Path, now any) bool
	// Reverted has the fields that were taken back, and Conflicts has the fields that cannot be taken back.
	Reverted, Conflicts []Path
}

// Object returns the object without the change.
func (r *Reversal) Object(before, after, now any) any {
	return r.value(nil, r.Type.TypeRef(), before, after, now)
}

func (r *Reversal) value(p Path, of schema.TypeRef, before, after, now any) any {
	if reflect.DeepEqual(before, after) || reflect.DeepEqual(now, before) {
		return now
	}
	left := reflect.DeepEqual(now, after) // as the change left it
	if !left && r.Undone != nil && r.Undone(p, now) {
		return now
	}
	if parts := r.parts(p, of, before, after, now); parts != nil {
		if value := parts(); !left {
			return value
		}
		return before // before equals the value, and has the old order
	}
	if left {
		r.Reverted = append(r.Reverted, p)
		return before
	}
	r.Conflicts = append(r.Conflicts, p)
	return now
}

// parts returns a function that takes back the change of a value part by part, or nil if the value cannot be divided.
// An item that the change has created or removed cannot be divided.
func (r *Reversal) parts(p Path, of schema.TypeRef, before, after, now any) func() any {
	if len(p) > 0 && p[len(p)-1].list != nil && (before == any(None{}) || after == any(None{})) {
		return nil
	}
	if p.isLastApplied() {
		return r.document(p, before, after, now)
	}
	known, _ := r.Type.Schema().Resolve(of) // a value of no type cannot be divided
	if fields, ok := allAre[map[string]any](before, after, now); ok && known.Map != nil && known.Map.ElementRelationship != schema.Atomic {
		return func() any { return r.fields(p, known.Map, fields[0], fields[1], fields[2]) }
	}
	if p.isOwners() {
		known.List = &schema.List{ElementType: owner, ElementRelationship: schema.Associative, Keys: []string{"kind", "name"}}
	}
	if items, ok := allAre[[]any](before, after, now); ok && known.List != nil && known.List.ElementRelationship == schema.Associative {
		names := make([][]string, len(items))
		for i := range items {
			if names[i], ok = namesOf(known.List, items[i]); !ok {
				return nil
			}
		}
		if sameOrder(names[0], names[1]) {
			return func() any { return r.items(p, known.List, items[0], items[1], items[2]) }
		}
	}
	return nil
}

// isLastApplied is true for the annotation in which 'kubectl apply' keeps the whole applied object. Each apply changes
// the annotation. So the annotation, taken as one text, would conflict with every undo.
func (p Path) isLastApplied() bool {
	return len(p) == 3 && p[0].name == "metadata" && p[1].name == "annotations" && p[2].name == corev1.LastAppliedConfigAnnotation
}

// isOwners is true for the owner references. The schema names owner references by their uids. But an owner that is
// created again has another uid, and a reference to the new owner still means the same owner.
func (p Path) isOwners() bool {
	return len(p) == 2 && p[0].name == "metadata" && p[1].name == "ownerReferences"
}

// owner is the type of an owner reference: a map of fields.
var owner = schema.TypeRef{Inlined: schema.Atom{Map: &schema.Map{ElementRelationship: schema.Separable}}}

// document takes back a change in texts that are objects of this kind in JSON. It returns nil if one of the texts is
// not such an object.
func (r *Reversal) document(p Path, before, after, now any) func() any {
	var fields [3]map[string]any
	for i, value := range []any{before, after, now} {
		text, _ := value.(string)
		var ok bool
		if fields[i], ok = documentIn(text); !ok {
			return nil
		}
	}
	known, _ := r.Type.Schema().Resolve(r.Type.TypeRef())
	if known.Map == nil {
		return nil
	}
	return func() any {
		text, err := json.Marshal(r.fields(p, known.Map, fields[0], fields[1], fields[2]))
		if err != nil {
			r.Conflicts = append(r.Conflicts, p)
			return now
		}
		return string(text) + "\n" // as kubectl writes it
	}
}

// documentIn returns the object in a JSON text. Its numbers keep their digits.
func documentIn(text string) (map[string]any, bool) {
	var fields map[string]any
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	return fields, strings.HasPrefix(text, "{") && decoder.Decode(&fields) == nil && !decoder.More()
}

// fields takes back a change in the fields of a map.
func (r *Reversal) fields(p Path, of *schema.Map, before, after, now map[string]any) any {
	out, names := map[string]any{}, map[string]any{}
	maps.Copy(out, now)
	maps.Copy(names, before)
	maps.Copy(names, after)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		field := of.ElementType
		if known, ok := of.FindField(name); ok {
			field = known.Type
		}
		value := r.value(p.with(element{name: name}), field, fieldOf(before, name), fieldOf(after, name), fieldOf(now, name))
		if value == any(None{}) {
			delete(out, name)
		} else {
			out[name] = value
		}
	}
	return out
}

// items takes back a change in the items of a list, which have names.
func (r *Reversal) items(p Path, of *schema.List, before, after, now []any) any {
	out := slices.Clone(now)
	place := func(name string) int {
		return slices.IndexFunc(out, func(item any) bool { return nameOf(of, item) == name })
	}
	var names []string
	for _, item := range slices.Concat(before, after) {
		if name := nameOf(of, item); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		to := element{name: name, list: of}
		value := r.value(p.with(to), of.ElementType, itemOf(before, to), itemOf(after, to), itemOf(now, to))
		i := place(name)
		switch {
		case value == any(None{}):
			if i >= 0 {
				out = slices.Delete(out, i, i+1)
			}
		case i >= 0:
			out[i] = value
		default: // after the item that preceded this item before the change
			at := 0
			for _, item := range before {
				if nameOf(of, item) == name {
					break
				}
				if j := place(nameOf(of, item)); j >= 0 {
					at = j + 1
				}
			}
			out = slices.Insert(out, at, value)
		}
	}
	return out
}

// allAre returns the three values as maps, or as lists. A value that is absent before or after the change becomes an
// empty one.
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

// namesOf returns the names of a list's items, false if two items have the same name.
func namesOf(list *schema.List, items []any) ([]string, bool) {
	names := make([]string, len(items))
	for i, item := range items {
		names[i] = nameOf(list, item)
		if slices.Contains(names[:i], names[i]) {
			return nil, false
		}
	}
	return names, true
}

// nameOf returns the name of an item of a list: the fields that are its key, or in a set the item itself.
func nameOf(list *schema.List, item any) string {
	if len(list.Keys) == 0 {
		return text(item)
	}
	fields, _ := item.(map[string]any)
	parts := make([]string, len(list.Keys))
	for i, key := range list.Keys {
		parts[i] = key + "=" + text(fields[key])
	}
	return strings.Join(parts, ",")
}

// text returns a value as JSON, but returns a plain text unchanged.
func text(value any) string {
	if plain, ok := value.(string); ok && !strings.ContainsAny(plain, `",=[]`) {
		return plain
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value) // the value came from JSON
	}
	return string(encoded)
}

// sameOrder says whether the items that both lists have are in the same order.
func sameOrder(a, b []string) bool {
	common := func(list, other []string) []string {
		return slices.DeleteFunc(slices.Clone(list), func(name string) bool { return !slices.Contains(other, name) })
	}
	return slices.Equal(common(a, b), common(b, a))
}

func fieldOf(fields map[string]any, name string) any {
	if value, ok := fields[name]; ok {
		return value
	}
	return None{}
}

func itemOf(items []any, at element) any {
	for _, item := range items {
		if at.list != nil && nameOf(at.list, item) == at.name {
			return item
		}
	}
	return None{}
}
