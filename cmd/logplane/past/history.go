package past

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/logplane/logplane/cmd/logplane/printable"
	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/moment"
	"github.com/logplane/logplane/internal/sides"
)

func newHistory() *cobra.Command {
	output := ""
	cmd := ofObject(&cobra.Command{
		Use:     "history (KIND/NAME | KIND NAME)",
		Short:   "List the versions of an object, newest first: who changed what and when",
		Long:    "Lists the versions of an object that are kept, newest first, through deletions: who wrote each, when, by which\n" + "field manager, and which fields have changed.",
		Example: "  logplane history deploy/web\n  logplane history configmap settings -n shop -o yaml",
	}, func(ctx context.Context, t *tool, object string) error {
		return t.history(ctx, object, output)
	})
	cmd.Flags().StringVarP(&output, "output", "o", "", "'json' or 'yaml' prints the whole list, with the JSON patch of each change")
	return cmd
}

// history prints the versions of an object, newest first.
func (t *tool) history(ctx context.Context, object, output string) error {
	if err := checkOutput(output, "", "json", "yaml"); err != nil {
		return err
	}
	list, err := t.live.Versions(ctx, t.namespace, object, url.Values{}, func([]history.Version) bool { return false })
	if err != nil {
		return err
	}
	if output != "" {
		return t.print(list, output)
	}
	table := tabwriter.NewWriter(t.out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "REVISION\tTIME\tUSER\tMANAGER\tVERB\tCHANGED")
	for i := range list.Items {
		v := &list.Items[i]
		fmt.Fprintf(table, "%s\t%s (%s)\t%s\t%s\t%s\t%s\n", v.Name, v.CreationTimestamp.Local().Format(time.RFC3339),
			duration.HumanDuration(time.Since(v.CreationTimestamp.Time)), printable.Text(v.Author()), printable.Text(cmp.Or(v.Manager, "-")), v.Verb, printable.Text(v.Summary()))
	}
	return table.Flush()
}

func newShow() *cobra.Command {
	output, at, managedFields := "", "", false
	cmd := ofObject(&cobra.Command{
		Use:     "show (KIND/NAME | KIND NAME) --at MOMENT",
		Short:   "Print an object as it was at a revision, a time or an age",
		Long:    "Prints an object as it was. A MOMENT is\n" + moment.Forms + ",\nor 'now'.",
		Example: "  logplane show deploy/web --at 2h\n  logplane show deploy/web --at 'friday 18:00'",
	}, func(ctx context.Context, t *tool, object string) error {
		return t.show(ctx, object, at, output, managedFields)
	})
	cmd.Flags().StringVar(&at, "at", "now", "the moment: a revision, a time, an age or a day (docs/history.md#any-moment)")
	cmd.Flags().StringVarP(&output, "output", "o", "yaml", "'yaml' or 'json'")
	cmd.Flags().BoolVar(&managedFields, "managed-fields", false, "metadata.managedFields too")
	return cmd
}

// show prints an object as it was at a moment.
func (t *tool) show(ctx context.Context, object, moment, output string, managedFields bool) error {
	if err := checkOutput(output, "yaml", "json"); err != nil {
		return err
	}
	revision, err := t.pinUnlessNow(ctx, moment)
	if err != nil {
		return err
	}
	then, err := sides.At(t.config, revision)
	if err != nil {
		return err
	}
	kinds, err := then.Catalog()
	if err != nil {
		return err
	}
	name, of, _ := strings.Cut(object, "/")
	k, ok := kinds.Named(name)
	if !ok {
		return fmt.Errorf("there was no kind '%s' at %s: 'kubectl api-resources' lists those of today", name, moment)
	}
	found, err := then.Get(ctx, k, t.namespace, of)
	if err != nil {
		return err
	}
	if found == nil && moment == "now" {
		return fmt.Errorf("'%s' does not exist now: 'history %s' lists its versions, if any are kept", object, object)
	}
	if found == nil {
		return fmt.Errorf("'%s' did not exist at %s: 'history %s' lists its versions", object, moment, object)
	}
	if !managedFields {
		found.SetManagedFields(nil)
	}
	return t.print(found.Object, output)
}
