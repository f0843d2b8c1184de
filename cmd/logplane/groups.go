package main

import (
	"fmt"
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

// refuseUnknown makes every command that only groups subcommands refuse an unknown name. Cobra would print the help,
// and the process would exit with 0.
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
			known = append(known, "'"+child.Name()+"'")
		}
	}
	return fmt.Errorf("unknown command '%s'%s: '%s' has %s", name, similar(cmd, name, ""), cmd.CommandPath(), strings.Join(known, ", "))
}

// similar asks whether the user has meant a command that is written almost as the name is.
func similar(cmd *cobra.Command, name, prefix string) string {
	cmd.SuggestionsMinimumDistance = 2
	names := cmd.SuggestionsFor(name)
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf(" (did you mean '%s%s'?)", prefix, strings.Join(names, "' or '"+prefix))
}

// similarFlag is similar for flags. Cobra compares only the names of commands.
func similarFlag(cmd *cobra.Command, name string) string {
	flags := &cobra.Command{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			flags.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	return similar(flags, name, "--")
}
