package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/functions/lambda"
)

// handlers are the commands that a function may be.
var handlers = []string{"api", "projector", "lifecycle", "expiry"}

// lambdaArguments returns the command line of a function, which has none of its own: its handler names the command. The
// names that AWS suggests for a program mean 'api'.
func lambdaArguments(handler string) ([]string, error) {
	switch {
	case slices.Contains(handlers, handler):
		return []string{handler}, nil
	case handler == "" || handler == "bootstrap" || handler == "main":
		return []string{"api"}, nil
	}
	return nil, fmt.Errorf("the function's handler is '%s': it must be '%s'; flags are environment variables such as LOGPLANE_NATS", handler, strings.Join(handlers, "', '"))
}

// onLambda configures a function on the cell.
func onLambda(opened *cell, buffered bool) lambda.Config {
	return lambda.Config{Address: lambda.Address(), Buffered: buffered, Thawed: func(ctx context.Context) {
		if err := eventlog.Refresh(ctx, opened.log.Conn); err != nil {
			slog.Warn("the log may be out of reach", "error", err) // the request will say so, too
		}
	}}
}

// asJob lets a command do its work once: on Lambda once for each invocation.
func asJob(ctx context.Context, opened *cell, work func(context.Context) (report any, err error)) error {
	if lambda.Address() != "" {
		return lambda.RunJob(ctx, work, onLambda(opened, false))
	}
	_, err := work(ctx)
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
			return asJob(cmd.Context(), opened, func(ctx context.Context) (any, error) {
				deleted, err := finisher.Expire(ctx)
				return map[string]int{"deleted": deleted}, err
			})
		},
	}
	where.register(cmd.Flags())
	where.registerObjects(cmd.Flags())
	return cmd
}
