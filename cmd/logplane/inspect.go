package main

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

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/localstack"
	"github.com/logplane/logplane/projection"
)

// inspection opens a cell to read it: the folder of a stopped dev, or the log and bucket of a running cell.
type inspection struct {
	where  connection
	folder string
}

func newInspect() *cobra.Command {
	i := &inspection{where: connection{command: "inspect"}}
	cmd := &cobra.Command{
		Use:   "inspect",
		Short: "Look inside a cell: its root, segments, head, and an object's versions",
		Long: "Reads a cell without its API: '--data DIR' opens the folder of a stopped 'logplane dev', otherwise the\n" +
			"connection flags of 'logplane api' say where the log and the bucket are. Nothing is changed, except by\n" +
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
	i.where.registerPlace(cmd.PersistentFlags())
	cmd.PersistentFlags().StringVar(&i.folder, "data", "", "folder of a stopped 'logplane dev'")
}

type look func(ctx context.Context, c kubestore.Cell, w io.Writer, args []string) error

// run opens the cell, runs f, and closes the cell.
func (i *inspection) run(f look) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) (err error) {
		ctx := cmd.Context()
		if i.folder != "" {
			cell, closeFolder, err := localstack.OpenFolder(ctx, i.folder)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, closeFolder()) }()
			return f(ctx, cell, cmd.OutOrStdout(), args)
		}
		i.where.readOnly = true
		opened, err := i.where.open(ctx)
		if err != nil {
			return err
		}
		defer opened.close()
		return f(ctx, opened.Cell, cmd.OutOrStdout(), args)
	}
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
	fmt.Fprintln(w, printableJSON(text))
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
		fmt.Fprintf(table, "%s\t%d\t%d\t%d-%d\t%s - %s\n", s.Key, s.Rows, s.Bytes, s.MinRevision, s.MaxRevision, printable(s.MinKey), printable(s.MaxKey))
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
	cmd.Flags().StringVarP(&output, "output", "o", "", "'yaml' prints the objects")
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
		userName(r.Author), cmp.Or(printable(r.Author.Agent), "-"), printable(r.RequestID), printable(r.Key))
	return err
}

// userName returns, for a line, who wrote an event and because of whom. Events from before authors were recorded name
// nobody.
func userName(a eventlog.Author) string {
	c := a.Cause
	a.Cause = eventlog.Cause{}
	switch {
	case c.Revision > 0:
		return fmt.Sprintf("%s because of %s at %d", userName(a), userName(eventlog.Author{User: c.User, As: c.As}), c.Revision)
	case a.User == "":
		return "unknown"
	case a.As != "":
		return printable(a.User) + " as " + printable(a.As)
	}
	return printable(a.User)
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
			fmt.Fprintf(w, "# %d bytes that cannot be decoded here (encrypted at rest?): %s\n", len(r.Value), printableError(err))
			continue
		}
		text, err := printableYAML(object)
		if err != nil {
			return fmt.Errorf("print revision %d: %w", r.Revision, err)
		}
		fmt.Fprint(w, text)
	}
	return nil
}

// decode decodes what kubestore writes: protobuf for built-ins, CBOR for custom resources.
func decode(r projection.Row) (runtime.Object, error) {
	if r.ContentType == runtime.ContentTypeCBOR {
		object := &unstructured.Unstructured{}
		_, _, err := cbor.NewSerializer(legacyscheme.Scheme, legacyscheme.Scheme).Decode(r.Value, nil, object)
		return object, err
	}
	object, _, err := legacyscheme.Codecs.UniversalDeserializer().Decode(resources.Unpadded(r.Value), nil, nil)
	return object, err
}
