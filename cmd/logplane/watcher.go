package main

import (
	"log/slog"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/watcher"
)

func newWatcher() *cobra.Command {
	var (
		where connection
		how   serving
	)
	cmd := &cobra.Command{
		Use:   "watcher",
		Short: "Serve watches, and every other request too, from one reader of the log",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := how.check(); err != nil {
				return err
			}
			opened, err := where.open(cmd.Context())
			if err != nil {
				return err
			}
			defer opened.close()
			c := apiserver.Config{Cell: opened.Cell, Logger: slog.Default()}
			how.configure(&c)
			w, err := watcher.New(watcher.Config{Config: c})
			if err != nil {
				return err
			}
			group, ctx := errgroup.WithContext(cmd.Context())
			group.Go(func() error { return w.Run(ctx) })
			group.Go(func() error { return how.serve(ctx, w) })
			return group.Wait()
		},
	}
	where.register(cmd.Flags())
	how.register(cmd.Flags())
	return cmd
}
