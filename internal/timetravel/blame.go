package timetravel

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	yamlv3 "go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/logplane/logplane/internal/apiserver/history"
)

// blamed says for a value which version made it so: an index into the versions. An object or list has that of the
// version in which it came to be, and its parts have their own.
type blamed struct {
	version int
	fields  map[string]*blamed
	items   []*blamed
}

// Blame prints an object with the version that each line is from.
func (t *Tool) Blame(ctx context.Context, object string, managedFields, status bool) error {
	versions, err := t.contents(ctx, object, t.Namespace, func(all []history.Version) bool {
		return slices.ContainsFunc(all, func(v history.Version) bool { return v.Verb == "create" }) // before it was another life
	})
	if err != nil {
		return err
	}
	if versions[0].Verb == "delete" {
		return fmt.Errorf("'%s' was deleted at revision %s by %s: 'undelete %s' makes it again", object, versions[0].Name, versions[0].Author(), object)
	}
	var tree *blamed
	var last map[string]any
	for i := len(versions) - 1; i >= 0; i-- {
		v := &versions[i]
		if v.Verb == "delete" {
			tree, last = nil, nil
			continue
		}
		content, err := v.Decoded()
		if err != nil {
			return err
		}
		for _, name := range []string{"resourceVersion", "generation"} {
			unstructured.RemoveNestedField(content.Object, "metadata", name)
		}
		if !managedFields {
			content.SetManagedFields(nil)
		}
		if !status {
			delete(content.Object, "status")
		}
		tree, last = blame(tree, last, content.Object, i), content.Object
	}
	return t.printBlame(last, tree, versions)
}

// blame says which version each part of a value is from, if a version has made it of another.
func blame(before *blamed, was, is any, version int) *blamed {
	if before != nil && reflect.DeepEqual(was, is) {
		return before
	}
	out := &blamed{version: version}
	switch value := is.(type) {
	case map[string]any:
		old, same := was.(map[string]any)
		if before != nil && same {
			out.version = before.version
		}
		out.fields = map[string]*blamed{}
		for name, field := range value {
			var known *blamed
			if oldField, ok := old[name]; ok && before != nil {
				known = before.fields[name]
				out.fields[name] = blame(known, oldField, field, version)
				continue
			}
			out.fields[name] = blame(nil, nil, field, version)
		}
	case []any:
		old, same := was.([]any)
		if before != nil && same {
			out.version = before.version
		}
		match := matcher(old, value)
		for i, item := range value {
			if j := match(i); j >= 0 && before != nil && j < len(before.items) {
				out.items = append(out.items, blame(before.items[j], old[j], item, version))
				continue
			}
			out.items = append(out.items, blame(nil, nil, item, version))
		}
	}
	return out
}

// matcher returns which item of the old list an item of the new one was: by its name, or else by its value, each once.
func matcher(old, value []any) func(int) int {
	used := map[int]bool{}
	find := func(same func(int) bool) int {
		for j := range old {
			if !used[j] && same(j) {
				used[j] = true
				return j
			}
		}
		return -1
	}
	by := identity(old, value)
	return func(i int) int {
		return find(func(j int) bool {
			if by != "" {
				return old[j].(map[string]any)[by] == value[i].(map[string]any)[by]
			}
			return reflect.DeepEqual(old[j], value[i])
		})
	}
}

// identity is a field that names each item of both lists, empty if there is none. Blame guesses it, as the schema of a
// former version is not always at hand; nothing is written by it.
func identity(lists ...[]any) string {
	for _, by := range []string{"name", "key", "type", "mountPath", "devicePath", "containerPort", "port", "ip", "uid", "topologyKey"} {
		named := true
		for _, list := range lists {
			seen := map[any]bool{}
			for _, item := range list {
				fields, _ := item.(map[string]any)
				switch name := fields[by].(type) {
				case string, int64, float64:
					named = named && !seen[name]
					seen[name] = true
				default:
					named = false
				}
			}
		}
		if named {
			return by
		}
	}
	return ""
}

// printBlame prints the YAML, and before each line the version of what stands there.
func (t *Tool) printBlame(object map[string]any, tree *blamed, versions []history.Version) error {
	text, err := yaml.Marshal(object)
	if err != nil {
		return fmt.Errorf("print as YAML: %w", err)
	}
	var document yamlv3.Node
	if err := yamlv3.Unmarshal(text, &document); err != nil {
		return fmt.Errorf("print as YAML: %w", err)
	}
	lines, err := linesOf(object)
	if err != nil {
		return err
	}
	of := make([]int, len(lines)+1)
	for i := range of {
		of[i] = -1
	}
	if len(document.Content) > 0 {
		place(of, document.Content[0], tree)
	}
	oldest := len(versions) - 1
	table := tabwriter.NewWriter(t.Out, 0, 0, 1, ' ', 0)
	current := oldest
	for i, line := range lines {
		if of[i+1] >= 0 { // a text of many lines has one node
			current = of[i+1]
		}
		v := &versions[current]
		revision := v.Name
		if current == oldest && v.Verb != "create" { // what was before is no longer kept
			revision = "<=" + revision
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t| %s\n", revision, v.CreationTimestamp.UTC().Format(time.RFC3339), t.Text(v.Author()), t.Text(strings.TrimSuffix(line, "\n")))
	}
	return table.Flush()
}

// place notes for each line that a node of the YAML begins the version that it is from.
func place(lines []int, node *yamlv3.Node, tree *blamed) {
	if tree == nil {
		return
	}
	note := func(line, version int) {
		if lines[line] < 0 {
			lines[line] = version
		}
	}
	switch node.Kind {
	case yamlv3.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if field := tree.fields[node.Content[i].Value]; field != nil {
				note(node.Content[i].Line, field.version)
				place(lines, node.Content[i+1], field)
			}
		}
	case yamlv3.SequenceNode:
		for i, item := range node.Content {
			if i < len(tree.items) {
				if item.Kind == yamlv3.ScalarNode || len(item.Content) == 0 {
					note(item.Line, tree.items[i].version)
				}
				place(lines, item, tree.items[i])
			}
		}
	case yamlv3.ScalarNode:
		note(node.Line, tree.version)
	}
}
