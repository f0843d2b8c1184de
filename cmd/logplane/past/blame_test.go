package past

import (
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// TestBlame follows fields and items of lists through three versions, though the items change places.
func TestBlame(t *testing.T) {
	var tree *blamed
	var last any
	for version, text := range []string{
		`{a: 1, list: [{name: x, v: 1}, {name: z, v: 1}], args: [p, q]}`,
		`{a: 1, b: 1, list: [{name: new}, {name: x, v: 1}, {name: z, v: 2}], args: [p, r, q]}`,
		`{a: 3, b: 1, list: [{name: z, v: 2}, {name: x, v: 1}], args: [q]}`,
	} {
		value := parse(t, text)
		tree, last = blame(tree, last, value, version), value
	}
	require.Equal(t, 2, tree.fields["a"].version)
	require.Equal(t, 1, tree.fields["b"].version)
	list := tree.fields["list"]
	require.Equal(t, 0, list.version)
	require.Equal(t, 0, list.items[0].fields["name"].version)
	require.Equal(t, 1, list.items[0].fields["v"].version)
	require.Equal(t, 0, list.items[1].fields["v"].version)
	require.Equal(t, 0, tree.fields["args"].items[0].version)
}

// TestMasked: a diff of Secrets says which values have changed, but shows no value.
func TestMasked(t *testing.T) {
	object := func(text string) map[string]any { return parse(t, text).(map[string]any) }
	before, after := object(`{data: {same: a, other: b, gone: c}}`), object(`{data: {same: a, other: x, new: y}}`)
	require.Equal(t, object(`{data: {same: "***", other: "*** (before)", gone: "***"}}`), masked(before, after, "before"))
	require.Equal(t, object(`{data: {same: "***", other: "*** (after)", new: "***"}}`), masked(after, before, "after"))
	require.Equal(t, object(`{data: {same: a, other: x, new: y}}`), after, "the state itself is as it was")
	require.Nil(t, masked(nil, after, "before"))
	require.Equal(t, object(`{data: {new: "***"}}`), masked(object(`{data: {new: y}}`), nil, "after"))
}

// TestColoured: a line of a diff has the colour of its kind, and other lines have none.
func TestColoured(t *testing.T) {
	for line, want := range map[string]string{
		"--- configmaps/a\trevision 1": "\x1b[1m--- configmaps/a\trevision 1\x1b[0m\n",
		"+++ configmaps/a\trevision 2": "\x1b[1m+++ configmaps/a\trevision 2\x1b[0m\n",
		"@@ -1,3 +1,3 @@":              "\x1b[36m@@ -1,3 +1,3 @@\x1b[0m\n",
		"-  v: 1":                      "\x1b[31m-  v: 1\x1b[0m\n",
		"+  v: 2":                      "\x1b[32m+  v: 2\x1b[0m\n",
		"   kind: ConfigMap":           "   kind: ConfigMap\n",
	} {
		require.Equal(t, want, coloured(line+"\n"))
	}
}

func parse(t *testing.T, text string) any {
	t.Helper()
	var value any
	require.NoError(t, yaml.Unmarshal([]byte(text), &value))
	return value
}
