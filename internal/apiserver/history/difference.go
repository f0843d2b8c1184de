package history

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
)

// mostOperations is how many operations the patch of a version may have. An object with more changes is better read as
// a whole.
const mostOperations = 200

// difference is a JSON patch from one object to another, in the order of the fields' names. Libraries that make patches
// go through JSON, which alters integers beyond 2^53.
type difference struct {
	operations []Operation
	changed    []string
	// skipped are fields that are not compared.
	skipped []string
	// most is how many operations there may be; cut says that more would be needed.
	most int
	cut  bool
}

// PatchBetween returns the whole difference between two objects as a JSON patch, with the fields that the server keeps
// for itself. An absent object is nil.
func PatchBetween(before, after map[string]any) []Operation {
	d := difference{most: math.MaxInt}
	switch {
	case before == nil && after == nil:
	case before == nil:
		d.add("add", "", after)
	case after == nil:
		d.add("remove", "", nil)
	default:
		d.values("", before, after)
	}
	return d.operations
}

// kept are fields that the server keeps for itself. They change with every write.
var kept = []string{"/metadata/managedFields", "/metadata/resourceVersion", "/metadata/generation"}

func (d *difference) values(at string, a, b any) {
	if d.cut {
		return
	}
	switch before := a.(type) {
	case map[string]any:
		if after, ok := b.(map[string]any); ok {
			d.fields(at, before, after)
			return
		}
	case []any:
		if after, ok := b.([]any); ok {
			d.items(at, before, after)
			return
		}
	}
	if !reflect.DeepEqual(a, b) {
		d.add("replace", at, b)
	}
}

func (d *difference) fields(at string, before, after map[string]any) {
	for _, name := range sets.List(sets.KeySet(before).Union(sets.KeySet(after))) {
		below := at + "/" + escape.Replace(name)
		if slices.Contains(d.skipped, below) {
			continue
		}
		was, had := before[name]
		is, has := after[name]
		switch {
		case !has:
			d.add("remove", below, nil)
		case !had:
			d.add("add", below, is)
		default:
			d.values(below, was, is)
		}
	}
}

// items compares two lists without the equal items at their beginnings and ends.
func (d *difference) items(at string, before, after []any) {
	start := 0
	for start < min(len(before), len(after)) && reflect.DeepEqual(before[start], after[start]) {
		start++
	}
	for len(before) > start && len(after) > start && reflect.DeepEqual(before[len(before)-1], after[len(after)-1]) {
		before, after = before[:len(before)-1], after[:len(after)-1]
	}
	both := min(len(before), len(after))
	for i := start; i < both; i++ {
		d.values(fmt.Sprintf("%s/%d", at, i), before[i], after[i])
	}
	for i := len(before) - 1; i >= both && !d.cut; i-- {
		d.add("remove", fmt.Sprintf("%s/%d", at, i), nil)
	}
	for i := both; i < len(after) && !d.cut; i++ {
		d.add("add", fmt.Sprintf("%s/%d", at, i), after[i])
	}
}

func (d *difference) add(op, at string, value any) {
	if len(d.operations) == d.most {
		d.cut = true
		return
	}
	o := Operation{Op: op, Path: at}
	if op != "remove" {
		o.Value = &runtime.RawExtension{Raw: []byte(encoded(value))}
	}
	d.operations, d.changed = append(d.operations, o), append(d.changed, readable(at))
}

var (
	escape   = strings.NewReplacer("~", "~0", "/", "~1")
	unescape = strings.NewReplacer("~1", "/", "~0", "~")
)

// readable turns '/spec/containers/0/image' into 'spec.containers[0].image'.
func readable(pointer string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		part = unescape.Replace(part)
		switch {
		case part != "" && strings.Trim(part, "0123456789") == "":
			fmt.Fprintf(&b, "[%s]", part)
		case strings.ContainsAny(part, "./"):
			fmt.Fprintf(&b, "[%q]", part)
		default:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(part)
		}
	}
	return b.String()
}
