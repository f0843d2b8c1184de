package main

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/logplane/logplane/functions"
	"github.com/logplane/logplane/functions/lambda"
	"github.com/logplane/logplane/internal/apiserver/gate"
	"github.com/logplane/logplane/internal/coldstart"
	"github.com/logplane/logplane/internal/memory"
	serve "github.com/logplane/logplane/internal/serving"
)

func newAPI() *cobra.Command {
	var (
		where = connection{command: "api"}
		how   serving
		// This command serves no watches, but it does serve streams.
		limits     gate.WatchLimits
		invokeMode string
	)
	cmd := &cobra.Command{
		Use:   "api",
		Short: "Serve every request but watches, without state",
		Long: "Serves the request path: everything but watches. Any number of these may run, and each reads what\n" +
			"was written through any other at once. A watch is redirected to --watcher-url. On AWS Lambda it answers\n" +
			"function URLs and API Gateway instead of a listener.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkLimits(limits); err != nil {
				return err
			}
			if invokeMode != "RESPONSE_STREAM" && invokeMode != "BUFFERED" {
				return fmt.Errorf("--function-url-invoke-mode is '%s': it must be 'RESPONSE_STREAM' or 'BUFFERED'", invokeMode)
			}
			how.lambda = lambda.Address() != ""
			opened, c, err := how.open(cmd.Context(), &where)
			if err != nil {
				return err
			}
			c.Watches = limits
			defer opened.close()
			if c.WatcherURL = how.watcherURL; c.WatcherURL == "" {
				slog.Warn("watches are answered 405: give --watcher-url, to which they are redirected")
			}
			server, err := functions.New(c)
			if err != nil {
				return err
			}
			publish(cmd.Context(), server, how.trust)
			handler := serve.AfterFirst(server, coldstart.Over)
			if how.lambda {
				return lambda.ServeHTTP(cmd.Context(), handler, onLambda(cmd, opened, invokeMode == "BUFFERED"))
			}
			defer server.StopTracing()
			defer memory.GiveBack(nil, server.Shrink)()
			return how.serve(cmd.Context(), serve.AfterRest(handler, opened.thawed), serve.Config{})
		},
	}
	where.register(cmd.Flags())
	where.registerObjects(cmd.Flags())
	how.register(cmd.Flags())
	registerLimits(cmd.Flags(), &limits, 2000, 200)
	cmd.Flags().StringVar(&how.watcherURL, "watcher-url", "", "URL of the watcher that watches are redirected to")
	cmd.Flags().StringVar(&invokeMode, "function-url-invoke-mode", "RESPONSE_STREAM", "on AWS Lambda, the InvokeMode of the function URL, 'RESPONSE_STREAM' or 'BUFFERED'")
	return cmd
}
