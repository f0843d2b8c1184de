package timetravel

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/sides"
)

// Diff says what to compare.
type Diff struct {
	From, To string // moments
	Object   string // empty for all of the namespace
	All      bool   // all of the cluster
	Selector string
	Output   string
	// ManagedFields and Status say that these fields are compared too.
	ManagedFields, Status bool
}

// atOnce is how many requests a command sends at once.
const atOnce = 8

// difference is an object that differs between two revisions.
type difference struct {
	Object history.Reference   `json:"object"`
	Before map[string]any      `json:"before,omitempty"`
	After  map[string]any      `json:"after,omitempty"`
	Patch  []history.Operation `json:"patch"`
}

// differences is a whole diff, for programs.
type differences struct {
	From    string       `json:"from"`
	To      string       `json:"to"`
	Objects []difference `json:"objects"`
}

// Diff prints the differences between two moments. It returns ErrDifferent if there are any.
func (t *Tool) Diff(ctx context.Context, d Diff) error {
	if err := checkOutput(d.Output, "", "yaml", "json", "patch"); err != nil {
		return err
	}
	if d.Object != "" && (d.All || d.Selector != "") {
		return fmt.Errorf("'%s' is one object: give it, or --selector, or --all-namespaces", d.Object)
	}
	from, err := t.pinUnlessNow(ctx, d.From)
	if err != nil {
		return err
	}
	to, err := t.pinUnlessNow(ctx, d.To)
	if err != nil {
		return err
	}
	objects, head, err := t.changedBetween(ctx, d, from, to)
	if err != nil {
		return err
	}
	from, to = cmp.Or(from, head), cmp.Or(to, head)
	found := differences{From: from, To: to, Objects: []difference{}}
	var both [2]*sides.Side
	for i, revision := range []string{from, to} {
		if both[i], err = t.at(revision); err != nil {
			return err
		}
	}
	each, missing := make([]*difference, len(objects)), make([]error, len(objects))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i, object := range objects {
		group.Go(func() (err error) {
			each[i], err = t.compare(ctx, d, object, both)
			if apierrors.IsResourceExpired(err) { // by a history rule: the moments themselves are kept
				// By default only a little is kept of Leases, Events and the like. The list of changes has warned of
				// that.
				if of := object.GroupResource(); d.Object != "" || !sides.Passing[of] && of != sides.EndpointSlices {
					missing[i] = err
				}
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, one := range each {
		if one != nil {
			found.Objects = append(found.Objects, *one)
		}
	}
	if err := errors.Join(t.printDifferences(found, d.Output), errors.Join(missing...)); err != nil {
		return err
	}
	if len(found.Objects) > 0 {
		return ErrDifferent
	}
	return nil
}

// pinUnlessNow returns the revision of a moment, or the empty string for now.
func (t *Tool) pinUnlessNow(ctx context.Context, text string) (string, error) {
	if text == "now" {
		return "", nil
	}
	return t.pin(ctx, text)
}

// changedBetween returns the objects that may differ, and the head.
func (t *Tool) changedBetween(ctx context.Context, d Diff, from, to string) ([]history.Reference, string, error) {
	if d.Object != "" {
		newest, err := t.versions(ctx, d.Object, url.Values{"limit": {"1"}}, func([]history.Version) bool { return true })
		if err != nil {
			return nil, "", err
		}
		return []history.Reference{newest.Items[0].Object}, newest.ResourceVersion, nil
	}
	if from == "" || to != "" && history.IsAfter(from, to) { // an empty revision is now
		from, to = to, from
	}
	if from == "" { // both are now
		return nil, "", nil
	}
	namespace := t.Namespace
	if d.All {
		namespace = ""
	}
	which := fields.Set{"from": from}
	if to != "" {
		which["to"] = to
	}
	list, err := t.changes(ctx, namespace, which, d.Selector)
	if err != nil {
		return nil, "", err
	}
	seen := map[history.Reference]bool{}
	for _, c := range list.Items {
		seen[c.Object.Named()] = true
	}
	return slices.SortedFunc(maps.Keys(seen), func(a, b history.Reference) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.String(), b.String()))
	}), list.ResourceVersion, nil
}

// compare returns nil if the object does not differ between the two revisions.
func (t *Tool) compare(ctx context.Context, d Diff, object history.Reference, both [2]*sides.Side) (*difference, error) {
	k, err := t.kindAt(object, both)
	if err != nil {
		return nil, err
	}
	one := &difference{Object: object}
	one.Object.UID = ""
	one.Object.Kind = k.Kind
	for i, place := range []*map[string]any{&one.Before, &one.After} {
		found, err := both[i].Get(ctx, k, object.Namespace, object.Name)
		if err != nil {
			return nil, fmt.Errorf("read %s at %s: %w", object.In(t.Namespace), both[i].Revision, err)
		}
		if found != nil {
			*place = folded(found, d)
		}
	}
	if one.Patch, err = history.PatchBetween(one.Before, one.After); err != nil || len(one.Patch) == 0 {
		return nil, err
	}
	return one, nil
}

// kindAt returns the kind of an object in the stored version if both moments serve it, or else in a version that either
// moment serves.
func (t *Tool) kindAt(object history.Reference, both [2]*sides.Side) (sides.Kind, error) {
	then, err := both[0].Catalog()
	if err != nil {
		return sides.Kind{}, err
	}
	later, err := both[1].Catalog()
	if err != nil {
		return sides.Kind{}, err
	}
	var best sides.Kind
	most := 0
	for _, k := range slices.Concat(later.Kinds, then.Kinds) {
		_, was := then.Find(object.GroupResource(), k.Version)
		_, is := later.Find(object.GroupResource(), k.Version)
		good := 1
		if was && is {
			good += 2
		}
		if k.Stored {
			good++
		}
		if k.GroupResource() == object.GroupResource() && good > most {
			best, most = k, good
		}
	}
	if most > 0 {
		return best, nil
	}
	return sides.Kind{}, fmt.Errorf("%s is of a kind that was served neither at %s nor at %s: name a moment at which it was", object.In(t.Namespace), both[0].Revision, both[1].Revision)
}

// folded returns an object without the fields that a diff does not compare.
func folded(object *unstructured.Unstructured, d Diff) map[string]any {
	out := object.DeepCopy()
	// An object that is created again gets these anew, so they are not differences.
	for _, name := range []string{"resourceVersion", "generation", "uid", "creationTimestamp"} {
		unstructured.RemoveNestedField(out.Object, "metadata", name)
	}
	owners := out.GetOwnerReferences()
	for i := range owners {
		owners[i].UID = ""
	}
	if len(owners) > 0 {
		out.SetOwnerReferences(owners)
	}
	if !d.ManagedFields {
		out.SetManagedFields(nil)
	}
	if !d.Status {
		delete(out.Object, "status")
	}
	return out.Object
}

func (t *Tool) printDifferences(found differences, output string) error {
	switch output {
	case "yaml", "json":
		return t.print(found, output)
	case "patch":
		for _, one := range found.Objects {
			one.Before, one.After = nil, nil
			line, err := json.Marshal(one)
			if err != nil {
				return fmt.Errorf("print a patch: %w", err)
			}
			t.line("%s", line)
		}
		return nil
	}
	_, coloured := terminal(t.Out)
	for _, one := range found.Objects {
		if one.Object.Group == "" && one.Object.Resource == "secrets" {
			one.Before, one.After = masked(one.Before, one.After)
		}
		before, err := linesOf(one.Before)
		if err != nil {
			return err
		}
		after, err := linesOf(one.After)
		if err != nil {
			return err
		}
		name := one.Object.In(t.Namespace)
		text, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{A: before, B: after, Context: 3,
			FromFile: name, FromDate: "revision " + found.From, ToFile: name, ToDate: "revision " + found.To})
		if err != nil {
			return fmt.Errorf("compare %s: %w", name, err)
		}
		for line := range strings.Lines(text) {
			t.diffLine(strings.TrimSuffix(line, "\n"), coloured)
		}
	}
	return nil
}

