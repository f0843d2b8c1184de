package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/localstack"
	"github.com/logplane/logplane/projection"
)

// paired refuses a used log together with a folder that does not exist, before the folder is made by mistake. Other
// faults of the log and the bucket are reported later.
func paired(ctx context.Context, where *connection, config eventlog.Config) error {
	u, err := parseURL("--bucket", where.bucket)
	if err != nil || !lacksFolder(u) {
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
	return notPaired(where, bounds, where.stream)
}

func notPaired(where *connection, log eventlog.Bounds, prefix string) error {
	return fmt.Errorf("the log '%s' holds revisions %d to %d of a cell, and '%s' has no cell below '%s', so the two do not belong together: "+
		"give the --bucket of that cell, or another --stream or --nats; if the bucket was lost, restore it; if only its root was, run 'logplane recover'", where.stream, log.First, log.Head, where.bucket, prefix)
}

// found makes the cell's first root. If the bucket or the log is already in use, it says so, since the user may have
// meant another one.
func found(ctx context.Context, w io.Writer, where *connection, opened *cell, prefix string) error {
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
		fmt.Fprintf(w, "made a cell with the log '%s', below '%s' in '%s'\n", where.stream, prefix, where.bucket)
	} else {
		fmt.Fprintf(w, "found a cell with the log '%s', which holds revisions %d to %d, below '%s' in '%s'\n", where.stream, before.First, before.Head, prefix, where.bucket)
	}
	return nil
}

func newInit() *cobra.Command {
	var (
		where                = connection{command: "init", founds: true}
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
			list, err := parseBodies(bodies)
			if err != nil {
				return err
			}
			if err := where.check(); err != nil {
				return err
			}
			if where.replicas != 1 && where.replicas != 3 && where.replicas != 5 {
				return fmt.Errorf("--replicas is %d: it must be 1, 3 or 5", where.replicas)
			}
			if credentials == "" && cmd.Flags().Changed("external-address") {
				return errors.New("--external-address is for --credentials: give both, or give it to 'api' and 'watcher'")
			}
			var made *localstack.Credentials
			if credentials != "" {
				if made, err = localstack.EnsureCredentials(credentials, address); err != nil {
					return fmt.Errorf("make credentials: %w", err)
				}
				where.rootCA = cmp.Or(where.rootCA, made.Authority)
			}
			config, err := where.dial()
			if err != nil {
				return err
			}
			defer config.Conn.Close()
			if err := paired(ctx, &where, config); err != nil {
				return err
			}
			u, err := parseURL("--bucket", where.bucket)
			if err != nil {
				return err
			}
			isNew := lacksFolder(u) // opening it makes it
			b, prefix, err := where.openBucket(ctx)
			if err != nil {
				return err
			}
			if err := where.ensureBucket(ctx, cmd.OutOrStdout(), b, prefix, isNew); err != nil {
				return err
			}
			if err := eventlog.Create(ctx, config); err != nil {
				return err
			}
			if err := republishBodies(ctx, config, len(bodies) > 0, list, where.encryption); err != nil {
				return err
			}
			opened, err := where.openWith(ctx, config)
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
			server, err := where.inProcess(opened)
			if err != nil {
				return err
			}
			if err := server.Bootstrap(ctx); err != nil {
				return fmt.Errorf("create the objects every cluster has: %w", err)
			}
			if _, err := opened.Projection.Commit(ctx); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "the cell is ready; each NATS server must have 'sync_interval: always' in its jetstream block, which cannot be seen from here:\n"+
				"with the default of two minutes a power cut loses writes that were acknowledged")
			if made != nil {
				fmt.Fprintf(cmd.OutOrStdout(), "give 'api' and 'watcher'\n  %s \\\n  --root-ca-file %s\nand 'lifecycle'\n  --root-ca-file %[2]s\nand use kubectl with\n  export KUBECONFIG=%[3]s\n",
					made.Flags(address), where.rootCA, made.Kubeconfig)
			}
			return nil
		},
	}
	where.register(cmd.Flags())
	where.registerObjects(cmd.Flags())
	where.registerCreate(cmd.Flags())
	cmd.Flags().IntVar(&where.replicas, "replicas", 1, "servers that keep a copy of the log, 1, 3 or 5: 3 in production")
	registerBodies(cmd.Flags(), &bodies)
	cmd.Flags().StringVar(&credentials, "credentials", "", "folder in which to make keys, certificates and a kubeconfig, unless it has them; none by default")
	cmd.Flags().StringVar(&address, "external-address", "localhost:7373", "host and port that clients reach the API under, for --credentials")
	return cmd
}
