package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/functions/lambda"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
)

// handlers are the commands that a function may run.
var handlers = []string{"api", "projector", "lifecycle", "expiry"}

// lambdaArguments returns the command line of a function on AWS Lambda. A function gets no arguments, so its handler
// names the command. The names that AWS suggests for a program mean 'api'.
func lambdaArguments(handler string) ([]string, error) {
	switch {
	case slices.Contains(handlers, handler):
		return []string{handler}, nil
	case handler == "" || handler == "bootstrap" || handler == "main":
		return []string{"api"}, nil
	}
	return nil, fmt.Errorf("the function's handler is '%s': it must be '%s'; flags are environment variables such as LOGPLANE_NATS", handler, strings.Join(handlers, "', '"))
}

// measured are the metrics that a function writes into its log: those that the alarms in docs/run/watch.md need.
var measured = []string{
	"logplane_projection_lag_seconds", "logplane_tail_bytes", "logplane_relief_commits_total", "logplane_void_events_total",
	"logplane_commits_total", "logplane_bucket_requests_total",
}

// onLambda configures the command as a function on the cell.
func onLambda(cmd *cobra.Command, opened *cell, buffered bool) lambda.Config {
	registry := prometheus.NewRegistry()
	registry.MustRegister(slices.Concat(projection.Collectors(), bucket.Collectors())...)
	return lambda.Config{
		Address: lambda.Address(), Buffered: buffered,
		Metrics: &lambda.Metrics{From: registry, Names: measured, Function: cmp.Or(os.Getenv("AWS_LAMBDA_FUNCTION_NAME"), cmd.Name()), To: cmd.OutOrStdout()},
		Thawed:  opened.thawed,
	}
}

// thawed replaces the connections of a process that was frozen, if they are dead.
func (c *cell) thawed(ctx context.Context) {
	replaced, err := eventlog.Refresh(ctx, c.log.Conn)
	if err != nil {
		slog.Warn("the log may be out of reach", "error", err) // the request reports it too
	}
	if replaced { // the cause may have ended all connections
		bucket.Reconnect(c.bucket)
	}
}

// asJob lets a command do its work once. On Lambda it does its work once for each invocation.
func asJob(cmd *cobra.Command, opened *cell, work func(context.Context) (report any, err error)) error {
	if lambda.Address() != "" {
		return lambda.RunJob(cmd.Context(), work, onLambda(cmd, opened, false))
	}
	_, err := work(cmd.Context())
	return err
}

func newExpiry() *cobra.Command {
	where := connection{command: "expiry"}
	cmd := &cobra.Command{
		Use:   "expiry",
		Short: "Delete the Events that have outlived their TTL, once, as a function that a timer calls does",
		Long: "Deletes the Events that are older than their TTL by the log's time, and exits. 'lifecycle' does the same\n" +
			"while it runs.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opened, err := where.open(cmd.Context())
			if err != nil {
				return err
			}
			defer opened.close()
			server, err := where.inProcess(opened)
			if err != nil {
				return err
			}
			finisher, err := newFinisher(opened, server, 0)
			if err != nil {
				return err
			}
			return asJob(cmd, opened, func(ctx context.Context) (any, error) {
				deleted, err := finisher.Expire(ctx)
				return map[string]int{"deleted": deleted}, err
			})
		},
	}
	where.register(cmd.Flags())
	where.registerObjects(cmd.Flags())
	return cmd
}
