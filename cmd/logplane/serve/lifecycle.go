package serve

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/logplane/logplane/cmd/logplane/cells"
	"github.com/logplane/logplane/cmd/logplane/values"
	"github.com/logplane/logplane/functions/lambda"
	"github.com/logplane/logplane/functions/lifecycle"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/memory"
)

func newLifecycle() *cobra.Command {
	var (
		where   = cells.Connection{Command: "lifecycle"}
		watched probes
		proxy   apiserver.Config
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
			if err := cmp.Or(checkProxy(proxy), values.AtLeast("--settle", settle, time.Millisecond)); err != nil {
				return err
			}
			opened, err := where.Open(cmd.Context())
			if err != nil {
				return err
			}
			defer opened.Close()
			server, err := where.InProcess(opened, proxy)
			if err != nil {
				return err
			}
			finisher := lifecycle.New(lifecycle.Config{Cell: opened.Cell, Servers: ofAllClusters(server), Settle: settle})
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
			slog.Info("finishing what requests begin", "bucket", where.Bucket)
			return watched.alongside(cmd.Context(), opened.Ready, finisher.Run)
		},
	}
	where.Register(cmd.Flags())
	watched.register(cmd.Flags())
	where.RegisterObjects(cmd.Flags())
	registerProxy(cmd.Flags(), &proxy)
	cmd.Flags().BoolVar(&once, "once", false, "do what there is and exit, as a function that a timer or a queue calls does")
	cmd.Flags().DurationVar(&settle, "settle", 2*kubestore.Staleness, "how long a namespace stays after its deletion began, in case a write that saw it alive is still on its way; at least 1ms")
	return cmd
}

// ofAllClusters returns the servers of a cell's clusters.
func ofAllClusters(main *apiserver.Server) func(context.Context, string) (lifecycle.Server, error) {
	return func(ctx context.Context, cluster string) (lifecycle.Server, error) {
		return main.ClusterOf(ctx, cluster)
	}
}
