package timetravel

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/logplane/logplane/internal/apiserver/history"
)

// History prints the versions of an object, newest first.
func (t *Tool) History(ctx context.Context, object, output string) error {
	if err := checkOutput(output, "", "json", "yaml"); err != nil {
		return err
	}
	list, err := t.versions(ctx, object, url.Values{}, func([]history.Version) bool { return false })
	if err != nil {
		return err
	}
	if output != "" {
		return t.print(list, output)
	}
	table := tabwriter.NewWriter(t.Out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "REVISION\tTIME\tUSER\tMANAGER\tVERB\tCHANGED")
	for i := range list.Items {
		v := &list.Items[i]
		fmt.Fprintf(table, "%s\t%s (%s)\t%s\t%s\t%s\t%s\n", v.Name, v.CreationTimestamp.Local().Format(time.RFC3339),
			duration.HumanDuration(time.Since(v.CreationTimestamp.Time)), t.Text(v.Author()), t.Text(cmp.Or(v.Manager, "-")), v.Verb, t.Text(v.Summary()))
	}
	return table.Flush()
}

// Show prints an object as it was at a moment.
func (t *Tool) Show(ctx context.Context, object, moment, output string, managedFields bool) error {
	if err := checkOutput(output, "yaml", "json"); err != nil {
		return err
	}
	revision, err := t.pinUnlessNow(ctx, moment)
	if err != nil {
		return err
	}
	then, err := t.at(revision)
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
	found, err := then.Get(ctx, k, t.Namespace, of)
	if err != nil {
		return err
	}
	if found == nil && moment == "now" {
		return fmt.Errorf("there is no '%s' now: 'history %s' lists its versions, if it ever was", object, object)
	}
	if found == nil {
		return fmt.Errorf("'%s' was not there at %s: 'history %s' lists its versions", object, moment, object)
	}
	if !managedFields {
		found.SetManagedFields(nil)
	}
	return t.print(found.Object, output)
}
