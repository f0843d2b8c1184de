package past

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/sides"
)

// send sends a plan to the server, which carries the plan out unless the request is a dry run.
func (t *tool) send(ctx context.Context, p history.Plan, dry bool) (history.PlanStatus, error) {
	p.TypeMeta = metav1.TypeMeta{APIVersion: history.GroupVersion.String(), Kind: "Plan"}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&p)
	if err != nil {
		return p.Status, fmt.Errorf("encode the plan: %w", err)
	}
	options := metav1.CreateOptions{}
	if dry {
		options.DryRun = []string{metav1.DryRunAll}
	}
	made, err := t.live.Dynamic.Resource(history.GroupVersion.WithResource("plans")).Create(ctx, &unstructured.Unstructured{Object: fields}, options)
	if err != nil {
		return p.Status, err
	}
	var got history.Plan
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(made.Object, &got); err != nil {
		return p.Status, fmt.Errorf("decode the plan: %w", err)
	}
	return got.Status, nil
}

// carryOut prints the changes of a plan, and lets the server carry the plan out after a yes. It returns the status of
// the dry run, and the status of the plan as carried out.
func (t *tool) carryOut(ctx context.Context, spec history.PlanSpec, yes bool, print func(history.PlanStatus)) (planned, done history.PlanStatus, err error) {
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
	agreed := history.PlanStatus{Revision: planned.Revision} // only what the server compares, because the size of a body is bounded
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

// isWrite says whether a change would write its object.
func isWrite(c history.PlanChange) bool { return c.Verb != "" && c.Left == "" }

// doneLine prints what was done to an object.
func (t *tool) doneLine(c history.PlanChange) {
	if !isWrite(c) {
		return
	}
	said := map[string]string{"create": "created", "update": "updated", "delete": "deleted"}[c.Verb]
	if len(c.Revisions) > 0 && c.Verb == "update" {
		said = "reverted"
	}
	line := c.Object.In(t.namespace) + " was " + said
	if c.ResourceVersion != "" && c.Verb != "delete" {
		line += ", revision " + c.ResourceVersion
	}
	t.line("%s", line)
	t.printNotes(c.Notes)
}

func (t *tool) printNotes(notes []string) {
	for _, note := range notes {
		t.line("  %s", note)
	}
}

// undo says which changes to take back: one change of an object, or all changes by a manager or user since a moment.
type undo struct {
	history.PlanUndo
	all, yes bool
}

func newUndo() *cobra.Command {
	u := undo{}
	cmd := command(&cobra.Command{
		Use:   "undo ((KIND/NAME | KIND NAME) [--revision REVISION] | (--manager MANAGER | --by USER) --since MOMENT)",
		Short: "Take back a change of an object, or all changes of a field manager or user",
		Long: "Takes back exactly the fields that a change has changed: the last change of an object, or that of --revision; or\n" +
			"all changes of a field manager or user since a moment, in the namespace or in all of the cluster. What a change\n" +
			"has created is deleted, what it has deleted is created again. If somebody else has changed one of the fields\n" +
			"since, the object is left alone and named, and the exit code is 1. Changes of the status are not taken back.\n" +
			"What only removes, an object or fields, may name no field manager: --by finds it. What was taken back already is\n" +
			"left as it is.",
		Example: "  logplane undo deploy/web\n  logplane undo deploy/web --revision 1234 --yes\n" +
			"  logplane undo --by alice --since 30m -A",
		Args: cobra.MaximumNArgs(2),
	}, func(ctx context.Context, t *tool, args []string) (err error) {
		if u.Object, err = parseObject(args); err != nil {
			return err
		}
		return t.undo(ctx, u)
	})
	flags := cmd.Flags()
	flags.StringVar(&u.Revision, "revision", "", "the change of the object, as 'history' lists it; without it, the last one")
	flags.StringVar(&u.Manager, "manager", "", "only changes by this field manager")
	flags.StringVar(&u.User, "by", "", "only changes by this user")
	flags.StringVar(&u.Since, "since", "", "the moment after which changes are taken back (docs/history.md#any-moment)")
	flags.BoolVarP(&u.all, "all-namespaces", "A", false, "all of the cluster, instead of the namespace")
	registerYes(flags, &u.yes)
	return cmd
}

func registerYes(flags *pflag.FlagSet, yes *bool) {
	flags.BoolVarP(yes, "yes", "y", false, "carry out the plan without asking")
}

// undo takes changes back. If somebody else has changed the same fields since, that is a conflict, and the object is
// left alone.
func (t *tool) undo(ctx context.Context, u undo) error {
	spec := history.PlanSpec{Namespace: t.scope(u.all), Undo: &u.PlanUndo}
	switch one := u.Object != ""; {
	case one && (u.all || u.Manager != "" || u.User != "" || u.Since != ""):
		return errors.New("an object and flags for many of them were given: name the object, or give --manager or --by with --since")
	case !one && u.Manager == "" && u.User == "":
		return errors.New("nothing says what to take back: name an object, or give --manager or --by with --since")
	case !one && u.Since == "":
		return errors.New("--since is missing: give the moment after which changes are taken back, such as 2h")
	}
	if u.Since != "" {
		var err error
		if u.Since, err = t.pinBegin(ctx, u.Since); err != nil {
			return err
		}
	}
	planned, done, err := t.carryOut(ctx, spec, u.yes, func(p history.PlanStatus) {
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
			t.line("leave %s: %s", c.Object.In(t.namespace), c.Left)
		}
	}
	switch {
	case left > 0:
		return fmt.Errorf("%d of %d objects were left alone, for the reasons above", left, len(done.Changes))
	case len(planned.Changes) == 0:
		t.line("no such change was found: nothing to do")
	}
	return nil
}

// undoLine returns one line of the plan.
func (t *tool) undoLine(c history.PlanChange) string {
	name := c.Object.In(t.namespace)
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

func newUndelete() *cobra.Command {
	yes := false
	cmd := ofObject(&cobra.Command{
		Use:   "undelete (KIND/NAME | KIND NAME)",
		Short: "Create an object again as its last version was",
		Long: "Creates an object again as it was before it was deleted, without what the server sets itself. It has another\n" +
			"uid. References to owners that are not there are left out, and so are addresses that are another's by now.",
		Example: "  logplane undelete secret/registry -n shop --yes",
	}, func(ctx context.Context, t *tool, object string) error {
		return t.undelete(ctx, object, yes)
	})
	registerYes(cmd.Flags(), &yes)
	return cmd
}

// undelete creates an object again as it was in its last version.
func (t *tool) undelete(ctx context.Context, object string, yes bool) error {
	spec := history.PlanSpec{Namespace: t.namespace, Undelete: &history.PlanObject{Object: object}}
	_, done, err := t.carryOut(ctx, spec, yes, func(p history.PlanStatus) {
		for _, c := range p.Changes {
			if c.Verb == "" {
				t.line("%s is there: nothing to do", c.Object.In(t.namespace))
				continue
			}
			t.line("create %s as it was before %s deleted it at revision %s, %s", c.Object.In(t.namespace), c.Author, history.Shorten(c.Revisions),
				c.Time.Local().Format(time.RFC3339))
			t.printNotes(c.Notes)
		}
	})
	for _, c := range done.Changes {
		if err == nil && c.Left != "" {
			err = fmt.Errorf("%s was not created: %s", c.Object.In(t.namespace), c.Left)
		}
	}
	return err
}

// restore says what to restore, and to which moment.
type restore struct {
	history.PlanRestore
	all bool // the whole cluster, not a namespace
	yes bool
}

func newRestore() *cobra.Command {
	r := restore{}
	cmd := command(&cobra.Command{
		Use:   "restore --to MOMENT [--from BUCKET --into NEW]",
		Short: "Make everything in a namespace, or in the cluster, as it was at a moment; or make a new cell of a bucket",
		Long: "Compares all objects at a moment with those of now, and creates, updates and with --prune deletes what differs.\n" +
			"Objects that are created again have new uids, which the references of what they own get, too. A status is not\n" +
			"restored, and what the control plane makes by itself is left to it. What was changed since the plan was made\n" +
			"is left alone. Run it again to go on: what is as it was is not written. The exit code is 1 if something could\n" +
			"not be restored, and the last line says what and why.\n\n" +
			"With --from and --into it makes a new cell instead, of what a cell's bucket has: for when the log is lost, or for\n" +
			"a copy to try things on. No API is asked and no log, and the cell in --from is only read. --into must hold none.\n" +
			"All objects are as they were at the moment, with uids and resourceVersions. The new cell is then given a log by\n" +
			"'logplane init', or served by 'logplane dev' if --into is the folder 'bucket' below its --data. MOMENT 0s is the\n" +
			"newest that the bucket has.",
		Example: "  logplane restore --to 2h -n shop\n  logplane restore --to 1234 -A --prune --yes\n" +
			"  logplane restore --to 2h --from s3://cells/production --into s3://cells/staging\n" +
			"  logplane restore --to 0s --from file:///home/me/.logplane/bucket --into file:///tmp/copy/bucket",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("'%s' is one argument too many, because a namespace is restored: give it as --namespace", args[0])
			}
			return nil
		},
	}, func(ctx context.Context, t *tool, _ []string) error { return t.restore(ctx, r) })
	flags := cmd.Flags()
	flags.StringVar(&r.To, "to", "", "the moment: a revision, a time, an age or a day (docs/history.md#any-moment); for a new cell also 0s, the newest")
	flags.BoolVarP(&r.all, "all-namespaces", "A", false, "all of the cluster, instead of the namespace")
	flags.StringVarP(&r.Selector, "selector", "l", "", "only objects that have these labels, or had them")
	flags.BoolVar(&r.Prune, "prune", false, "delete what came later, too")
	registerYes(flags, &r.yes)
	return cmd
}

