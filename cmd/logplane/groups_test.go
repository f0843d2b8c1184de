package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// TestUnknownCommands: an unknown command must not exit with 0, because scripts would continue.
func TestUnknownCommands(t *testing.T) {
	groups := 0
	visit(newRoot(io.Discard), func(cmd *cobra.Command) {
		if !cmd.HasSubCommands() {
			return
		}
		groups++
		path := strings.Fields(cmd.CommandPath())[1:]
		refused(t, append(path, "bogus"), cmd)
		refused(t, append([]string{"help"}, append(path, "bogus")...), cmd)

		var out bytes.Buffer
		require.Equal(t, 0, run(t.Context(), path, &out, io.Discard))
		require.Contains(t, out.String(), cmd.Commands()[0].Name()+" ")
	})
	require.Equal(t, 4, groups, "logplane, completion, fixture and inspect")
	var out bytes.Buffer
	require.Equal(t, 0, run(t.Context(), []string{"help", "inspect", "head"}, &out, io.Discard))
	require.Contains(t, out.String(), "logplane inspect head")
}

// TestMistypedNames: the error about a mistyped command or flag suggests the command or flag with a similar spelling.
// The error about missing or stray arguments shows the command with its arguments.
func TestMistypedNames(t *testing.T) {
	for line, says := range map[string]string{
		"projectr":                "unknown command 'projectr' (did you mean 'projector'?): ",
		"inspect segmens":         "unknown command 'segmens' (did you mean 'segments'?): ",
		"api --lisen 127.0.0.1:0": "unknown flag: --lisen (did you mean '--listen'?): ",
		"dev --datta x":           "(did you mean '--data'?): ",
		"dev --nothing-like-it":   "unknown flag: --nothing-like-it: ",
		"history":                 ": the command is 'logplane history (KIND/NAME | KIND NAME) [flags]'",
		"serve extra":             ": the command is 'logplane serve [flags]'",
	} {
		var said bytes.Buffer
		require.Equal(t, 1, run(t.Context(), strings.Fields(line), io.Discard, &said), line)
		require.Contains(t, said.String(), says, line)
	}
}

// TestEveryCommandHasAGroup: the help lists each command below a title.
func TestEveryCommandHasAGroup(t *testing.T) {
	var out bytes.Buffer
	require.Equal(t, 0, run(t.Context(), []string{"--help"}, &out, io.Discard))
	require.NotContains(t, out.String(), "Additional Commands")
	require.NotContains(t, out.String(), "Available Commands")
}

func refused(t *testing.T, args []string, group *cobra.Command) {
	t.Helper()
	var out, said bytes.Buffer
	require.Equal(t, 1, run(t.Context(), args, &out, &said), args)
	require.Empty(t, out.String(), args)
	require.Equal(t, 1, strings.Count(said.String(), "\n"), said.String())
	require.Contains(t, said.String(), "logplane: unknown command 'bogus'")
	for _, child := range group.Commands() {
		if child.IsAvailableCommand() {
			require.Contains(t, said.String(), "'"+child.Name()+"'")
		}
	}
}
