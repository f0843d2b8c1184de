package timetravel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/sides"
)

// send sends a plan to the server, which carries it out unless it is a dry run.
func (c *Client) send(ctx context.Context, p history.Plan, dry bool) (history.PlanStatus, error) {
	p.TypeMeta = metav1.TypeMeta{APIVersion: history.GroupVersion.String(), Kind: "Plan"}
	now, err := c.at("")
	if err != nil {
		return p.Status, err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&p)
	if err != nil {
		return p.Status, fmt.Errorf("encode the plan: %w", err)
	}
	options := metav1.CreateOptions{}
	if dry {
		options.DryRun = []string{metav1.DryRunAll}
	}
	made, err := now.Dynamic.Resource(history.GroupVersion.WithResource("plans")).Create(ctx, &unstructured.Unstructured{Object: fields}, options)
	if err != nil {
		return p.Status, err
	}
	var got history.Plan
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(made.Object, &got); err != nil {
		return p.Status, fmt.Errorf("decode the plan: %w", err)
	}
	return got.Status, nil
}

// carryOut prints what a plan would do, and lets the server carry it out after a yes. It returns the status of the dry
// run, and that of the plan as carried out.
func (t *Tool) carryOut(ctx context.Context, spec history.PlanSpec, yes bool, print func(history.PlanStatus)) (planned, done history.PlanStatus, err error) {
	planned, err = t.send(ctx, history.Plan{Spec: spec}, true)
	if err != nil {
		return planned, done, err
	}
	print(planned)
	if !slices.ContainsFunc(planned.Changes, isWrite) {
		return planned, planned, nil
	}
	if err := t.confirm(ctx, yes); err != nil {
		return planned, done, err
	}
	agreed := history.PlanStatus{Revision: planned.Revision} // only what the server compares, because a body is bounded
	for _, c := range planned.Changes {
		if isWrite(c) {
			agreed.Changes = append(agreed.Changes, history.PlanChange{Object: c.Object.Named(), Seen: c.Seen, Revisions: c.Revisions})
		}
	}
	written := map[history.Reference]bool{} // if a later round finds these different, admission has changed them
	for more := true; more; {
		next, err := t.send(ctx, history.Plan{Spec: spec, Status: agreed}, false)
		if err != nil {
			return planned, done, err
		}
		more = next.More && len(next.Changes) > 0
		for _, c := range next.Changes {
			if written[c.Object.Named()] {
				continue
			}
			written[c.Object.Named()] = c.ResourceVersion != ""
			if !more || c.ResourceVersion != "" {
				t.doneLine(c)
				done.Changes = append(done.Changes, c)
			}
		}
	}
	return planned, done, nil
}

// isWrite says that a change would write its object.
func isWrite(c history.PlanChange) bool { return c.Verb != "" && c.Left == "" }

// doneLine prints what was done to an object.
func (t *Tool) doneLine(c history.PlanChange) {
	if !isWrite(c) {
		return
	}
	said := map[string]string{"create": "created", "update": "updated", "delete": "deleted"}[c.Verb]
	if len(c.Revisions) > 0 && c.Verb == "update" {
		said = "reverted"
	}
	line := c.Object.In(t.Namespace) + " was " + said
	if c.ResourceVersion != "" && c.Verb != "delete" {
		line += ", revision " + c.ResourceVersion
	}
	t.line("%s", line)
	t.notes(c.Notes)
}

func (t *Tool) notes(notes []string) {
	for _, note := range notes {
		t.line("  %s", note)
	}
}

// Undo says which changes to take back: one change of an object, or all of a manager or user since a moment.
type Undo struct {
	history.PlanUndo
	All bool
	Yes bool
}

// Undo takes changes back. If somebody else has changed the same fields since, that is a conflict, and the object is
// left alone.
func (t *Tool) Undo(ctx context.Context, u Undo) error {
	spec := history.PlanSpec{Namespace: t.Namespace, Undo: &u.PlanUndo}
	switch one := u.Object != ""; {
	case one && (u.All || u.Manager != "" || u.User != "" || u.Since != ""):
		return errors.New("name an object, or --manager or --by with --since, and not both")
	case !one && u.Manager == "" && u.User == "":
		return errors.New("name what to take back: an object, or the changes of --manager or --by")
	case !one && u.Since == "":
		return errors.New("give --since with the moment from which on changes are taken back, such as 2h")
	case u.All:
		spec.Namespace = ""
	}
	if u.Since != "" {
		since, err := t.pin(ctx, u.Since)
		if apierrors.HasStatusCause(err, history.CauseYounger) {
			since, err = "0", nil // from the cell's beginning
		}
		if err != nil {
			return err
		}
		u.Since = since
	}
	planned, done, err := t.carryOut(ctx, spec, u.Yes, func(p history.PlanStatus) {
		for _, c := range p.Changes {
			t.line("%s", t.undoLine(c))
		}
	})
	if err != nil {
		return err
	}
	left := 0
	for _, c := range done.Changes {
		if c.Left != "" {
			left++
		}
		if c.Failed {
			t.line("leave %s: %s", c.Object.In(t.Namespace), c.Left)
		}
	}
	switch {
	case left > 0:
		return fmt.Errorf("%d of %d objects were left alone: 'history' and 'diff' show what stands against it", left, len(done.Changes))
	case len(planned.Changes) == 0:
		t.line("no such change was made: nothing to do")
	}
	return nil
}

