package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/logplane/logplane/cmd/logplane/cells"
	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/localstack"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
)

// paired refuses a used log together with a folder that does not exist, before the folder is made by mistake. Other
// faults of the log and the bucket are reported later.
func paired(ctx context.Context, where *cells.Connection, config eventlog.Config) error {
	if !where.LacksFolder() {
		return nil
	}
	log, err := eventlog.Open(ctx, config)
	if err != nil {
		return nil
	}
	unused, err := log.Unused(ctx)
	if err != nil || unused {
		return err
	}
	bounds, err := log.Extent(ctx)
	if err != nil {
		return err
	}
	return notPaired(where, bounds, where.Stream)
}

func notPaired(where *cells.Connection, log eventlog.Bounds, prefix string) error {
	return fmt.Errorf("the log '%s' holds revisions %d to %d of a cell, and '%s' has no cell below '%s', so the two do not belong together: "+
		"give the --bucket of that cell, or another --stream or --nats; if the bucket was lost, restore it; if only its root was, run 'logplane recover'", where.Stream, log.First, log.Head, where.Bucket, prefix)
}

// found makes the cell's first root. If the bucket or the log is already in use, found says so, since the user may have
// meant another bucket or log.
func found(ctx context.Context, w io.Writer, where *cells.Connection, opened *cells.Cell, prefix string) error {
	before, err := opened.Log.Extent(ctx)
	if err != nil {
		return err
	}
	made, err := opened.Projection.Found(ctx)
	if errors.Is(err, projection.ErrNoRoot) {
		return notPaired(where, before, prefix)
	}
	if err != nil {
		return err
	}
	if made {
		fmt.Fprintf(w, "made a cell with the log '%s', below '%s' in '%s'\n", where.Stream, prefix, where.Bucket)
	} else {
		fmt.Fprintf(w, "found a cell with the log '%s', which holds revisions %d to %d, below '%s' in '%s'\n", where.Stream, before.First, before.Head, prefix, where.Bucket)
	}
	return nil
}

// ensureBucket finds the bucket, or creates it if that is allowed. It proves that the bucket supports all operations
// that a cell needs, and prints the result.
func ensureBucket(ctx context.Context, w io.Writer, where *cells.Connection, b bucket.Bucket, prefix string, folderIsNew bool) error {
	made, err := where.ProveBucket(ctx, b, prefix)
	if err != nil {
		return err
	}
	verb := "found"
	if made || folderIsNew {
		verb = "made"
	}
	fmt.Fprintf(w, "%s the bucket '%s', which does all that is asked of one, as far as a probe shows\n", verb, where.Bucket)
	return nil
}

func newInit() *cobra.Command {
	var (
		where                = cells.Connection{Command: "init", Founds: true}
		bodies               []string
		credentials, address string
	)
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make a cell: the log's stream, a probe of the bucket, and the objects every cluster has",
		Long: "Makes the stream if it is missing, proves that the bucket does all that is asked of one (conditional writes above\n" +
			"all), and creates the namespaces, roles and priority classes that every cluster has. It says what it found and\n" +
			"what it made, and may be run again at any time. An S3 bucket is made only with --create-bucket.\n\n" +
			"With --credentials it also makes an authority, a certificate of the server, the key that signs tokens of service\n" +
			"accounts, and a kubeconfig of an administrator. What is in that folder already is used and never replaced.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			list, err := cells.ParseBodies(bodies)
			if err != nil {
				return err
			}
			if err := where.Check(); err != nil {
				return err
			}
			if where.Replicas != 1 && where.Replicas != 3 && where.Replicas != 5 {
				return fmt.Errorf("--replicas is %d: it must be 1, 3 or 5", where.Replicas)
			}
			if credentials == "" && cmd.Flags().Changed("external-address") {
				return errors.New("--external-address is for --credentials: give both, or give it to 'api' and 'watcher'")
			}
			var made *localstack.Credentials
			if credentials != "" {
				if made, err = localstack.EnsureCredentials(credentials, address); err != nil {
					return fmt.Errorf("make credentials: %w", err)
				}
				where.RootCA = cmp.Or(where.RootCA, made.Authority)
			}
			config, err := where.Dial()
			if err != nil {
				return err
			}
			defer config.Conn.Close()
			if err := paired(ctx, &where, config); err != nil {
				return err
			}
			isNew := where.LacksFolder() // opening the bucket makes the folder
			b, prefix, err := where.OpenBucket(ctx)
			if err != nil {
				return err
			}
			if err := ensureBucket(ctx, cmd.OutOrStdout(), &where, b, prefix, isNew); err != nil {
				return err
			}
			if err := eventlog.Create(ctx, config); err != nil {
				return err
			}
			if err := cells.RepublishBodies(ctx, config, len(bodies) > 0, list, where.Encryption); err != nil {
				return err
			}
			opened, err := where.OpenWith(ctx, config)
			if err != nil {
				return err
			}
			if first, err := opened.Projection.Begin(ctx); err != nil {
				return err
			} else if first > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "the cell was restored: its log begins at revision %d\n", first)
			}
			if err := found(ctx, cmd.OutOrStdout(), &where, opened, prefix); err != nil {
				return err
			}
			server, err := where.InProcess(opened, apiserver.Config{})
			if err != nil {
				return err
			}
			if err := server.Bootstrap(ctx); err != nil {
				return fmt.Errorf("create the objects every cluster has: %w", err)
			}
			if _, err := opened.Projection.Commit(ctx); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "the cell is ready. Each NATS server must have 'sync_interval: always' in its jetstream block, which cannot be seen from here: "+
				"with the default of two minutes a power cut loses writes that were acknowledged")
			if made != nil {
				fmt.Fprintf(cmd.OutOrStdout(), "give 'api' and 'watcher'\n  %s \\\n  --root-ca-file %s\nand 'lifecycle'\n  --root-ca-file %[2]s\nand use kubectl with\n  export KUBECONFIG=%[3]s\n",
					made.Flags(address), where.RootCA, made.Kubeconfig)
			}
			return nil
		},
	}
	where.Register(cmd.Flags())
	where.RegisterObjects(cmd.Flags())
	where.RegisterCreate(cmd.Flags())
	cmd.Flags().IntVar(&where.Replicas, "replicas", 1, "servers that keep a copy of the log: 1, 3 or 5; 3 in production")
	cells.RegisterBodies(cmd.Flags(), &bodies)
	cmd.Flags().StringVar(&credentials, "credentials", "", "folder in which to make keys, certificates and an administrator's kubeconfig, unless it has them (docs/run/serving.md)")
	cmd.Flags().StringVar(&address, "external-address", "localhost:7373", "host and port that clients reach the API under, for --credentials")
	return cmd
}
