package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/cmd/logplane/serve"
	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// said runs a command that must fail, and returns the one line that the command prints.
func said(t *testing.T, args ...string) string {
	t.Helper()
	var said bytes.Buffer
	require.Equal(t, 1, run(t.Context(), args, io.Discard, &said), args)
	require.Equal(t, 1, strings.Count(said.String(), "\n"), said.String())
	return said.String()
}

// TestValuesAreChecked: a meaningless value ends the process at its start, with an error that says what to give
// instead.
func TestValuesAreChecked(t *testing.T) {
	for line, why := range map[string]string{
		"projector --cadence 0":                            "--cadence is 0s: it must be at least 1ms",
		"projector --cadence -1s":                          "--cadence is -1s: it must be at least 1ms",
		"projector --memory-mib 127":                       "--memory-mib is '127': it must be a whole number of MiB, 0 or at least 128",
		"api --memory-mib -1":                              "--memory-mib is '-1': it must be a whole number of MiB, 0 or at least 128",
		"dev --memory-mib 256Mi":                           "--memory-mib is '256Mi': it must be a whole number of MiB, 0 or at least 128",
		"lifecycle --memory-mib abc":                       "--memory-mib is 'abc': it must be a whole number of MiB, 0 or at least 128",
		"watcher --memory-mib 99999999999999":              "--memory-mib is '99999999999999': it must be a whole number of MiB, 0 or at least 128",
		"api --block-cache-folder-mib 1Gi":                 "--block-cache-folder-mib is '1Gi': it must be a whole number",
		"api --goaway-chance much":                         "--goaway-chance is 'much': it must be a number",
		"projector --once=maybe":                           "--once is 'maybe': it must be 'true' or 'false'",
		"projector --cadence 1":                            "--cadence is '1': it must be a duration such as '90s' or '1h30m'",
		"api --block-cache-folder-mib -1":                  "--block-cache-folder-mib is -1: it must be at least 1",
		"inspect head --cluster A/B":                       "--cluster is 'A/B': ",
		"init --replicas 0":                                "--replicas is 0: it must be 1, 3 or 5",
		"init --replicas 2":                                "--replicas is 2: it must be 1, 3 or 5",
		"init --external-address api.example:443":          "--external-address is for --credentials",
		"api --external-address foo":                       "--external-address is 'foo': it must be HOST:PORT",
		"api --listen foo":                                 "--listen is 'foo': it must be HOST:PORT",
		"dev --listen foo":                                 "--listen is 'foo': it must be HOST:PORT",
		"dev --listen 0.0.0.0:7373 --data /nowhere":        "use 'logplane serve' for others",
		"dev --events-listen 0.0.0.0:4222 --data /nowhere": "let others subscribe at a NATS server of your own",
		"dev --max-watches-per-user -1":                    "--max-watches-per-user is -1: it must be at least 0",
		"watcher --max-watches -1":                         "--max-watches is -1: it must be at least 0",
		"watcher --drain -1s":                              "--drain is -1s: it must be at least 0s",
		"watcher --slow-client -1s":                        "--slow-client is -1s: it must be at least 1ms",
		"lifecycle --settle -1s":                           "--settle is -1s: it must be at least 1ms",
		"api --kubelet-preferred-address-types Foo":        "--kubelet-preferred-address-types has 'Foo': it must be one of 'Hostname', ",
		"api --requestheader-client-ca-file /nowhere":      "--requestheader-client-ca-file: read authorities to publish: open /nowhere",
		"kubeconfig --user ann --duration -1s":             "--duration is -1s: it must be at least 0s",
		"api --log-level trace":                            "it must be 'debug', 'info', 'warn' or 'error'",
		"api --log-format xml":                             "--log-format is 'xml': it must be 'text' or 'json'",
		"inspect head --memory-mib 1":                      "unknown flag: --memory-mib: 'logplane inspect head --help' lists the flags",
		"events --retention 1h":                            "unknown flag: --retention: 'logplane events --help' lists the flags",
		"fence --memory-mib 1":                             "unknown flag: --memory-mib: 'logplane fence --help' lists the flags",
	} {
		require.Contains(t, said(t, strings.Fields(line)...), why, line)
	}
	t.Setenv("LOGPLANE_MEMORY_MIB", "256Mi")
	require.Contains(t, said(t, "api"), "LOGPLANE_MEMORY_MIB is '256Mi': it must be a whole number of MiB, 0 or at least 128")
}

