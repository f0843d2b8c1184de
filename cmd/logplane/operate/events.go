package operate

import (
	"context"
	"encoding/json"
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
	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/localstack"
	"github.com/logplane/logplane/projection"
)

// newEvents returns a command that prints events, for operators. It reads the log itself, so it needs the log's
// credentials or the folder of a running 'logplane dev'. Users without credentials or folder subscribe to the
// republished subjects, or watch through the API.
func newEvents() *cobra.Command {
	var (
		from   = eventSource{where: cells.Connection{Command: "events"}}
		filter eventFilter
		after  uint64
		output string
	)
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Print the events of the log as they come, or from a revision on",
		Long: "Prints one line for each event of the log: revision, time, what happened, the object, and who did it; never its content.\n" +
			"With --from it begins with the events after a revision, from the bucket and the log, and goes on without a gap.\n\n" +
			"'--data DIR' is the folder of a running 'logplane dev', and the kubeconfig that dev wrote leads there too: the one\n" +
			"that kubectl uses is taken where nothing else is given. Of any other cell --nats and --bucket say where it is:\n" +
			"the API does not tell the log's events, so no other kubeconfig is enough.",
		Example: "  logplane events --data ~/.logplane --namespace default",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return fmt.Errorf("--output is '%s': it must be 'json' or empty", output)
			}
			cell, leave, err := from.open(cmd.Context())
			if err != nil {
				return err
			}
			defer leave()
			filter.cluster = from.where.Cluster
			printer := &eventPrinter{to: cmd.OutOrStdout(), json: output == "json", filter: filter}
			return printEvents(cmd.Context(), cell, eventlog.Revision(after), printer)
		},
	}
	from.where.RegisterPlace(cmd.Flags())
	from.where.RegisterCluster(cmd.Flags())
	cmd.Flags().StringVar(&from.folder, "data", "", "folder of a running 'logplane dev', instead of --nats and --bucket")
	cmd.Flags().StringVar(&from.kubeconfig, "kubeconfig", "", "kubeconfig of a running 'logplane dev'; without it, the one that kubectl uses, unless --bucket is given")
	cmd.Flags().StringVarP(&filter.namespace, "namespace", "n", "", "print only events of objects in this namespace")
	cmd.Flags().StringVar(&filter.resource, "resource", "", "print only events of this resource, for example 'configmaps' or 'deployments.apps'")
	cmd.Flags().Uint64Var(&after, "from", 0, "begin after this revision; 0 for what comes from now on")
	cmd.Flags().StringVarP(&output, "output", "o", "", "'json' prints a JSON document a line")
	return cmd
}

// eventSource says where the events are: in a running 'logplane dev', or in a cell's log and bucket.
type eventSource struct {
	where              cells.Connection
	folder, kubeconfig string
}

func (s *eventSource) open(ctx context.Context) (cell kubestore.Cell, leave func(), err error) {
	folder, err := s.runningFolder()
	if err != nil {
		return kubestore.Cell{}, nil, err
	}
	if folder != "" {
		return localstack.Attach(ctx, folder)
	}
	s.where.ReadOnly = true
	opened, err := s.where.Open(ctx)
	if err != nil {
		return kubestore.Cell{}, nil, err
	}
	return opened.Cell, opened.Close, nil
}

// runningFolder returns the folder of the 'logplane dev' that the flags mean, or "" if the flags mean no dev.
func (s *eventSource) runningFolder() (string, error) {
	if s.folder != "" || s.kubeconfig == "" && s.where.Bucket != "" {
		return s.folder, nil
	}
	folder, err := localstack.FolderOf(s.kubeconfig)
	if err != nil {
		return "", err
	}
	if folder == "" {
		return "", errors.New("nothing says where the log is, because the API does not show its events and no kubeconfig of a 'logplane dev' was found: set KUBECONFIG as 'logplane dev' " +
			"prints it, or give --data with the folder of a running one, or --nats and --bucket")
	}
	return folder, nil
}

