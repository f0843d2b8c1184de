package main

import (
	"github.com/spf13/cobra"

	"github.com/logplane/logplane/functions"
	"github.com/logplane/logplane/internal/coldstart"
	serve "github.com/logplane/logplane/internal/serving"
)

func newAPI() *cobra.Command {
	var (
		where      connection
		how        serving
		watcherURL string
		lambda     bool
	)
	cmd := &cobra.Command{
		Use:   "api",
		Short: "Serve every request but watches, without state",
		Long: "Serves the request path: everything but watches. Any number of these may run, and each reads what\n" +
			"was written through any other at once. A watch is redirected to --watcher-url.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opened, c, err := how.open(cmd.Context(), &where)
			if err != nil {
				return err
			}
			defer opened.close()
			c.WatcherURL = watcherURL
			handler, err := functions.New(c)
			if err != nil {
				return err
			}
			handler = coldstart.UntilFirst(handler)
			if lambda {
				functions.ServeLambda(handler)
				return nil
			}
			return how.serve(cmd.Context(), handler, serve.Streams{})
		},
	}
	where.register(cmd.Flags())
	where.registerEncryption(cmd.Flags())
	how.register(cmd.Flags())
	cmd.Flags().StringVar(&watcherURL, "watcher-url", "", "URL of the watcher that watches are redirected to")
	cmd.Flags().BoolVar(&lambda, "lambda", false, "serve as an AWS Lambda function URL instead of a listener")
	return cmd
}
