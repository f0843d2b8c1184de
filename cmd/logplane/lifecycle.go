package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/logplane/logplane/functions/lifecycle"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/memory"
)

func newLifecycle() *cobra.Command {
	var (
		where  connection
		proxy  proxying
		settle time.Duration
	)
	cmd := &cobra.Command{
		Use:   "lifecycle",
		Short: "Finish what requests begin: namespaces, CRDs and owners go with all that is theirs",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := proxy.check(); err != nil {
				return err
			}
			opened, err := where.open(cmd.Context())
			if err != nil {
				return err
			}
			defer opened.close()
			server, err := where.inProcess(opened, proxy.configure)
			if err != nil {
				return err
			}
			finisher, err := lifecycle.New(lifecycle.Config{Cell: opened.Cell, Client: server.Loopback(), Instances: server.Instances, UID: server.UID, RootCA: server.RootCA(), Settle: settle, CheckRemote: server.CheckRemote})
			if err != nil {
				return err
			}
			defer memory.GiveBack(server.Shrink)()
			return finisher.Run(cmd.Context())
		},
	}
	where.register(cmd.Flags())
	where.registerObjects(cmd.Flags())
	proxy.register(cmd.Flags())
	cmd.Flags().DurationVar(&settle, "settle", 2*kubestore.Staleness, "how long a namespace stays after its deletion began, in case a write that saw it alive is still on its way; later ones are deleted again")
	return cmd
}