// undoLine returns one line of the plan.
func (t *Tool) undoLine(c history.PlanChange) string {
	name := c.Object.In(t.Namespace)
	of := "revision "
	if len(c.Revisions) > 1 {
		of = "revisions "
	}
	of += history.Shorten(c.Revisions)
	switch {
	case c.Left != "":
		return fmt.Sprintf("leave %s: %s", name, c.Left)
	case c.Verb == "update":
		return fmt.Sprintf("revert %s: %s (%s)", name, cmp.Or(history.Shorten(c.Fields), "all"), of)
	case c.Verb == "create":
		return fmt.Sprintf("create %s as it was before (%s)", name, of)
	case c.Verb == "delete":
		return fmt.Sprintf("delete %s (%s)", name, of)
	}
	return fmt.Sprintf("%s is without the change already: nothing to do (%s)", name, of)
}

// Undelete creates an object again as it was in its last version.
func (t *Tool) Undelete(ctx context.Context, object string, yes bool) error {
	spec := history.PlanSpec{Namespace: t.Namespace, Undelete: &history.PlanObject{Object: object}}
	_, done, err := t.carryOut(ctx, spec, yes, func(p history.PlanStatus) {
		for _, c := range p.Changes {
			if c.Verb == "" {
				t.line("%s is there: nothing to do", c.Object.In(t.Namespace))
				continue
			}
			t.line("create %s as it was before %s deleted it at revision %s, %s", c.Object.In(t.Namespace), c.Author, history.Shorten(c.Revisions),
				c.Time.Local().Format(time.RFC3339))
			t.notes(c.Notes)
		}
	})
	for _, c := range done.Changes {
		if err == nil && c.Left != "" {
			err = fmt.Errorf("%s was not created: %s", c.Object.In(t.Namespace), c.Left)
		}
	}
	return err
}

// Restore says what to restore, and to which moment.
type Restore struct {
	history.PlanRestore
	All bool // the whole cluster, not a namespace
	Yes bool
}

// Restore brings everything back to how it was at a moment. It can be run again after a crash, or to continue with the
// rest: objects that are already as they were are left alone.
func (t *Tool) Restore(ctx context.Context, r Restore) error {
	if r.To == "" || r.To == "now" {
		return errors.New("give --to with the moment to go back to, such as 2h")
	}
	var err error
	if r.To, err = t.pin(ctx, r.To); err != nil {
		return err
	}
	spec := history.PlanSpec{Namespace: t.Namespace, Restore: &r.PlanRestore}
	if r.All {
		spec.Namespace = ""
	}
	planned, done, err := t.carryOut(ctx, spec, r.Yes, t.printPlan)
	if err != nil {
		return err
	}
	var failures []string
	written := 0
	for _, c := range done.Changes {
		if c.Failed {
			failures = append(failures, c.Object.In(t.Namespace)+": "+c.Left)
		} else if isWrite(c) {
			written++
		}
	}
	if slices.ContainsFunc(planned.Changes, isWrite) {
		t.line("%d of %d are done", written, written+len(failures))
	}
	if n := len(planned.Failures); n > 0 {
		failures = append(failures, fmt.Sprintf("%d kinds could not be compared, as said above", n))
	}
	if len(failures) > 0 {
		return fmt.Errorf("not all is as it was at revision %s: %s", planned.Revision, strings.Join(failures, "; "))
	}
	return nil
}

func (t *Tool) printPlan(p history.PlanStatus) {
	count := map[string]int{}
	for _, c := range p.Changes {
		if isWrite(c) {
			count[c.Verb]++
			t.line("%s %s", c.Verb, c.Object.In(t.Namespace))
		}
	}
	for _, c := range p.Changes {
		if c.Left != "" {
			t.line("left out: %s: %s", c.Object.In(t.Namespace), c.Left)
		}
	}
	for _, failure := range p.Failures {
		t.line("cannot compare %s", failure)
	}
	t.line("to revision %s: %d to create, %d to update, %d to delete; %d are as they were, %d came later and stay", p.Revision,
		count["create"], count["update"], count["delete"], p.Same, p.Later)
	t.line("left to those who make them: %s", strings.Join(sides.PassingNames(), ", "))
}
