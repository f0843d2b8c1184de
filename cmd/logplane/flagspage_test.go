package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
)

var update = flag.Bool("update", false, "write docs/flags.md anew")

// named has the sets of commands that the page calls by name, the largest first.
var named = []struct {
	name     string
	commands []string
}{
	{"all on a cell", []string{"api", "watcher", "projector", "lifecycle", "expiry", "init", "doctor", "events", "inspect", "fence", "recover", "clock", "forget"}},
	{"all that commit", []string{"api", "watcher", "projector", "lifecycle", "expiry", "init"}},
}

// flagRow is a row of the page: a flag, and the commands that give the flag the same description.
type flagRow struct {
	flag, usage string
	commands    []string
	defaults    []string // of the commands
}

// defaultCell names the flag's default, or the default of each command if the defaults differ.
func (r flagRow) defaultCell() string {
	if len(slices.Compact(slices.Clone(r.defaults))) == 1 {
		return r.defaults[0]
	}
	var each []string
	for i, command := range r.commands {
		each = append(each, fmt.Sprintf("`%s` %s", command, r.defaults[i]))
	}
	return strings.Join(each, ", ")
}

func (r flagRow) String() string {
	var of []string
	commands := r.commands
	for _, set := range named {
		others := slices.DeleteFunc(slices.Clone(commands), func(c string) bool { return slices.Contains(set.commands, c) })
		if len(others) == len(commands)-len(set.commands) {
			of, commands = []string{set.name}, others
		}
	}
	for _, command := range commands {
		if command != "all" {
			command = "`" + command + "`"
		}
		of = append(of, command)
	}
	row := fmt.Sprintf("| `--%s` | %s | %s | %s |\n", r.flag, strings.Join(of, ", "), r.defaultCell(), markdown(r.usage))
	return strings.ReplaceAll(row, "|  |", "| |")
}

// rowsOfBinary returns a row for each flag and description. It leaves out the flags that the commands of package past
// share with kubectl, because kubectl describes those flags.
func rowsOfBinary() (rows []flagRow, kubectls []string) {
	shared := pflag.NewFlagSet("", pflag.ContinueOnError)
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.CurrentContext.LongName = "context"
	clientcmd.BindOverrideFlags(&clientcmd.ConfigOverrides{}, shared, names)
	shared.String("kubeconfig", "", "")
	shared.VisitAll(func(f *pflag.Flag) { kubectls = append(kubectls, f.Name) })
	visit(newRoot(io.Discard), func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		if strings.HasPrefix(path, "logplane completion") || cmd.Name() == "help" {
			return
		}
		name := strings.TrimPrefix(path, "logplane ")
		if cmd == cmd.Root() {
			name = "all"
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" || f.Name == "version" || cmd.GroupID == "past" && slices.Contains(kubectls, f.Name) {
				return
			}
			i := slices.IndexFunc(rows, func(r flagRow) bool { return r.flag == f.Name && r.usage == f.Usage })
			if i < 0 {
				i, rows = len(rows), append(rows, flagRow{flag: f.Name, usage: f.Usage})
			}
			rows[i].commands, rows[i].defaults = append(rows[i].commands, name), append(rows[i].defaults, defaultOf(f))
		})
	})
	return rows, kubectls
}

func defaultOf(f *pflag.Flag) string {
	text := f.DefValue
	if home, err := os.UserHomeDir(); err == nil {
		text = strings.Replace(text, home, "~", 1)
	}
	if f.Value.Type() == "duration" {
		text = regexp.MustCompile(`([a-z])0[ms](0s)?$`).ReplaceAllString(text, "$1")
	}
	if text == "" || text == "[]" || text == "false" {
		return ""
	}
	return "`" + strings.Trim(text, "[]") + "`"
}

var (
	literal = regexp.MustCompile(`(^|[ (])'([^']+)'`)
	aFlag   = regexp.MustCompile(`(^|[ (])(--[a-z0-9-]+)`)
	page    = regexp.MustCompile(`docs/([a-z/-]+\.md)(#[a-z-]+)?`)
)

// markdown returns a flag's description for the page.
func markdown(usage string) string {
	parts := strings.Split(literal.ReplaceAllString(usage, "$1`$2`"), "`")
	for i := 0; i < len(parts); i += 2 { // the other parts are code already
		parts[i] = page.ReplaceAllString(aFlag.ReplaceAllString(parts[i], "$1`$2`"), "[$1]($1$2)")
	}
	return strings.Join(parts, "`")
}

// readRow reads a row of the page.
func readRow(line string) (row flagRow, ok bool) {
	cells := strings.SplitN(line, "|", 4)
	if !strings.HasPrefix(line, "| `--") || len(cells) != 4 {
		return flagRow{}, false
	}
	row.flag = strings.Trim(cells[1], "` -")
	of := cells[2]
	for _, set := range named {
		of = strings.ReplaceAll(of, set.name, strings.Join(set.commands, ","))
	}
	for command := range strings.SplitSeq(of, ",") {
		row.commands = append(row.commands, strings.Trim(command, "` "))
	}
	return row, true
}

// TestFlagsPage: the tables of docs/flags.md have the descriptions that the commands give their flags. The page
// determines the flags of each table and their order: for a new flag add a row '| `--flag` | | |', and run this test
// with -update.
func TestFlagsPage(t *testing.T) {
	t.Setenv("PORT", "")
	const path = "../../docs/flags.md"
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	rows, kubectls := rowsOfBinary()
	lines := slices.Collect(strings.Lines(string(text)))
	// placeOf returns the line of the page to which a flag of a command belongs: the flag's first line in the table
	// that has the command, or else its first line in any table.
	placeOf := func(flag, command string) int {
		place, inTable := -1, -1
		for i, line := range lines {
			row, ok := readRow(line)
			switch {
			case !strings.HasPrefix(line, "|"):
				inTable = -1
			case !ok || row.flag != flag:
				continue
			case inTable < 0:
				inTable = i
			}
			if inTable >= 0 && slices.Contains(row.commands, command) {
				return inTable
			}
			if place < 0 {
				place = inTable
			}
		}
		return place
	}
	at := map[int][]flagRow{}
	for _, row := range rows {
		here := map[int]*flagRow{}
		for n, command := range row.commands {
			i := placeOf(row.flag, command)
			require.GreaterOrEqual(t, i, 0, "docs/flags.md has no row for --%s of %s", row.flag, command)
			if here[i] == nil {
				here[i] = &flagRow{flag: row.flag, usage: row.usage}
			}
			here[i].commands, here[i].defaults = append(here[i].commands, command), append(here[i].defaults, row.defaults[n])
		}
		for i, r := range here {
			at[i] = append(at[i], *r)
		}
	}
	var written strings.Builder
	for i, line := range lines {
		if _, ok := readRow(line); !ok {
			written.WriteString(line)
		}
		for _, row := range at[i] {
			written.WriteString(row.String())
		}
	}
	for _, name := range kubectls {
		require.Contains(t, written.String(), "`--"+name+"`")
	}
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(written.String()), 0o644))
		return
	}
	require.Equal(t, string(text), written.String(), "run 'go test ./cmd/logplane -run FlagsPage -update'")
}
