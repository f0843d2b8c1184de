package operate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/logplane/logplane/cmd/logplane/cells"
	"github.com/logplane/logplane/cmd/logplane/printable"
	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/moment"
	"github.com/logplane/logplane/localstack"
	"github.com/logplane/logplane/projection"
)

// inspection opens a cell to read it: the folder of a stopped dev or serve, or the log and bucket of a running cell.
type inspection struct {
	where  cells.Connection
	folder string
}

func newInspect() *cobra.Command {
	i := &inspection{where: cells.Connection{Command: "inspect"}}
	cmd := &cobra.Command{
		Use:   "inspect",
		Short: "Look inside a cell: its root, segments, head, and an object's versions",
		Long: "Reads a cell without its API: '--data DIR' opens the folder of a stopped 'logplane dev' or 'serve', otherwise\n" +
			"the connection flags of 'logplane api' say where the log and the bucket are. Nothing is changed, except by\n" +
			"'fsck --drop-checkpoint'.",
	}
	i.register(cmd)
	cmd.AddCommand(
		&cobra.Command{Use: "head", Short: "Print the log's first revision and its head", Args: cobra.NoArgs, RunE: i.run(printHead)},
		&cobra.Command{Use: "root", Short: "Print the root that the bucket holds", Args: cobra.NoArgs, RunE: i.run(printRoot)},
		&cobra.Command{Use: "segments", Short: "List the segments that the root names", Args: cobra.NoArgs, RunE: i.run(printSegments)},
		i.newDump(), i.newGet(), i.newHistory(), i.newFsck(),
	)
	return cmd
}

// register adds the flags that say where the cell is, for the command and its subcommands.
func (i *inspection) register(cmd *cobra.Command) {
	i.where.RegisterPlace(cmd.PersistentFlags())
	i.where.RegisterCluster(cmd.PersistentFlags())
	cmd.PersistentFlags().StringVar(&i.folder, "data", "", "folder of a stopped 'logplane dev' or 'serve', instead of --nats, and of --bucket unless that is given")
}

type look func(ctx context.Context, c kubestore.Cell, w io.Writer, args []string) error

// run opens the cell, runs f, and closes the cell.
func (i *inspection) run(f look) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) (err error) {
		ctx := cmd.Context()
		if i.folder != "" && i.where.Bucket != "" {
			return i.apart(ctx, func(c kubestore.Cell) error { return f(ctx, c, cmd.OutOrStdout(), args) })
		}
		if i.folder != "" {
			cell, closeFolder, err := localstack.OpenFolder(ctx, i.folder)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, closeFolder()) }()
			return f(ctx, cell, cmd.OutOrStdout(), args)
		}
		i.where.ReadOnly = true
		opened, err := i.where.Open(ctx)
		if err != nil {
			return err
		}
		defer opened.Close()
		return f(ctx, opened.Cell, cmd.OutOrStdout(), args)
	}
}

// apart opens a cell whose log is below the folder of a stopped 'logplane serve', and whose bucket is elsewhere.
func (i *inspection) apart(ctx context.Context, f func(kubestore.Cell) error) (err error) {
	i.where.ReadOnly = true
	if err := i.where.Check(); err != nil {
		return err
	}
	log, closeLog, err := localstack.OpenFolderLog(i.folder, i.where.SubjectPrefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeLog()) }()
	log.Stream = i.where.Stream
	if err := eventlog.Create(ctx, log); err != nil { // the log's disk may be a new one
		return err
	}
	opened, err := i.where.OpenWith(ctx, log)
	if err != nil {
		return err
	}
	return f(opened.Cell)
}

func printHead(ctx context.Context, c kubestore.Cell, w io.Writer, _ []string) error {
	bounds, err := c.Log.Head(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "first %d\nhead  %d\n", bounds.First, bounds.Head)
	return nil
}

func printRoot(ctx context.Context, c kubestore.Cell, w io.Writer, _ []string) error {
	root, err := c.Projection.Root(ctx)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		return fmt.Errorf("print the root: %w", err)
	}
	fmt.Fprintln(w, printable.JSON(text))
	return nil
}

func printSegments(ctx context.Context, c kubestore.Cell, w io.Writer, _ []string) error {
	root, err := c.Projection.Root(ctx)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "SEGMENT\tROWS\tBYTES\tREVISIONS\tKEYS")
	for _, s := range append(root.Segments, root.Events...) {
		fmt.Fprintf(table, "%s\t%d\t%d\t%d-%d\t%s - %s\n", s.Key, s.Rows, s.Bytes, s.MinRevision, s.MaxRevision, printable.Text(s.MinKey), printable.Text(s.MaxKey))
	}
	return table.Flush()
}

func (i *inspection) newDump() *cobra.Command {
	return &cobra.Command{
		Use:   "dump SEGMENT",
		Short: "Print every row of a segment",
		Args:  cobra.ExactArgs(1),
		RunE: i.run(func(ctx context.Context, c kubestore.Cell, w io.Writer, args []string) error {
			table := newVersions(w)
			if err := c.Projection.Dump(ctx, args[0], table.add); err != nil {
				return err
			}
			return table.Flush()
		}),
	}
}

