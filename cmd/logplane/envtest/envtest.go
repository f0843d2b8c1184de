// Package envtest lets this binary stand in for the binaries that test frameworks start: etcd and kube-apiserver. It is
// named after controller-runtime's framework.
//
// The binary stands in for one of the two when it is called by that one's name. 'etcd' keeps the cell's log and bucket
// below its data folder, and 'kube-apiserver' serves them. State passes between the two through the log and the bucket,
// as between all processes of a cell: 'kube-apiserver' may be killed, started again, or started several times.
package envtest

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
)

// Named returns the command that the binary runs under the name, and the command's arguments. For an unknown name the
// command is nil.
func Named(name string, args []string) (*cobra.Command, []string) {
	switch name {
	case "etcd":
		return newEtcd(), twoDashes(args)
	case "kube-apiserver":
		return newAPIServer(), args
	}
	return nil, args
}

// twoDashes writes '-data-dir' as '--data-dir'. To etcd both are the same, and fabric8's framework uses both.
func twoDashes(args []string) []string {
	args = slices.Clone(args)
	for i, arg := range args {
		if len(arg) > 2 && arg[0] == '-' && arg[1] != '-' {
			args[i] = "-" + arg
		}
	}
	return args
}

// standIn makes a command that reports errors as those of Logplane do, and that has a flag --version. Cobra's own flag
// takes another text only as a template, and with text/template the linker keeps 40 MB that nothing calls.
func standIn(cmd *cobra.Command, version string) *cobra.Command {
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.Args = cobra.NoArgs
	asked := cmd.Flags().Bool("version", false, "print the version and exit")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *asked {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version)
			return err
		}
		return run(cmd, args)
	}
	return cmd
}
