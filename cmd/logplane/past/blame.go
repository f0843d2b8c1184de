package past

import (
	"context"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	yamlv3 "go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/logplane/logplane/cmd/logplane/printable"
	"github.com/logplane/logplane/internal/apiserver/history"
)

// blamed has the index of the version that gave a value its content. For an object or a list, this is the version that
// created the object or list; each part has a version of its own.
type blamed struct {
	version int
	fields  map[string]*blamed
	items   []*blamed
}

func newBlame() *cobra.Command {
	managedFields, status := false, false
	cmd := ofObject(&cobra.Command{
		Use:     "blame (KIND/NAME | KIND NAME)",
		Short:   "Print an object, and for each line who wrote it, when, and at which revision",
		Long:    "Prints an object, and before each line the revision since which it is so, its time, and who wrote it. A revision\n" + "that begins with '<=' is the oldest that is kept: what was before it is not known.",
		Example: "  logplane blame deploy/web",
	}, func(ctx context.Context, t *tool, object string) error {
		return t.blame(ctx, object, managedFields, status)
	})
	cmd.Flags().BoolVar(&managedFields, "managed-fields", false, "metadata.managedFields too")
	cmd.Flags().BoolVar(&status, "status", false, "the status too")
	return cmd
}

// blame prints an object, and before each line the version that the line is from.
func (t *tool) blame(ctx context.Context, object string, managedFields, status bool) error {
	list, err := t.live.Versions(ctx, t.namespace, object, url.Values{"include": {"object"}, "limit": {"50"}}, func(all []history.Version) bool {
		return slices.ContainsFunc(all, func(v history.Version) bool { return v.Verb == "create" }) // the versions before are of an earlier object
	})
	if err != nil {
		return err
	}
	versions := list.Items
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

// blame returns the versions of the parts of a value, given the versions of that value's parts in the version before.
func blame(before *blamed, was, is any, version int) *blamed {
	if before == nil {
		before, was = &blamed{version: version}, nil // the value is new
	}
	if reflect.DeepEqual(was, is) {
		return before
	}
	out := &blamed{version: version}
	switch value := is.(type) {
	case map[string]any:
		old, same := was.(map[string]any)
		if same {
			out.version = before.version
		}
		out.fields = map[string]*blamed{}
		for name, field := range value {
			out.fields[name] = blame(before.fields[name], old[name], field, version)
		}
	case []any:
		old, same := was.([]any)
		if same {
			out.version = before.version
		}
		match := matcher(old, value)
		for i, item := range value {
			var known *blamed
			var former any
			if j := match(i); j >= 0 {
				known, former = before.items[j], old[j]
			}
			out.items = append(out.items, blame(known, former, item, version))
		}
	}
	return out
}

// matcher returns a function that finds the old item for a new item: by the item's name, or else by its value. The
// function finds each old item once.
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

// identity returns a field that names each item of both lists, or the empty string. Blame guesses that field, because
// the schema of an old version is not always available. The guess is safe because blame writes nothing to the cell.
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

// printBlame prints the YAML, and before each line the version that the line is from.
func (t *tool) printBlame(object map[string]any, tree *blamed, versions []history.Version) error {
	lines, err := linesOf(object)
	if err != nil {
		return err
	}
	var document yamlv3.Node
	if err := yamlv3.Unmarshal([]byte(strings.Join(lines, "")), &document); err != nil {
		return fmt.Errorf("print as YAML: %w", err)
	}
	of := map[int]int{} // versions by line
	place(of, document.Content[0], tree)
	oldest := len(versions) - 1
	table := tabwriter.NewWriter(t.out, 0, 0, 1, ' ', 0)
	current := oldest
	for i, line := range lines {
		if version, ok := of[i+1]; ok { // a text of many lines has one node
			current = version
		}
		v := &versions[current]
		revision := v.Name
		if current == oldest && v.Verb != "create" { // older versions are no longer kept
			revision = "<=" + revision
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t| %s\n", revision, v.CreationTimestamp.Local().Format(time.RFC3339), printable.Text(v.Author()), printable.Text(strings.TrimSuffix(line, "\n")))
	}
	return table.Flush()
}

// place records, for each line on which a node of the YAML begins, the version that the node is from.
func place(lines map[int]int, node *yamlv3.Node, tree *blamed) {
	if tree == nil {
		return
	}
	note := func(line, version int) {
		if _, known := lines[line]; !known {
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
