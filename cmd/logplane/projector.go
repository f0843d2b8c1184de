package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/logplane/logplane/functions/lambda"
	"github.com/logplane/logplane/internal/memory"
)

func newProjector() *cobra.Command {
	var (
		where   = connection{command: "projector"}
		watched probes
		traced  tracer
		cadence time.Duration
		once    bool
	)
	cmd := &cobra.Command{
		Use:   "projector",
		Short: "Fold the log into the snapshot in the bucket, and purge what it covers",
		Long: "Commits what the log adds to the snapshot in the bucket, at most once every --cadence. Any number of\n" +
			"projectors may run; an idle cell costs no request.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := atLeast("--cadence", cadence, time.Millisecond); err != nil {
				return err
			}
			tracer, stop, err := traced.start(cmd.Context(), cmd.Name())
			if err != nil {
				return err
			}
			defer stop()
			where.tracer = tracer
			opened, err := where.open(cmd.Context())
			if err != nil {
				return err
			}
			defer opened.close()
			if once || lambda.Address() != "" {
				return asJob(cmd, opened, func(ctx context.Context) (any, error) {
					applied, merged, err := opened.Projection.Once(ctx)
					return map[string]any{"applied": applied, "merged": merged}, err
				})
			}
			defer memory.GiveBack(nil, opened.Shrink)()
			slog.Info("committing what the log adds", "bucket", where.bucket, "cadence", cadence)
			return watched.beside(cmd.Context(), opened.ready, func(ctx context.Context) error { return opened.Projection.Run(ctx, cadence) })
		},
	}
	where.register(cmd.Flags())
	watched.register(cmd.Flags())
	traced.register(cmd.Flags())
	cmd.Flags().BoolVar(&once, "once", false, "commit what there is, tend the bucket once, and exit, as a function that a timer calls does")
	cmd.Flags().DurationVar(&cadence, "cadence", time.Second, "shortest time between two commits")
	return cmd
}
