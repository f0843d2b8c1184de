package merge

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/yaml"
)

// example is of a kind that has each sort of list and map.
var example = func() *typed.TypedValue {
	parser, err := typed.NewParser(`types:
- name: example
  map:
    fields:
    - {name: labels, type: {map: {elementType: {scalar: string}}}}
    - {name: selector, type: {map: {elementType: {scalar: string}, elementRelationship: atomic}}}
    - {name: args, type: {list: {elementType: {scalar: string}, elementRelationship: atomic}}}
    - {name: set, type: {list: {elementType: {scalar: string}, elementRelationship: associative}}}
    - {name: c, type: {list: {elementType: {namedType: item}, elementRelationship: associative, keys: [name]}}}
    - {name: ports, type: {list: {elementType: {namedType: item}, elementRelationship: associative, keys: [port, protocol]}}}
    - {name: metadata, type: {map: {elementType: {namedType: annotations}}}}
    elementType: {scalar: numeric}
- name: item
  map: {elementType: {scalar: untyped}}
- name: annotations
  map: {elementType: {scalar: string}}
`)
	if err != nil {
		panic(err) // constant
	}
	value, err := parser.Type("example").FromYAML("{}")
	if err != nil {
		panic(err) // constant
	}
	return value
}()

// TestReversal takes a change back from an object that others have changed since.
func TestReversal(t *testing.T) {
	for name, c := range map[string]struct {
		before, after, now, want string
		conflicts, reverted      []string
	}{
		"a field": {
			before: `{a: 1, b: 1}`, after: `{a: 2, b: 1}`, now: `{a: 2, b: 9}`, want: `{a: 1, b: 9}`, reverted: []string{"a"},
		},
		"a field that is as it was": {
			before: `{a: 1}`, after: `{a: 2}`, now: `{a: 1, b: 9}`, want: `{a: 1, b: 9}`,
		},
		"a field that somebody else has changed": {
			before: `{a: 1}`, after: `{a: 2}`, now: `{a: 3}`, want: `{a: 3}`, conflicts: []string{"a"},
		},
		"a new object in which somebody else has set a field": {
			before: `{}`, after: `{labels: {a: "1"}}`, now: `{labels: {a: "1", b: "2"}}`, want: `{labels: {b: "2"}}`, reverted: []string{"labels.a"},
		},
		"an object that was removed, and one of the same name since": {
			before: `{labels: {a: "1"}}`, after: `{}`, now: `{labels: {b: "2"}}`, want: `{labels: {a: "1", b: "2"}}`, reverted: []string{"labels.a"},
		},
		"an item that is elsewhere now": {
			before: `{c: [{name: web, image: "1"}]}`, after: `{c: [{name: web, image: "2"}]}`,
			now: `{c: [{name: side, image: "2"}, {name: web, image: "2"}]}`, want: `{c: [{name: side, image: "2"}, {name: web, image: "1"}]}`,
			reverted: []string{"c[name=web].image"},
		},
		"an item that was removed": {
			before: `{c: [{name: a}, {name: b}, {name: c}]}`, after: `{c: [{name: a}, {name: c}]}`,
			now: `{c: [{name: x}, {name: a}, {name: c}]}`, want: `{c: [{name: x}, {name: a}, {name: b}, {name: c}]}`,
			reverted: []string{"c[name=b]"},
		},
		"an item that was added": {
			before: `{c: [{name: a}]}`, after: `{c: [{name: a}, {name: b}]}`,
			now: `{c: [{name: a, x: 1}, {name: b}]}`, want: `{c: [{name: a, x: 1}]}`, reverted: []string{"c[name=b]"},
		},
		"an item that was added, and changed since": {
			before: `{c: [{name: a}]}`, after: `{c: [{name: a}, {name: b, x: 1}]}`,
			now: `{c: [{name: a}, {name: b, x: 2}]}`, want: `{c: [{name: a}, {name: b, x: 2}]}`, conflicts: []string{"c[name=b]"},
		},
		"an item that somebody else has removed": {
			before: `{c: [{name: a, x: 1}, {name: b}]}`, after: `{c: [{name: a, x: 2}, {name: b}]}`,
			now: `{c: [{name: b}]}`, want: `{c: [{name: b}]}`, conflicts: []string{"c[name=a]"},
		},
		"a list without names is one value": {
			before: `{args: [a]}`, after: `{args: [a, b]}`, now: `{args: [a, b], x: 1}`, want: `{args: [a], x: 1}`, reverted: []string{"args"},
		},
		"a list without names that somebody else has changed": {
			before: `{args: [a]}`, after: `{args: [a, b]}`, now: `{args: [a, b, c]}`, want: `{args: [a, b, c]}`, conflicts: []string{"args"},
		},
		"an item of a set": {
			before: `{set: [a, b]}`, after: `{set: [b]}`, now: `{set: [b, c]}`, want: `{set: [a, b, c]}`, reverted: []string{"set[a]"},
		},
		"an item that has two keys": {
			before: `{ports: [{port: 53, protocol: TCP, x: 1}, {port: 53, protocol: UDP, x: 1}]}`,
			after:  `{ports: [{port: 53, protocol: TCP, x: 1}, {port: 53, protocol: UDP, x: 2}]}`,
			now:    `{ports: [{port: 53, protocol: TCP, x: 3}, {port: 53, protocol: UDP, x: 2}]}`,
			want:   `{ports: [{port: 53, protocol: TCP, x: 3}, {port: 53, protocol: UDP, x: 1}]}`, reverted: []string{"ports[port=53,protocol=UDP].x"},
		},
		"a list with the same key twice is one value": {
			before: `{c: [{name: a, x: 1}, {name: a, x: 2}]}`, after: `{c: [{name: a, x: 3}, {name: a, x: 2}]}`,
			now: `{c: [{name: a, x: 3}, {name: a, x: 4}]}`, want: `{c: [{name: a, x: 3}, {name: a, x: 4}]}`, conflicts: []string{"c"},
		},
		"an atomic map is one value": {
			before: `{selector: {a: "1"}}`, after: `{selector: {a: "2"}}`, now: `{selector: {a: "2", b: "1"}}`,
			want: `{selector: {a: "2", b: "1"}}`, conflicts: []string{"selector"},
		},
		"what was applied": {
			before: `{metadata: {annotations: {kubectl.kubernetes.io/last-applied-configuration: '{"a":1,"c":[{"name":"x","y":1},{"name":"z"}]}'}}}`,
			after:  `{metadata: {annotations: {kubectl.kubernetes.io/last-applied-configuration: '{"a":1,"c":[{"name":"x","y":2},{"name":"z"}]}'}}}`,
			now:    `{metadata: {annotations: {kubectl.kubernetes.io/last-applied-configuration: '{"a":3,"c":[{"name":"z"},{"name":"x","y":2}]}'}}}`,
			want: `{metadata: {annotations: {kubectl.kubernetes.io/last-applied-configuration: "{\"a\":3,\"c\":[{\"name\":\"z\"},` +
				`{\"name\":\"x\",\"y\":1}]}\n"}}}`,
			reverted: []string{`metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"].c[name=x].y`},
		},
		"an order is one value": {
			before: `{c: [{name: a}, {name: b}]}`, after: `{c: [{name: b}, {name: a}]}`,
			now: `{c: [{name: b}, {name: a}, {name: z}]}`, want: `{c: [{name: b}, {name: a}, {name: z}]}`, conflicts: []string{"c"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Reversal{Type: example}
			got := r.Object(parse(t, c.before), parse(t, c.after), parse(t, c.now))
			require.Equal(t, parse(t, c.want), got)
			require.Equal(t, c.conflicts, texts(r.Conflicts))
			require.Equal(t, c.reverted, texts(r.Reverted))
		})
	}
}

