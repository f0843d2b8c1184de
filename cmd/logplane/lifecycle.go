package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/logplane/logplane/functions/lifecycle"
	"github.com/logplane/logplane/internal/memory"
)

func newLifecycle() *cobra.Command {
	var (
		where  connection
		settle time.Duration
	)
	cmd := &cobra.Command{
		Use:   "lifecycle",
		Short: "Finish what deletions begin: namespaces and CRDs go with all that is in them",
		Args:  cobra.NoArgs,
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
			finisher, err := lifecycle.New(lifecycle.Config{Cell: opened.Cell, Client: server.Loopback(), Instances: server.Instances, Settle: settle})
			if err != nil {
				return err
			}
			defer memory.GiveBack(server.Shrink)()
			return finisher.Run(cmd.Context())
		},
	}
	where.register(cmd.Flags())
	where.registerEncryption(cmd.Flags())
	cmd.Flags().DurationVar(&settle, "settle", 65*time.Second, "how long a namespace stays after its deletion began, in case a request that saw it alive still writes; at least the request deadline")
	return cmd
}