func (i *inspection) newHistory() *cobra.Command {
	output := ""
	cmd := &cobra.Command{
		Use:   "history PATH",
		Short: "Print the versions of an object, newest first, and who wrote them",
		Long: "PATH is the object's storage path: '/configmaps/NAMESPACE/NAME', '/namespaces/NAME', and\n" +
			"'/GROUP/PLURAL/NAMESPACE/NAME' for a custom resource. As in kube-apiserver, some have other names: nodes are\n" +
			"'/minions/NAME', ingresses '/ingress/…', services '/services/specs/…', their endpoints '/services/endpoints/…',\n" +
			"replication controllers '/controllers/…'. A KEY of the output is a PATH, too.",
		Example: "  logplane inspect history /configmaps/default/greeting --data ~/.logplane --output yaml",
		Args:    cobra.ExactArgs(1),
		PreRunE: func(*cobra.Command, []string) error {
			if output != "" && output != "yaml" {
				return fmt.Errorf("--output is '%s': it must be 'yaml' or empty", output)
			}
			return nil
		},
		RunE: i.run(func(ctx context.Context, c kubestore.Cell, w io.Writer, args []string) error {
			path := storagePath(c.Cluster, args[0])
			rows, err := c.Projection.History(ctx, c.Cluster+path)
			if err != nil {
				return err
			}
			if len(rows) == 0 {
				return fmt.Errorf("no version of '%s' is kept: %s", path, pathForm)
			}
			if output == "yaml" {
				return printBodies(w, rows)
			}
			table := newVersions(w)
			for _, row := range rows {
				if err := table.add(row); err != nil {
					return err
				}
			}
			return table.Flush()
		}),
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "'yaml' prints the objects, instead of a line for each")
	return cmd
}

// storagePath also accepts a KEY of the output, and a path without its first slash.
func storagePath(cluster, path string) string {
	if strings.HasPrefix(path, "/") {
		return path
	}
	return "/" + strings.TrimPrefix(path, cluster+"/")
}

// pathForm ends an error about an object that was not found.
const pathForm = "is it a path such as '/configmaps/NAMESPACE/NAME', '/minions/NAME' for a node, '/ingress/NAMESPACE/NAME'? " +
	"'logplane inspect history --help' has more"

// versions prints rows as a table.
type versions struct{ *tabwriter.Writer }