// restore brings all objects back to their state at a moment. It can be run again, after a crash or to continue with
// the remaining objects: objects that are already in that state are left alone.
func (t *tool) restore(ctx context.Context, r restore) error {
	switch r.To {
	case "":
		return errors.New("--to is missing: give the moment to go back to, such as 2h")
	case "now":
		return errors.New("everything is as it is now: give --to an earlier moment, such as 2h")
	}
	var err error
	if r.To, err = t.pin(ctx, r.To); err != nil {
		return err
	}
	spec := history.PlanSpec{Namespace: t.scope(r.all), Restore: &r.PlanRestore}
	planned, done, err := t.carryOut(ctx, spec, r.yes, t.printPlan)
	if err != nil {
		return err
	}
	var failures []string
	written := 0
	for _, c := range done.Changes {
		if c.Failed {
			failures = append(failures, c.Object.In(t.namespace)+": "+c.Left)
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
		return fmt.Errorf("not everything is as it was at revision %s: %s; 'restore' can be run again", planned.Revision, strings.Join(failures, "; "))
	}
	return nil
}

func (t *tool) printPlan(p history.PlanStatus) {
	count := map[string]int{}
	for _, c := range p.Changes {
		if isWrite(c) {
			count[c.Verb]++
			t.line("%s %s", c.Verb, c.Object.In(t.namespace))
			t.printNotes(c.Notes)
		}
	}
	for _, c := range p.Changes {
		if c.Left != "" {
			t.line("left out: %s: %s", c.Object.In(t.namespace), c.Left)
		}
	}
	for _, failure := range p.Failures {
		t.line("cannot compare %s", failure)
	}
	t.line("to revision %s: %d to create, %d to update, %d to delete; %d are as they were, %d came later and stay", p.Revision,
		count["create"], count["update"], count["delete"], p.Same, p.Later)
	t.line("left to those who make them: %s", strings.Join(sides.PassingNames(), ", "))
}
