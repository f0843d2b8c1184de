package timetravel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/logplane/logplane/internal/apiserver/history"
)

// Changes are the flags of 'changes'.
type Changes struct {
	From, To                      string
	Object, Resource, Verb        string
	User, Manager, Labels, Output string
	All, Follow                   bool
}

// Changes prints the changes, oldest first. If it follows, it goes on with new changes as they happen.
func (t *Tool) Changes(ctx context.Context, c Changes) error {
	if err := checkOutput(c.Output, "", "json", "yaml"); err != nil {
		return err
	}
	switch {
	case c.Follow && c.Output != "":
		return errors.New("--follow prints lines: leave out --output, or watch 'changes' of history.logplane.dev")
	case c.Follow && c.To != "":
		return errors.New("--follow goes on: leave out --to")
	}
	namespace, which := t.Namespace, fields.Set{}
	if c.All {
		namespace = ""
	}
	for field, value := range map[string]string{"object": c.Object, "resource": c.Resource, "verb": c.Verb, "user": c.User, "manager": c.Manager} {
		if value != "" {
			which[field] = value
		}
	}
	for _, bound := range [][2]string{{"from", c.From}, {"to", c.To}} {
		field, text := bound[0], bound[1]
		if text == "" {
			continue
		}
		revision, err := t.pin(ctx, text)
		if field == "from" && apierrors.HasStatusCause(err, history.CauseYounger) {
			revision, err = "0", nil // from the cell's beginning
		}
		if err != nil {
			return fmt.Errorf("--%s: %w", field, err)
		}
		which[field] = revision
	}
	list, err := t.changes(ctx, namespace, which, c.Labels)
	if err != nil {
		return err
	}
	if c.Output != "" {
		return t.print(list, c.Output)
	}
	table := tabwriter.NewWriter(t.Out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "REVISION\tTIME\tUSER\tMANAGER\tVERB\tOBJECT\tCHANGED")
	for i := range list.Items {
		t.changeLine(table, &list.Items[i])
	}
	if err := table.Flush(); err != nil || !c.Follow {
		return err
	}
	delete(which, "from")
	return t.follow(ctx, namespace, which, c.Labels, list.ResourceVersion, table)
}

func (t *Tool) changeLine(table *tabwriter.Writer, c *history.Change) {
	object := c.Object.String()
	if c.Object.Namespace != "" {
		object = c.Object.Namespace + " " + object
	}
	fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", c.Name, c.CreationTimestamp.Local().Format(time.RFC3339),
		t.Text(c.Author()), t.Text(cmp.Or(c.Manager, "-")), c.Verb, t.Text(object), t.Text(c.Summary()))
}

// follow prints changes as they happen, until it is interrupted. When a server ends the watch, it resumes from its last
// revision.
func (t *Tool) follow(ctx context.Context, namespace string, which fields.Set, labels, after string, table *tabwriter.Writer) error {
	now, err := t.at("")
	if err != nil {
		return err
	}
	of := now.Dynamic.Resource(history.GroupVersion.WithResource("changes")).Namespace(namespace)
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
	return ctx.Err()
}