func newVersions(w io.Writer) versions {
	table := versions{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	fmt.Fprintln(table, "REVISION\tTIME\tEVENT\tBASE\tBYTES\tUSER\tAGENT\tREQUEST\tKEY")
	return table
}

func (v versions) add(r projection.Row) error {
	_, err := fmt.Fprintf(v, "%d\t%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\n",
		r.Revision, r.Time.UTC().Format(time.RFC3339Nano), opName(r.Op), r.Base, len(r.Value),
		userName(r.Author), cmp.Or(printable.Text(r.Author.Agent), "-"), printable.Text(r.RequestID), printable.Text(r.Key))
	return err
}

// userName returns, for a line, the user who wrote an event, and the user who caused that write. For events that are
// older than the recording of authors it returns 'unknown'.
func userName(a eventlog.Author) string {
	c := a.Cause
	a.Cause = eventlog.Cause{}
	switch {
	case c.Revision > 0:
		return fmt.Sprintf("%s because of %s at %d", userName(a), userName(eventlog.Author{User: c.User, As: c.As}), c.Revision)
	case a.User == "":
		return "unknown"
	case a.As != "":
		return printable.Text(a.User) + " as " + printable.Text(a.As)
	}
	return printable.Text(a.User)
}

func opName(op eventlog.Op) string {
	switch op {
	case eventlog.Added:
		return "added"
	case eventlog.Modified:
		return "modified"
	case eventlog.Deleted:
		return "deleted"
	default:
		return "barrier"
	}
}

// printBodies prints each version as a YAML document under a comment that names the version.
func printBodies(w io.Writer, rows []projection.Row) error {
	for _, r := range rows {
		fmt.Fprintf(w, "--- # revision %d, %s by %s, %s\n", r.Revision, opName(r.Op), userName(r.Author), r.Time.UTC().Format(time.RFC3339Nano))
		if r.Deleted {
			continue
		}
		object, err := decode(r)
		if err != nil {
			fmt.Fprintf(w, "# %d bytes that cannot be decoded here (encrypted at rest?): %s\n", len(r.Value), printable.Error(err))
			continue
		}
		text, err := printable.YAML(object)
		if err != nil {
			return fmt.Errorf("print revision %d: %w", r.Revision, err)
		}
		fmt.Fprint(w, text)
	}
	return nil
}

// decode decodes the values that kubestore writes: protobuf for built-ins, CBOR for custom resources.
func decode(r projection.Row) (runtime.Object, error) {
	if r.ContentType == runtime.ContentTypeCBOR {
		object := &unstructured.Unstructured{}
		_, _, err := cbor.NewSerializer(legacyscheme.Scheme, legacyscheme.Scheme).Decode(r.Value, nil, object)
		return object, err
	}
	object, _, err := legacyscheme.Codecs.UniversalDeserializer().Decode(resources.Unpadded(r.Value), nil, nil)
	return object, err
}

func (i *inspection) newGet() *cobra.Command {
	at := ""
	var cmd *cobra.Command
	cmd = &cobra.Command{
		Use:   "get PATH",
		Short: "Print an object as it was at a revision or a time",
		Long: "PATH is the object's storage path, as for 'history'. '--at' is a moment by the log's clock; without it\n" +
			"the newest revision. It is\n" + moment.Forms + ".\n" +
			"What is older than --retention is read from checkpoints and archived events, as far as those reach\n" +
			"(--checkpoints, --history).",
		Example: "  logplane inspect get /configmaps/default/greeting --at 2026-01-31T12:00:00Z --data ~/.logplane",
		Args:    cobra.ExactArgs(1),
		RunE: i.run(func(ctx context.Context, c kubestore.Cell, w io.Writer, args []string) error {
			rev, err := revisionOf(ctx, c.Projection, at, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			path := storagePath(c.Cluster, args[0])
			row, found, err := c.Projection.GetAt(ctx, c.Cluster+path, rev)
			if err != nil {
				return err
			}
			if !found {
				return fmt.Errorf("'%s' did not exist at revision %d: %s", path, rev, pathForm)
			}
			return printBodies(w, []projection.Row{row})
		}),
	}
	cmd.Flags().StringVar(&at, "at", "", "the moment: a revision, a time, an age or a day; without it, the newest revision")
	return cmd
}

// revisionOf parses the value of --at, and prints the revision for which a time stands.
func revisionOf(ctx context.Context, p *projection.Projection, at string, notes io.Writer) (projection.Revision, error) {
	if at == "" {
		v, err := p.Latest(ctx)
		if err != nil {
			return 0, err
		}
		return v.Revision(), nil
	}
	m, err := moment.Parse(at, time.Now())
	if err != nil {
		return 0, fmt.Errorf("--at: %w", err)
	}
	if m.Revision > 0 {
		return projection.Revision(m.Revision), nil
	}
	revision, err := p.RevisionAt(ctx, m.Time)
	if err == nil {
		sayMoment(notes, at, m, revision)
	}
	return revision, err
}

// sayMoment prints the revision and the local time for which a moment stands.
func sayMoment(notes io.Writer, text string, m moment.Moment, revision projection.Revision) {
	fmt.Fprintf(notes, "'%s' is taken for %s, which is revision %d\n", text, m.Time.Local().Format(time.RFC3339), revision)
}

func (i *inspection) newFsck() *cobra.Command {
	var drop []string
	cmd := &cobra.Command{
		Use:   "fsck",
		Short: "Check every byte of the bucket, and that rows, events and log agree",
		Long: "Reads the root, the checkpoints and all segments that they name: checksums, order, bloom filters; that rows and\n" +
			"events are one history without a hole; that what the log still holds is the same. Orphans are garbage that is\n" +
			"collected later, no problem. The exit code is 1 if there is a problem. It may run while the cell is served.\n\n" +
			"--drop-checkpoint takes a checkpoint off the root's list before that: one that is damaged, or that names what is.\n" +
			"The moments of the past that need it cannot be read any more. Nothing else is ever changed.",
		Args: cobra.NoArgs,
		RunE: i.run(func(ctx context.Context, c kubestore.Cell, w io.Writer, _ []string) error {
			for _, key := range drop {
				if err := c.Projection.DropCheckpoint(ctx, key); err != nil {
					return err
				}
				fmt.Fprintf(w, "dropped  %s\n", printable.Text(key))
			}
			problems := 0
			v, err := c.Projection.Verify(ctx, func(problem error) {
				problems++
				fmt.Fprintf(w, "PROBLEM  %s\n", printable.Error(problem))
			})
			if err != nil {
				return err
			}
			fmt.Fprintf(w, "objects  %d\nrows     %d\nevents   %d, of which the log holds %d\norphans  %d, %d bytes\nforeign  %d\n",
				v.Objects, v.Rows, v.Events, v.LogEvents, v.Orphans, v.OrphanBytes, v.Foreign)
			if problems > 0 {
				return fmt.Errorf("fsck found %d problems: see the lines that begin with 'PROBLEM', and docs/run/recover.md", problems)
			}
			fmt.Fprintln(w, "clean")
			return nil
		}),
	}
	cmd.Flags().StringSliceVar(&drop, "drop-checkpoint", nil, "key of a checkpoint that the root shall list no longer, as fsck or doctor has printed it (docs/run/recover.md#checking-a-cell)")
	return cmd
}
