package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/logplane/logplane/functions/lambda"
	"github.com/logplane/logplane/functions/lifecycle"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/memory"
)

func newLifecycle() *cobra.Command {
	var (
		where   = connection{command: "lifecycle"}
		watched probes
		proxy   proxying
		settle  time.Duration
		once    bool
	)
	cmd := &cobra.Command{
		Use:   "lifecycle",
		Short: "Finish what requests begin: namespaces, CRDs and owners go with all that is theirs",
		Long: "Follows the log and finishes what requests begin. Any number of them may run, and each may be killed at any time.\n" +
			"With --once it does all the work that there is, prints a line for each thing that waits for others, such as a\n" +
			"namespace for the finalizer of an object in it, and ends with 0.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cmp.Or(proxy.check(), atLeast("--settle", settle, time.Millisecond)); err != nil {
				return err
			}
			opened, err := where.open(cmd.Context())
			if err != nil {
				return err
			}
			defer opened.close()
			server, err := where.inProcess(opened, proxy.configure)
			if err != nil {
				return err
			}
			finisher, err := newFinisher(opened, server, settle)
			if err != nil {
				return err
			}
			if once || lambda.Address() != "" {
				return asJob(cmd, opened, func(ctx context.Context) (any, error) {
					left, err := finisher.Once(ctx)
					for _, l := range left {
						fmt.Fprintln(cmd.OutOrStdout(), "left:", l)
					}
					return map[string][]string{"left": left}, err
				})
			}
			defer memory.GiveBack(nil, server.Shrink)()
			slog.Info("finishing what requests begin", "bucket", where.bucket)
			return watched.beside(cmd.Context(), opened.ready, finisher.Run)
		},
	}
	where.register(cmd.Flags())
	watched.register(cmd.Flags())
	where.registerObjects(cmd.Flags())
	proxy.register(cmd.Flags())
	cmd.Flags().BoolVar(&once, "once", false, "do the work that there is, print what is left and exit, as a function that a timer or a queue calls does")
	cmd.Flags().DurationVar(&settle, "settle", 2*kubestore.Staleness, "how long a namespace stays after its deletion began, in case a write that saw it alive is still on its way; later ones are deleted again")
	return cmd
}

func newFinisher(opened *cell, server *apiserver.Server, settle time.Duration) (*lifecycle.Lifecycle, error) {
	return lifecycle.New(lifecycle.Config{
		Cell: opened.Cell, Client: server.Loopback(), Instances: server.Instances, UID: server.UID, Deletion: server.Deletion, BesideDeletion: server.BesideDeletion, RootCA: server.RootCA(), Settle: settle, CheckRemote: server.CheckRemote,
		IsRemote: server.IsRemote,
	})
}
