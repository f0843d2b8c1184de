package serve

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/logplane/logplane/cmd/logplane/cells"
	"github.com/logplane/logplane/cmd/logplane/values"
	"github.com/logplane/logplane/internal/coldstart"
	"github.com/logplane/logplane/internal/memory"
	"github.com/logplane/logplane/localstack"
	"github.com/logplane/logplane/watcher"
)

func newDev() *cobra.Command {
	var (
		c      localstack.Config
		keeps  cells.Retention
		limit  cells.MemoryLimit
		bodies []string
		allow  bool
		eof    bool
	)
	folder, address := defaultFolder(), "127.0.0.1:7373" // unless everything is in memory
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run everything in this process: log, bucket, API, watcher, projector and lifecycle",
		Long: "Runs a whole cell in one process on loopback, storing below one folder. What was written survives a\n" +
			"restart, and a kill at any moment. Every client is an administrator, unless it shows the token of a service\n" +
			"account or --secure is given.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.InMemory { // several such processes may run at once
				c.Listen = cmp.Or(c.Listen, "127.0.0.1:0")
			} else {
				c.Folder, c.Listen = cmp.Or(c.Folder, folder), cmp.Or(c.Listen, address)
			}
			err := cmp.Or(keeps.Settle(), values.CheckAddress("--listen", c.Listen), values.AtLeast("--max-watches-per-user", c.MaxWatches, 0))
			if err != nil {
				return err
			}
			c.LogRetention, c.Retention, c.History, c.HistoryRules, c.Checkpoints = keeps.Log, keeps.Floor, keeps.History, keeps.Rules, keeps.Checkpoints
			c.Flagz, c.ForbidPrivileged = flagzOf(cmd.Flags()), !allow
			c.CacheBytes = memory.Caches(cells.UnlimitedDevMiB)
			limit.Say(cmd.Context(), cmd.Name(), c.CacheBytes)
			if c.EventsBodies, err = cells.ParseBodies(bodies); err != nil {
				return err
			}
			ctx := cmd.Context()
			if eof {
				var stop context.CancelFunc
				ctx, stop = context.WithCancel(ctx)
				defer stop()
				go func() { _, _ = io.Copy(io.Discard, cmd.InOrStdin()); stop() }()
			}
			dev, err := localstack.Start(ctx, c)
			if err != nil {
				return err
			}
			go func() { <-dev.Settled(); coldstart.Over() }()
			defer memory.GiveBack(dev.Rest, dev.Shrink)()
			greet(cmd.OutOrStdout(), dev)
			return waitAndStop(ctx, dev)
		},
	}
	cmd.Flags().StringVar(&c.Folder, "data", "", "folder that holds the log, the bucket, the kubeconfig, and how 'logplane events' reads the log")
	cmd.Flags().Lookup("data").DefValue = folder
	cmd.Flags().StringVar(&c.Listen, "listen", "", "loopback address to serve on; with --in-memory, any free port unless this is given")
	cmd.Flags().Lookup("listen").DefValue = address
	cmd.Flags().StringVar(&c.Kubeconfig, "kubeconfig", "", "file to write the kubeconfig to, as soon as the API answers; without it, a file in the folder of --data. It replaces no file of another program")
	cmd.Flags().BoolVar(&c.Secure, "secure", false, "serve HTTPS and require credentials, under RBAC; the kubeconfig holds an administrator's, 'logplane kubeconfig' makes others")
	cmd.Flags().BoolVar(&c.InMemory, "in-memory", false, "keep nothing: the log and the bucket live in memory. Without --data, keys and kubeconfig are in a temporary folder, which the process removes when it stops")
	cmd.Flags().StringVar(&c.Fixture, "fixture", "", "file of 'logplane fixture save' with the objects that a cell in memory begins with")
	cmd.Flags().StringVar(&c.EventsListen, "events-listen", "", "loopback address where NATS subscribers receive events and can do nothing else; without it, nowhere")
	cmd.Flags().IntVar(&c.MaxWatches, "max-watches-per-user", watcher.DefaultPerUser, "watches that are served at once, 429 beyond: here everybody is one user; 0 for no limit")
	cmd.Flags().BoolVar(&eof, "until-eof", false, "stop when standard input ends: a program that starts this process and keeps a pipe to it open never leaves it behind")
	cells.RegisterPrivileged(cmd.Flags(), &allow)
	limit.Register(cmd.Flags())
	cells.RegisterBodies(cmd.Flags(), &bodies)
	keeps.Register(cmd.Flags())
	return cmd
}

// waitAndStop ends the cell when the command is interrupted or a part of the cell fails.
func waitAndStop(ctx context.Context, dev *localstack.Dev) error {
	failed := make(chan error, 1)
	go func() { failed <- dev.Wait() }()
	select {
	case <-ctx.Done():
		return dev.Stop()
	case err := <-failed:
		_ = dev.Stop()
		return err
	}
}

func greet(w io.Writer, dev *localstack.Dev) {
	events := ""
	if dev.EventsURL() != "" {
		events = fmt.Sprintf("\nEvents are on %s, subjects 'logplane.events.>'\n", dev.EventsURL())
	}
	fmt.Fprintf(w, `Logplane serves the Kubernetes API on %s

  export KUBECONFIG=%s
%s
There are no nodes and no workload controllers behind this API: a Deployment is stored and watched, but
nothing makes Pods of it. Stop with Ctrl-C.
`, dev.URL(), dev.Kubeconfig(), events)
}

func defaultFolder() string {
	home, err := os.UserHomeDir()
	if err != nil {
		return ".logplane"
	}
	return filepath.Join(home, ".logplane")
}
