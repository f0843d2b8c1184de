package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/logplane/logplane/cmd/logplane/cells"
	"github.com/logplane/logplane/cmd/logplane/printable"
	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
)

// forgetting is one run of 'logplane forget'.
type forgetting struct {
	inspection
	namespace           string
	stopped, again, yes bool
}

func newForget() *cobra.Command {
	f := &forgetting{inspection: inspection{where: cells.Connection{Command: "forget"}}}
	cmd := &cobra.Command{
		Use:   "forget OBJECT...",
		Short: "Remove every old version of objects from log and bucket for good",
		Long: "Removes what an object was: all versions of a deleted object, and all but the newest of one that is there.\n" +
			"They leave the log and every file of the bucket: segments, archive and checkpoints. OBJECT is RESOURCE/NAME, such\n" +
			"as 'secrets/pasted' or 'deployments.apps/web', or a storage path as 'inspect history' takes it.\n\n" +
			"All other objects stay as they are, and the cell is served meanwhile. Revisions from before the object's last\n" +
			"change cannot be listed or watched any more: such clients get 410 and list again. '/at/…' reads them without the\n" +
			"object, as far as --history and --checkpoints reach; without --history, older versions of all objects go there.\n" +
			"It waits until no stalled writer can be left, " + untilSettled.String() + ", unless all are stopped. It reads all of the bucket\n" +
			"twice, the second time to see that nothing is left. If it is interrupted, run it again.\n\n" +
			"Not forgotten is what has left the cell: copies and versions of the bucket, audit logs, what subscribers and\n" +
			"clients have received, and a stream of bodies ('init --events-bodies').\n" +
			"'--data DIR' is the folder of a stopped 'logplane dev'; of any other cell --nats and --bucket say where it is.",
		Example: "  kubectl delete secret pasted --namespace shop\n" +
			"  logplane forget secrets/pasted --namespace shop --data ~/.logplane --yes",
		Args: cobra.MinimumNArgs(1),
		RunE: f.inspection.run(f.forget),
	}
	f.register(cmd)
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "namespace of the objects that are given as RESOURCE/NAME")
	cmd.Flags().BoolVar(&f.stopped, "writers-stopped", false, "do not wait for a stalled writer: every process that writes is stopped (docs/run/history.md#forgetting)")
	cmd.Flags().BoolVar(&f.again, "again", false, "go on even if no version is found: what was to be forgotten before is removed wherever it is left")
	cmd.Flags().BoolVar(&f.yes, "yes", false, "do it, instead of saying what would be done")
	return cmd
}

// untilSettled is how long a writer may still append after it has read its view.
var untilSettled = eventlog.MinRetention(cells.RequestDeadline)

func (f *forgetting) forget(ctx context.Context, cell kubestore.Cell, w io.Writer, args []string) error {
	var keys []string
	for _, object := range args {
		key, err := rowKey(cell, object, f.namespace)
		if err != nil {
			return err
		}
		if err := f.print(ctx, cell, w, object, key); err != nil {
			return err
		}
		keys = append(keys, key)
	}
	if !f.yes {
		return errors.New("nothing was forgotten, because --yes is missing: give it to go on")
	}
	settled := untilSettled
	if f.stopped || f.folder != "" {
		settled = 0
	} else {
		fmt.Fprintf(w, "waiting %s, until no stalled writer can be left\n", settled)
	}
	done, err := cell.Projection.Forget(ctx, keys, settled)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "forgotten: %d versions; %d objects of the bucket were written anew and %d deleted, and none has such a version now\n", done.Versions, done.Objects, done.Collected)
	fmt.Fprintf(w, "the oldest revision that can be listed or watched is %d\n", done.Floor)
	return nil
}

// rowKey returns the row key of an object that is given as RESOURCE/NAME or as a storage path.
func rowKey(cell kubestore.Cell, object, namespace string) (string, error) {
	if strings.HasPrefix(object, "/") {
		return cell.Cluster + object, nil
	}
	resource, name, ok := strings.Cut(object, "/")
	if !ok || resource == "" || name == "" || strings.Contains(name, "/") {
		return "", fmt.Errorf("'%s' does not name an object: give RESOURCE/NAME, such as 'secrets/pasted' or 'deployments.apps/web'", object)
	}
	of := schema.ParseGroupResource(resource)
	if err := cells.CheckResource(of); err != nil {
		return "", err
	}
	stores, err := cells.StoresOf(resources.Config{Cell: cell})
	if err != nil {
		return "", err
	}
	return stores.Key(of, namespace, name).RowKey(), nil
}

// print prints which versions of an object would be forgotten.
func (f *forgetting) print(ctx context.Context, cell kubestore.Cell, w io.Writer, object, key string) error {
	rows, err := cell.Projection.History(ctx, key)
	if err != nil {
		return err
	}
	if len(rows) == 0 && !f.again {
		return fmt.Errorf("no version of '%s' is kept: check its name, and that --namespace is given if it has one; if it was to be forgotten before, and that was interrupted, give --again",
			strings.TrimPrefix(key, cell.Cluster))
	}
	if len(rows) == 0 {
		fmt.Fprintf(w, "%s: no version of it is found; what may be left of it goes\n", printable.Text(object))
		return nil
	}
	v, err := cell.Projection.Latest(ctx)
	if err != nil {
		return err
	}
	newest, live, err := v.Get(ctx, key, v.Revision())
	if err != nil {
		return err
	}
	oldest := rows[len(rows)-1]
	if !live {
		fmt.Fprintf(w, "%s: it is deleted, and all of its %d versions go, from revision %d of %s on\n", printable.Text(object), len(rows), oldest.Revision, oldest.Time.UTC().Format(time.RFC3339))
		return nil
	}
	fmt.Fprintf(w, "%s: it is there, so that revision %d stays: delete it first if it is to go. %d older versions go, from revision %d of %s on\n",
		printable.Text(object), newest.Revision, len(rows)-1, oldest.Revision, oldest.Time.UTC().Format(time.RFC3339))
	return nil
}
