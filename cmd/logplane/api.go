package main

import (
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/logplane/logplane/functions"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/coldstart"
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
			if err := how.check(); err != nil {
				return err
			}
			opened, err := where.open(cmd.Context())
			if err != nil {
				return err
			}
			defer opened.close()
			c := apiserver.Config{Cell: opened.Cell, Logger: slog.Default(), WatcherURL: watcherURL, EncryptionConfigFile: where.encryption}
			how.configure(&c)
			handler, err := functions.New(c)
			if err != nil {
				return err
			}
			handler = coldstart.UntilFirst(handler)
			if lambda {
				functions.ServeLambda(handler)
				return nil
			}
			return how.serve(cmd.Context(), handler, nil)
		},
	}
	where.register(cmd.Flags())
	where.registerEncryption(cmd.Flags())
	how.register(cmd.Flags())
	cmd.Flags().StringVar(&watcherURL, "watcher-url", "", "URL of the watcher that watches are redirected to")
	cmd.Flags().BoolVar(&lambda, "lambda", false, "serve as an AWS Lambda function URL instead of a listener")
	return cmd
}