// printEvents prints the past after a revision and then follows the log. If the log purges events meanwhile,
// printEvents reads those events from the bucket. It ends only if the revision is below the floor.
func printEvents(ctx context.Context, cell kubestore.Cell, from eventlog.Revision, p *eventPrinter) error {
	for {
		v, err := cell.Projection.Latest(ctx)
		if err != nil {
			return err
		}
		if from == 0 {
			from = v.Revision()
		}
		if from > v.Revision() {
			return fmt.Errorf("--from is %d, which does not exist yet, because the head is %d: give an older revision", from, v.Revision())
		}
		if err := printPast(ctx, v, from, p); err != nil {
			return err
		}
		from = max(from, v.Revision())
		err = cell.Log.Follow(ctx, eventlog.Position{Revision: from}, func(b eventlog.Batch) error {
			for _, e := range b {
				from = e.Revision
				if err := p.printValid(ctx, cell.Projection, e); err != nil {
					return err
				}
			}
			return nil
		})
		if !errors.Is(err, eventlog.ErrPurged) {
			return err
		}
	}
}

// printPast prints the events after a revision, up to the view's revision.
func printPast(ctx context.Context, v *projection.View, after eventlog.Revision, p *eventPrinter) error {
	for e, err := range v.EventsOf(ctx, projection.Keys{}, after, v.Revision()) {
		if errors.Is(err, projection.ErrExpired) {
			return fmt.Errorf("--from %d is older than what the cell keeps: %w", after, err)
		}
		if err != nil {
			return fmt.Errorf("read the events after %d: %w", after, err)
		}
		if err := p.print(e); err != nil {
			return err
		}
	}
	return nil
}

// eventFilter says which events are printed. An empty namespace means all namespaces, and an empty resource all
// resources.
type eventFilter struct{ cluster, namespace, resource string }

func (f eventFilter) matches(k eventlog.Key) bool {
	return k.Cluster == f.cluster && (f.namespace == "" || k.Namespace == f.namespace) &&
		(f.resource == "" || resourceName(k) == f.resource)
}

// resourceName returns a resource as kubectl writes it: with its group, if it has one.
func resourceName(k eventlog.Key) string {
	return schema.GroupResource{Group: k.Group, Resource: k.Resource}.String()
}

type eventPrinter struct {
	to     io.Writer
	json   bool
	filter eventFilter
}

// printedEvent is a line of '--output json'. Revisions are strings, as resourceVersions are.
type printedEvent struct {
	Revision  string `json:"revision"`
	Time      string `json:"time"`
	Type      string `json:"type"`
	Resource  string `json:"resource"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	User      string `json:"user,omitempty"`
	ActingAs  string `json:"actingAs,omitempty"`
	UserAgent string `json:"userAgent,omitempty"`
	RequestID string `json:"requestID"`
	// Cause is as in the API's versions of an object.
	Cause *history.Cause `json:"cause,omitempty"`
}

// printValid prints an event of the log unless it is void. To find out whether the event is void, the projection reads
// up to the head, so the events of a burst are read together.
func (p *eventPrinter) printValid(ctx context.Context, cell *projection.Projection, e eventlog.Event) error {
	if e.Op == eventlog.Barrier || !p.filter.matches(e.Key) {
		return nil
	}
	valid, err := cell.Valid(ctx, &e)
	if err != nil || !valid {
		return err
	}
	return p.print(e)
}

func (p *eventPrinter) print(e eventlog.Event) error {
	if e.Op == eventlog.Barrier || !p.filter.matches(e.Key) {
		return nil
	}
	line := printedEvent{
		Revision: fmt.Sprint(e.Revision), Time: e.Time.UTC().Format(time.RFC3339Nano), Type: strings.ToUpper(opName(e.Op)),
		Resource: resourceName(e.Key), Namespace: e.Key.Namespace, Name: e.Key.Name,
		User: e.Author.User, ActingAs: e.Author.As, UserAgent: e.Author.Agent, RequestID: e.RequestID, Cause: history.CauseOf(e.Author),
	}
	if p.json {
		text, err := json.Marshal(line)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(p.to, "%s\n", printable.JSON(text))
		return err
	}
	name := line.Name
	if line.Namespace != "" {
		name = line.Namespace + "/" + name
	}
	_, err := fmt.Fprintf(p.to, "%s %s %-8s %s %s by %s\n", line.Revision, e.Time.UTC().Format(time.RFC3339), line.Type,
		printable.Text(line.Resource), printable.Text(name), userName(e.Author))
	return err
}
