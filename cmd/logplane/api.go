package main

import (
	"github.com/spf13/cobra"

	"github.com/logplane/logplane/functions"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/coldstart"
	"github.com/logplane/logplane/internal/memory"
	serve "github.com/logplane/logplane/internal/serving"
)

func newAPI() *cobra.Command {
	var (
		where connection
		how   serving
		// There are no watches here, but streams.
		limits apiserver.WatchLimits
	)
	cmd := &cobra.Command{
		Use:   "api",
		Short: "Serve every request but watches, without state",
		Long: "Serves the request path: everything but watches. Any number of these may run, and each reads what\n" +
			"was written through any other at once. A watch is redirected to --watcher-url.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkLimits(limits); err != nil {
				return err
			}
			opened, c, err := how.open(cmd.Context(), &where)
			if err != nil {
				return err
			}
			c.Watches = limits
			defer opened.close()
			c.WatcherURL = how.watcherURL
			server, err := functions.New(c)
			if err != nil {
				return err
			}
			publish(cmd.Context(), server, how.trust)
			handler := coldstart.UntilFirst(server)
			if how.lambda {
				functions.ServeLambda(handler)
				return nil
			}
			defer memory.GiveBack(server.Shrink)()
			return how.serve(cmd.Context(), handler, serve.Config{})
		},
	}
	where.register(cmd.Flags())
	where.registerObjects(cmd.Flags())
	how.register(cmd.Flags())
	registerLimits(cmd.Flags(), &limits, 2000, 200)
	cmd.Flags().StringVar(&how.watcherURL, "watcher-url", "", "URL of the watcher that watches are redirected to")
	cmd.Flags().BoolVar(&how.lambda, "lambda", false, "serve as an AWS Lambda function URL instead of a listener")
	return cmd
}
