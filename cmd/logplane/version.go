package main

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/logplane/logplane/internal/apiserver"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of Logplane and of the Kubernetes API it serves",
		Args:  cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			own := "(unknown)"
			if build, ok := debug.ReadBuildInfo(); ok {
				own = build.Main.Version
			}
			fmt.Fprintf(cmd.OutOrStdout(), "logplane %s, Kubernetes %s\n", own, apiserver.Version().GitVersion)
		},
	}
}
