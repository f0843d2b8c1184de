package past

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
	"time"

	"github.com/pmezard/go-difflib/difflib"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/logplane/logplane/cmd/logplane/printable"
	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/moment"
	"github.com/logplane/logplane/internal/sides"
)

// diff says what to compare.
type diff struct {
	from, to string // moments
	object   string // empty for all of the namespace
	all      bool   // all of the cluster
	selector string
	output   string
	// managedFields and status say that these fields are compared too.
	managedFields, status bool
}

func newDiff() *cobra.Command {
	d := diff{to: "now"}
	cmd := command(&cobra.Command{
		Use:   "diff MOMENT [MOMENT] [KIND/NAME | KIND NAME]",
		Short: "Print what differs between two moments",
		Long: "Prints what differs between two moments, the second of which is now unless it is given: of one object, or of all\n" +
			"objects of the namespace. A MOMENT is\n" + moment.Forms + ",\n" +
			"or 'now'. As with 'kubectl diff' the exit code is 0 if there are no differences, 1 if there are, and larger if\n" +
			"something failed.",
		Example: "  logplane diff 2h\n  logplane diff yesterday today\n  logplane diff 1234 1240 deploy/web\n  logplane diff 7d -A -l app=shop",
		Args:    cobra.RangeArgs(1, 4),
	}, func(ctx context.Context, t *tool, args []string) (err error) {
		d.from, args = args[0], args[1:]
		if len(args) > 0 && moment.IsMoment(args[0], time.Now()) {
			d.to, args = args[0], args[1:]
		}
		if d.object, err = parseObject(args); err != nil {
			return err
		}
		return t.diff(ctx, d)
	})
	flags := cmd.Flags()
	flags.BoolVarP(&d.all, "all-namespaces", "A", false, "all of the cluster, instead of the namespace")
	flags.StringVarP(&d.selector, "selector", "l", "", "only objects that have these labels, or had them")
	flags.StringVarP(&d.output, "output", "o", "", "'yaml' or 'json' prints both states of each object, 'patch' a JSON patch a line")
	flags.BoolVar(&d.managedFields, "managed-fields", false, "metadata.managedFields too")
	flags.BoolVar(&d.status, "status", false, "the status too")
	return cmd
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

// diff prints the differences between two moments. It returns ErrDifferent if there are any.
func (t *tool) diff(ctx context.Context, d diff) error {
	if err := checkOutput(d.output, "", "yaml", "json", "patch"); err != nil {
		return err
	}
	if d.object != "" && (d.all || d.selector != "") {
		return fmt.Errorf("'%s' is one object, to which --selector and --all-namespaces do not apply: give the object, or these flags", d.object)
	}
	from, err := t.pinUnlessNow(ctx, d.from)
	if err != nil {
		return err
	}
	to, err := t.pinUnlessNow(ctx, d.to)
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
		if both[i], err = sides.At(t.config, revision); err != nil {
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
				// By default a cell keeps only a short past of Leases, Events and the like. The list of changes has
				// warned the user of the missing versions.
				if of := object.GroupResource(); d.object != "" || !sides.Passing[of] && of != sides.EndpointSlices {
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
	if err := errors.Join(t.printDifferences(found, d.output), errors.Join(missing...)); err != nil {
		return err
	}
	if len(found.Objects) > 0 {
		return ErrDifferent
	}
	return nil
}

// pinUnlessNow returns the revision of a moment, or the empty string for now.
func (t *tool) pinUnlessNow(ctx context.Context, text string) (string, error) {
	if text == "now" {
		return "", nil
	}
	return t.pin(ctx, text)
}

// changedBetween returns the objects that may differ, and the head.
func (t *tool) changedBetween(ctx context.Context, d diff, from, to string) ([]history.Reference, string, error) {
	if d.object != "" {
		newest, err := t.live.Newest(ctx, t.namespace, d.object, url.Values{})
		if err != nil {
			return nil, "", err
		}
		return []history.Reference{newest.Items[0].Object}, newest.ResourceVersion, nil
	}
	if from == "" || to != "" && history.IsAfter(from, to) { // an empty revision is now
		from, to = to, from
	}
	if from == "" { // both sides are now
		return nil, "", nil
	}
	namespace := t.scope(d.all)
	list, err := t.live.Changes(ctx, namespace, fields.Set{"from": from, "to": to}, d.selector)
	if err == nil && len(list.Items) == 0 {
		err = t.checkNamespace(ctx, namespace)
	}
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
func (t *tool) compare(ctx context.Context, d diff, object history.Reference, both [2]*sides.Side) (*difference, error) {
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
			return nil, fmt.Errorf("read %s at %s: %w", object.In(t.namespace), both[i].Revision, err)
		}
		if found != nil {
			*place = folded(found, d)
		}
	}
	if one.Patch = history.PatchBetween(one.Before, one.After); len(one.Patch) == 0 {
		return nil, nil
	}
	return one, nil
}

// kindAt returns the kind of an object in the stored version if both moments serve that version, or else in a version
// that either moment serves.
func (t *tool) kindAt(object history.Reference, both [2]*sides.Side) (sides.Kind, error) {
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
	return sides.Kind{}, fmt.Errorf("%s is of a kind that was served neither at %s nor at %s: name a moment at which it was", object.In(t.namespace), both[0].Revision, both[1].Revision)
}

// folded returns an object without the fields that a diff does not compare.
func folded(object *unstructured.Unstructured, d diff) map[string]any {
	out := object.DeepCopy()
	// An object that is created again gets new values of these fields, so the new values are not differences.
	for _, name := range []string{"resourceVersion", "generation", "uid", "creationTimestamp"} {
		unstructured.RemoveNestedField(out.Object, "metadata", name)
	}
	owners := out.GetOwnerReferences()
	for i := range owners {
		owners[i].UID = ""
	}
	out.SetOwnerReferences(owners)
	if !d.managedFields {
		out.SetManagedFields(nil)
	}
	if !d.status {
		delete(out.Object, "status")
	}
	return out.Object
}

func (t *tool) printDifferences(found differences, output string) error {
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
	_, colour := terminal(t.out)
	for _, one := range found.Objects {
		if one.Object.Group == "" && one.Object.Resource == "secrets" {
			one.Before, one.After = masked(one.Before, one.After, "before"), masked(one.After, one.Before, "after")
		}
		before, err := linesOf(one.Before)
		if err != nil {
			return err
		}
		after, err := linesOf(one.After)
		if err != nil {
			return err
		}
		name := one.Object.In(t.namespace)
		text, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{A: before, B: after, Context: 3,
			FromFile: name, FromDate: "revision " + found.From, ToFile: name, ToDate: "revision " + found.To})
		if err != nil {
			return fmt.Errorf("compare %s: %w", name, err)
		}
		for line := range strings.Lines(printable.Lines(text)) {
			if colour {
				line = coloured(line)
			}
			fmt.Fprint(t.out, line)
		}
	}
	return nil
}

// masked returns a Secret without its values, given its other state. The result shows only which values differ, so that
// somebody who also sees the screen learns no value. 'which' names this state.
func masked(object, other map[string]any, which string) map[string]any {
	out := runtime.DeepCopyJSON(object)
	values, _ := out["data"].(map[string]any)
	others, _ := other["data"].(map[string]any)
	for name, value := range values {
		values[name] = "***"
		if is, ok := others[name]; ok && !reflect.DeepEqual(value, is) {
			values[name] = "*** (" + which + ")"
		}
	}
	unstructured.RemoveNestedField(out, "metadata", "annotations", corev1.LastAppliedConfigAnnotation) // it also has the values
	return out
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

// colours has the escape sequences of lines by the text with which the lines begin; the first such text counts.
var colours = [][2]string{{"+++", "\x1b[1m"}, {"---", "\x1b[1m"}, {"+", "\x1b[32m"}, {"-", "\x1b[31m"}, {"@@", "\x1b[36m"}}

// coloured returns a line of a diff in its colour.
func coloured(line string) string {
	for _, c := range colours {
		if strings.HasPrefix(line, c[0]) {
			return c[1] + strings.TrimSuffix(line, "\n") + "\x1b[0m\n"
		}
	}
	return line
}
