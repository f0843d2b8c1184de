package past

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/logplane/logplane/cmd/logplane/printable"
	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/moment"
)

// changes are the flags of 'changes'.
type changes struct {
	from, to                      string
	object, resource, verb        string
	user, manager, labels, output string
	all, follow                   bool
}

func newChanges() *cobra.Command {
	c := changes{}
	cmd := command(&cobra.Command{
		Use:   "changes [KIND/NAME | KIND NAME]",
		Short: "List what has changed, oldest first, and follow what changes",
		Long: "Lists the changes of the namespace, or of all of the cluster, oldest first: who wrote what, when, by which field\n" +
			"manager, and which fields have changed. They are those of the last hour unless --from says otherwise. --follow\n" +
			"goes on with each change as it happens. A moment is\n" + moment.Forms + ".",
		Example: "  logplane changes -A --follow\n  logplane changes --from 'friday 18:00' --by alice\n  logplane changes deploy/web --from yesterday --to today",
		Args:    cobra.MaximumNArgs(2),
	}, func(ctx context.Context, t *tool, args []string) (err error) {
		if c.object, err = parseObject(args); err != nil {
			return err
		}
		return t.changes(ctx, c)
	})
	flags := cmd.Flags()
	flags.StringVar(&c.from, "from", "", "the moment after which changes are listed; without it, an hour ago (docs/history.md#any-moment)")
	flags.StringVar(&c.to, "to", "", "the moment up to which changes are listed; without it, now (docs/history.md#any-moment)")
	flags.BoolVarP(&c.follow, "follow", "f", false, "go on with what changes from now on, until interrupted")
	flags.BoolVarP(&c.all, "all-namespaces", "A", false, "all of the cluster, instead of the namespace")
	flags.StringVarP(&c.labels, "selector", "l", "", "only objects that have these labels, or had them")
	flags.StringVar(&c.resource, "resource", "", "only changes of this resource, such as deployments.apps")
	flags.StringVar(&c.verb, "verb", "", "only changes by 'create', 'update' or 'delete'")
	flags.StringVar(&c.user, "by", "", "only changes by this user")
	flags.StringVar(&c.manager, "manager", "", "only changes by this field manager")
	flags.StringVarP(&c.output, "output", "o", "", "'json' or 'yaml' prints the whole list, with the JSON patch of each change")
	return cmd
}

// changes prints the changes, oldest first. With --follow it then prints new changes as they happen.
func (t *tool) changes(ctx context.Context, c changes) error {
	if err := checkOutput(c.output, "", "json", "yaml"); err != nil {
		return err
	}
	switch {
	case c.follow && c.output != "":
		return errors.New("--follow prints lines, so it has no --output: leave out one of them, or watch 'changes' of history.logplane.dev")
	case c.follow && c.to != "":
		return errors.New("--follow goes on for ever, so it has no --to: leave out one of them")
	}
	var err error
	if c.from != "" {
		if c.from, err = t.pinBegin(ctx, c.from); err != nil {
			return fmt.Errorf("--from: %w", err)
		}
	}
	if c.to != "" {
		if c.to, err = t.pin(ctx, c.to); err != nil {
			return fmt.Errorf("--to: %w", err)
		}
	}
	namespace, which := t.scope(c.all), fields.Set{"from": c.from, "to": c.to, "object": c.object, "resource": c.resource,
		"verb": c.verb, "user": c.user, "manager": c.manager}
	list, err := t.live.Changes(ctx, namespace, which, c.labels)
	if err != nil {
		return err
	}
	if len(list.Items) == 0 && !c.follow {
		if err := t.checkNamespace(ctx, namespace); err != nil {
			return err
		}
	}
	if c.output != "" {
		return t.print(list, c.output)
	}
	table := tabwriter.NewWriter(t.out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "REVISION\tTIME\tUSER\tMANAGER\tVERB\tOBJECT\tCHANGED")
	for i := range list.Items {
		t.changeLine(table, &list.Items[i])
	}
	if err := table.Flush(); err != nil || !c.follow {
		return err
	}
	delete(which, "from")
	return t.follow(ctx, namespace, which, c.labels, list.ResourceVersion, table)
}

func (t *tool) changeLine(table *tabwriter.Writer, c *history.Change) {
	object := c.Object.String()
	if c.Object.Namespace != "" {
		object = c.Object.Namespace + " " + object
	}
	fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", c.Name, c.CreationTimestamp.Local().Format(time.RFC3339),
		printable.Text(c.Author()), printable.Text(cmp.Or(c.Manager, "-")), c.Verb, printable.Text(object), printable.Text(c.Summary()))
}

// follow prints changes as they happen, until the command is interrupted. When a server ends the watch, follow resumes
// after the last revision that it has seen.
func (t *tool) follow(ctx context.Context, namespace string, which fields.Set, labels, after string, table *tabwriter.Writer) error {
	of := t.live.Dynamic.Resource(history.GroupVersion.WithResource("changes")).Namespace(namespace)
	following, err := watchtools.NewRetryWatcherWithContext(ctx, after, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector, o.LabelSelector, o.AllowWatchBookmarks = which.AsSelector().String(), labels, true
			return of.Watch(ctx, o)
		},
	})
	if err != nil {
		return err
	}
	defer following.Stop()
	for e := range following.ResultChan() {
		switch e.Type {
		case watch.Error:
			return apierrors.FromObject(e.Object)
		case watch.Bookmark:
			continue
		}
		change := &history.Change{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(e.Object.(*unstructured.Unstructured).Object, change); err != nil {
			return fmt.Errorf("read a change: %w", err)
		}
		t.changeLine(table, change)
		if err := table.Flush(); err != nil {
			return err
		}
	}
	return nil // an interrupt is the end that a command without an end has
}
