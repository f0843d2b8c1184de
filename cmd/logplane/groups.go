package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// addGroup adds commands that the help lists together.
func addGroup(root *cobra.Command, id, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: id, Title: title})
	for _, cmd := range commands {
		cmd.GroupID = id
	}
	root.AddCommand(commands...)
}

// refuseUnknown is for commands that only group subcommands: such a command then refuses an unknown name. Cobra itself
// would print the help, and the process would exit with 0.
func refuseUnknown(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	visit(root, func(cmd *cobra.Command) {
		if !cmd.HasSubCommands() || cmd.Runnable() {
			return
		}
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return unknown(cmd, args[0])
		}
	})
	help, _, _ := root.Find([]string{"help"}) // cobra's own help command would also print help
	help.Args = func(_ *cobra.Command, topic []string) error {
		cmd, rest, err := root.Find(topic)
		if err != nil || len(rest) > 0 && cmd.HasSubCommands() {
			return unknown(cmd, rest[0])
		}
		return nil
	}
}

// explainArguments lets an error about a command's arguments show which arguments the command has. Cobra's own errors
// only count the arguments.
func explainArguments(root *cobra.Command) {
	visit(root, func(cmd *cobra.Command) {
		if check := cmd.Args; check != nil && !cmd.HasSubCommands() {
			cmd.Args = func(cmd *cobra.Command, args []string) error {
				if err := check(cmd, args); err != nil {
					return fmt.Errorf("%w: the command is '%s'", err, cmd.UseLine())
				}
				return nil
			}
		}
	})
}

func visit(cmd *cobra.Command, do func(*cobra.Command)) {
	do(cmd)
	for _, child := range cmd.Commands() {
		visit(child, do)
	}
}

// unknown returns an error that lists the existing commands.
func unknown(cmd *cobra.Command, name string) error {
	var known []string
	for _, child := range cmd.Commands() {
		if child.IsAvailableCommand() {
			known = append(known, child.Name())
		}
	}
	return fmt.Errorf("unknown command '%s'%s: '%s' has '%s'", name, similar(known, name, ""), cmd.CommandPath(), strings.Join(known, "', '"))
}

// similar asks whether the user has meant a known name whose spelling is close to that of the given name.
func similar(known []string, name, prefix string) string {
	all := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, other := range slices.Compact(slices.Sorted(slices.Values(known))) {
		all.AddCommand(&cobra.Command{Use: other, Run: func(*cobra.Command, []string) {}})
	}
	meant := all.SuggestionsFor(name)
	if len(meant) == 0 {
		return ""
	}
	return fmt.Sprintf(" (did you mean '%s%s'?)", prefix, strings.Join(meant, "' or '"+prefix))
}

// flagsOf returns the names of a command's flags.
func flagsOf(cmd *cobra.Command) (names []string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	return names
}