// TestInit: before init, other commands tell the user to run init. init refuses a number of replicas that differs from
// the stream's. If init makes an authority, Pods trust that authority at once.
func TestInit(t *testing.T) {
	where := []string{"--nats", eventlogtest.Start(t).ConnectedUrl(), "--bucket", "file://" + t.TempDir()}
	with := func(args ...string) []string { return append(args, where...) }
	require.Contains(t, said(t, with("projector", "--once")...), "there is no stream 'logplane': run 'logplane init'")

	syscall.Umask(0o022) // else others may write where the credentials are made
	folder := filepath.Join(t.TempDir(), "credentials")
	var out, failed bytes.Buffer
	require.Zero(t, run(t.Context(), with("init", "--credentials", folder), &out, &failed), failed.String())
	authority := filepath.Join(folder, "ca.crt")
	require.Equal(t, 2, strings.Count(out.String(), "--root-ca-file "+authority+"\n"), "for 'api' and 'watcher', and for 'lifecycle': "+out.String())
	require.Zero(t, run(t.Context(), with("inspect", "get", "main/configmaps/default/kube-root-ca.crt"), &out, &failed), failed.String())
	pem, err := os.ReadFile(authority)
	require.NoError(t, err)
	require.Contains(t, strings.ReplaceAll(out.String(), " ", ""), strings.ReplaceAll(strings.SplitN(string(pem), "\n", 3)[1], " ", ""))

	t.Setenv("LOGPLANE_EXTERNAL_ADDRESS", "api.example:443") // a variable of 'api', which may share the environment: not an error
	require.Contains(t, said(t, with("init", "--replicas", "3")...),
		"stream 'logplane' has 1 replicas, not 3: change it with 'nats stream edit logplane --replicas 3', then run 'logplane init' again")
	require.Contains(t, said(t, with("inspect", "history", "nodes/a")...), "no version of '/nodes/a' is kept: is it a path such as '/configmaps/NAMESPACE/NAME', '/minions/NAME' for a node")
}

// TestDescriptions: every command has a description. Descriptions of flags refer to other flags by name, not by their
// places in the list, which is in alphabetical order.
func TestDescriptions(t *testing.T) {
	visit(newRoot(io.Discard), func(cmd *cobra.Command) {
		if strings.HasPrefix(cmd.CommandPath(), "logplane completion") {
			return
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			require.NotRegexp(t, "next (two|three|are)|files below|the same for all other", f.Usage, f.Name)
		})
		require.True(t, cmd.Long != "" || cmd.HasParent() && cmd.Parent().Name() == "inspect" || cmd.Name() == "version" || cmd.Name() == "help", "%s has no description", cmd.CommandPath())
	})
}

// TestHistoryByDefault: every command that commits keeps the past for a week, except the past of objects that change by
// themselves.
func TestHistoryByDefault(t *testing.T) {
	var commands []string
	for _, cmd := range newRoot(io.Discard).Commands() {
		if flag := cmd.Flags().Lookup("history"); flag != nil {
			commands = append(commands, cmd.Name())
			require.Equal(t, "168h0m0s", flag.Value.String(), cmd.Name())
			require.Contains(t, cmd.Flags().Lookup("history-rules").Value.String(), "nodes=24h", cmd.Name())
		}
	}
	require.Subset(t, commands, slices.Concat(serve.Handlers, []string{"dev", "init", "watcher"}), "each command that may commit, and each function")
}
