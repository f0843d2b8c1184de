package serve

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/logplane/logplane/cmd/logplane/cells"
	"github.com/logplane/logplane/functions/lambda"
	"github.com/logplane/logplane/functions/lifecycle"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
)

// Handlers are the commands that a function may run.
var Handlers = []string{"api", "projector", "lifecycle", "expiry"}

// LambdaArguments returns the command line of a function on AWS Lambda. A function gets no arguments, so its handler
// names the command. The names that AWS suggests for a program mean 'api'.
func LambdaArguments(handler string) ([]string, error) {
	switch {
	case slices.Contains(Handlers, handler):
		return []string{handler}, nil
	case handler == "" || handler == "bootstrap" || handler == "main":
		return []string{"api"}, nil
	}
	return nil, fmt.Errorf("the function's handler is '%s': it must be '%s'; flags are environment variables such as LOGPLANE_NATS", handler, strings.Join(Handlers, "', '"))
}

// measured are the metrics that a function writes into its log: the metrics that the alarms in docs/run/watch.md need.
var measured = []string{
	"logplane_projection_lag_seconds", "logplane_tail_bytes", "logplane_relief_commits_total", "logplane_void_events_total",
	"logplane_commits_total", "logplane_bucket_requests_total",
}

// onLambda configures the command as a function on the cell.
func onLambda(cmd *cobra.Command, opened *cells.Cell, buffered bool) lambda.Config {
	registry := prometheus.NewRegistry()
	registry.MustRegister(slices.Concat(projection.Collectors(), bucket.Collectors())...)
	return lambda.Config{
		Address: lambda.Address(), Buffered: buffered,
		Metrics: &lambda.Metrics{From: registry, Names: measured, Function: cmp.Or(os.Getenv("AWS_LAMBDA_FUNCTION_NAME"), cmd.Name()), To: cmd.OutOrStdout()},
		Thawed:  opened.Thawed,
	}
}

// asJob lets a command do its work once. On Lambda the command does its work once for each invocation.
func asJob(cmd *cobra.Command, opened *cells.Cell, work func(context.Context) (report any, err error)) error {
	if lambda.Address() != "" {
		return lambda.RunJob(cmd.Context(), work, onLambda(cmd, opened, false))
	}
	_, err := work(cmd.Context())
	return err
}

func newExpiry() *cobra.Command {
	where := cells.Connection{Command: "expiry"}
	cmd := &cobra.Command{
		Use:   "expiry",
		Short: "Delete the Events that have outlived their TTL, once, as a function that a timer calls does",
		Long: "Deletes the Events that are older than their TTL by the log's time, and exits. 'lifecycle' does the same\n" +
			"while it runs.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opened, err := where.Open(cmd.Context())
			if err != nil {
				return err
			}
			defer opened.Close()
			server, err := where.InProcess(opened, apiserver.Config{})
			if err != nil {
				return err
			}
			finisher := lifecycle.New(lifecycle.Config{Cell: opened.Cell, Servers: ofAllClusters(server)})
			return asJob(cmd, opened, func(ctx context.Context) (any, error) {
				deleted, err := finisher.Expire(ctx)
				return map[string]int{"deleted": deleted}, err
			})
		},
	}
	where.Register(cmd.Flags())
	where.RegisterObjects(cmd.Flags())
	return cmd
}