// TestReversalOfMany: changes of one field are taken back newest first. After that, a second undo finds nothing to do,
// although the field does not have the value that the newest change left.
func TestReversalOfMany(t *testing.T) {
	states := []any{parse(t, `{a: 1}`), parse(t, `{a: 2}`), parse(t, `{a: 3}`)}
	older := states[:1]
	now, undo := states[2], func(now any) (any, *Reversal) {
		r := &Reversal{Type: example, Undone: func(p Path, value any) bool { return reflect.DeepEqual(p.Of(older[0]), value) }}
		now = r.Object(states[1], states[2], now)
		return r.Object(states[0], states[1], now), r
	}
	now, r := undo(now)
	require.Equal(t, states[0], now)
	require.Len(t, r.Reverted, 2)
	now, r = undo(now)
	require.Equal(t, states[0], now)
	require.Empty(t, r.Reverted)
	require.Empty(t, r.Conflicts)
	_, r = undo(parse(t, `{a: 9}`))
	require.NotEmpty(t, r.Conflicts)
}

func parse(t *testing.T, text string) any {
	t.Helper()
	var value any
	require.NoError(t, yaml.Unmarshal([]byte(text), &value))
	return value
}

func texts(paths []Path) (all []string) {
	for _, p := range paths {
		all = append(all, p.String())
	}
	return all
}