// masked returns a Secret before and after, without its values. It shows only which values have changed, so that nobody
// who looks over a shoulder learns more.
func masked(before, after map[string]any) (map[string]any, map[string]any) {
	before, after = runtime.DeepCopyJSON(before), runtime.DeepCopyJSON(after)
	was, _, _ := unstructured.NestedMap(before, "data")
	is, _, _ := unstructured.NestedMap(after, "data")
	for name, value := range was {
		switch other, ok := is[name]; {
		case ok && reflect.DeepEqual(value, other):
			was[name], is[name] = "***", "***"
		case ok:
			was[name], is[name] = "*** (before)", "*** (after)"
		default:
			was[name] = "***"
		}
	}
	for name := range is {
		if _, ok := was[name]; !ok {
			is[name] = "***"
		}
	}
	if was != nil {
		before["data"] = was
	}
	if is != nil {
		after["data"] = is
	}
	for _, object := range []map[string]any{before, after} { // this annotation also has the values
		unstructured.RemoveNestedField(object, "metadata", "annotations", corev1.LastAppliedConfigAnnotation)
	}
	return before, after
}

// linesOf returns the lines of the object's YAML, or none if there is no object.
func linesOf(object map[string]any) ([]string, error) {
	if object == nil {
		return nil, nil
	}
	text, err := yaml.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("print as YAML: %w", err)
	}
	return slices.Collect(strings.Lines(string(text))), nil
}

// diffLine prints a line in the colour for its first characters. It keeps tabs, which the headers have.
func (t *Tool) diffLine(line string, coloured bool) {
	parts := strings.Split(line, "\t")
	for i := range parts {
		parts[i] = t.Text(parts[i])
	}
	line = strings.Join(parts, "\t")
	colour := ""
	switch {
	case !coloured:
	case strings.HasPrefix(line, "+++"), strings.HasPrefix(line, "---"):
		colour = "\x1b[1m"
	case strings.HasPrefix(line, "+"):
		colour = "\x1b[32m"
	case strings.HasPrefix(line, "-"):
		colour = "\x1b[31m"
	case strings.HasPrefix(line, "@@"):
		colour = "\x1b[36m"
	}
	if colour == "" {
		fmt.Fprintln(t.Out, line)
		return
	}
	fmt.Fprintf(t.Out, "%s%s\x1b[0m\n", colour, line)
}
