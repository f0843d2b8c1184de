package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/logplane/logplane/internal/apiserver/gate"
	"github.com/logplane/logplane/internal/coldstart"
	"github.com/logplane/logplane/internal/memory"
	"github.com/logplane/logplane/localstack"
)

func newDev() *cobra.Command {
	var (
		c      localstack.Config
		limit  memoryLimit
		bodies []string
		allow  bool
	)
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run everything in this process: log, bucket, API, watcher, projector and lifecycle",
		Long: "Runs a whole cell in one process on loopback, storing below one folder. What was written survives a\n" +
			"restart, and a kill at any moment. Every client is an administrator, unless it shows the token of a service\n" +
			"account or --secure is given.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			settleHistory(c.Retention, &c.History, &c.HistoryRules)
			err := cmp.Or(checkRetention(c.LogRetention, c.Retention, c.History, c.HistoryRules), checkAddress("--listen", c.Listen), atLeast("--max-watches-per-user", c.MaxWatches, 0))
			if err != nil {
				return err
			}
			c.Flagz, c.ForbidPrivileged = flagzOf(cmd.Flags()), !allow
			c.CacheBytes = memory.Caches(unlimitedDevMiB)
			limit.say(cmd.Context(), cmd.Name(), c.CacheBytes)
			if c.EventsBodies, err = parseBodies(bodies); err != nil {
				return err
			}
			dev, err := localstack.Start(cmd.Context(), c)
			if err != nil {
				return err
			}
			go func() { <-dev.Settled(); coldstart.Over() }()
			defer memory.GiveBack(dev.Rest, dev.Shrink)()
			greet(cmd.OutOrStdout(), dev)
			return waitAndStop(cmd, dev)
		},
	}
	cmd.Flags().StringVar(&c.Folder, "data", defaultFolder(), "folder that holds the log, the bucket, the kubeconfig, and how 'logplane events' reads the log")
	cmd.Flags().StringVar(&c.Listen, "listen", "127.0.0.1:7373", "loopback address to serve on")
	cmd.Flags().BoolVar(&c.Secure, "secure", false, "serve HTTPS and require credentials, under RBAC; the kubeconfig holds an administrator's, 'logplane kubeconfig' makes others")
	cmd.Flags().BoolVar(&c.InMemory, "in-memory", false, "keep nothing: the log and the bucket live in memory, only the kubeconfig is in the folder")
	cmd.Flags().StringVar(&c.EventsListen, "events-listen", "", "loopback address where NATS subscribers receive events and can do nothing else; empty for none")
	cmd.Flags().IntVar(&c.MaxWatches, "max-watches-per-user", gate.DefaultWatchesPerUser, "watches that are served at once, 429 beyond: here everybody is one user; 0 for no limit")
	registerPrivileged(cmd.Flags(), &allow)
	limit.register(cmd.Flags(), unlimitedDevMiB)
	registerBodies(cmd.Flags(), &bodies)
	registerRetention(cmd.Flags(), &c.LogRetention, &c.Retention, &c.History, &c.HistoryRules, &c.Checkpoints)
	return cmd
}

// waitAndStop ends the cell when the command is interrupted or a part of the cell fails.
func waitAndStop(cmd *cobra.Command, dev *localstack.Dev) error {
	failed := make(chan error, 1)
	go func() { failed <- dev.Wait() }()
	select {
	case <-cmd.Context().Done():
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
