package main

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection"
)

// said runs a command that must fail, and returns its one line.
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
		"api --cluster A/B":                                "--cluster is 'A/B': ",
		"inspect head --cluster A/B":                       "--cluster is 'A/B': ",
		"init --cluster A/B":                               "--cluster is 'A/B': ",
		"init --replicas 0":                                "--replicas is 0: it must be 1, 3 or 5",
		"init --replicas 2":                                "--replicas is 2: it must be 1, 3 or 5",
		"init --external-address api.example:443":          "--external-address is for --credentials",
		"api --external-address foo":                       "--external-address is 'foo': it must be HOST:PORT",
		"api --listen foo":                                 "--listen is 'foo': it must be HOST:PORT",
		"dev --listen foo":                                 "--listen is 'foo': it must be HOST:PORT",
		"dev --events-listen 0.0.0.0:4222 --data /nowhere": "let others subscribe at a NATS server of your own",
		"dev --max-watches-per-user -1":                    "--max-watches-per-user is -1: it must be at least 0",
		"watcher --max-watches -1":                         "--max-watches is -1: it must be at least 0",
		"watcher --drain -1s":                              "--drain is -1s: it must be at least 0s",
		"watcher --slow-client -1s":                        "--slow-client is -1s: it must be at least 1ms",
		"lifecycle --settle -1s":                           "--settle is -1s: it must be at least 1ms",
		"api --kubelet-preferred-address-types Foo":        "--kubelet-preferred-address-types has 'Foo': it must be of 'Hostname', ",
		"api --requestheader-client-ca-file /nowhere":      "--requestheader-client-ca-file: read authorities to publish: open /nowhere",
		"kubeconfig --user ann --duration -1s":             "--duration is -1s: it must be at least 0s",
		"api --log-level trace":                            "it must be 'debug', 'info', 'warn' or 'error'",
		"inspect head --memory-mib 1":                      "unknown flag: --memory-mib: 'logplane inspect head --help' lists those there are",
		"events --retention 1h":                            "unknown flag: --retention: 'logplane events --help' lists those there are",
		"fence --memory-mib 1":                             "unknown flag: --memory-mib: 'logplane fence --help' lists those there are",
	} {
		require.Contains(t, said(t, strings.Fields(line)...), why, line)
	}
	t.Setenv("LOGPLANE_MEMORY_MIB", "256Mi")
	require.Contains(t, said(t, "api"), "LOGPLANE_MEMORY_MIB is '256Mi': it must be a whole number of MiB, 0 or at least 128")
}

// TestBucketFolders: a folder's URL that looks relative is refused, because it would mean another folder than intended.
func TestBucketFolders(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, url := range []string{"file://cellx/bucket", "file:cellx", "file://", "file:///", "file:/cellx"} {
		where := connection{bucket: url}
		_, _, err := where.openBucket(t.Context())
		require.ErrorContains(t, err, "--bucket is '"+url+"': a folder must be 'file://' and its absolute path", url)
	}
	where := connection{bucket: "file://" + t.TempDir()}
	_, _, err := where.openBucket(t.Context())
	require.NoError(t, err)
	missing := filepath.Join(t.TempDir(), "missing")
	where = connection{bucket: "file://" + missing}
	_, _, err = where.openBucket(t.Context())
	require.ErrorContains(t, err, "there is no such folder")
	require.NoDirExists(t, missing, "who looks makes nothing")
}

// TestOthersBuckets: a process that serves from a folder in which others may write warns of it. One that only reads
// does not.
func TestOthersBuckets(t *testing.T) {
	var logged bytes.Buffer
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	slog.SetDefault(slog.New(slog.NewTextHandler(&logged, nil)))
	syscall.Umask(0o022)
	folder := t.TempDir()
	for mode, says := range map[os.FileMode]bool{0o755: false, 0o775: true, 0o757: true} {
		require.NoError(t, os.Chmod(folder, mode))
		for _, readOnly := range []bool{false, true} {
			logged.Reset()
			where := connection{bucket: "file://" + folder, readOnly: readOnly}
			_, _, err := where.openBucket(t.Context())
			require.NoError(t, err)
			if says && !readOnly {
				require.Contains(t, logged.String(), "other users may write '"+folder+"'")
				require.Contains(t, logged.String(), "chmod go-w")
			} else {
				require.Empty(t, logged.String())
			}
		}
	}
}

// TestInit: before init, other commands say to run it. It refuses a number of replicas that the stream does not have.
// If it makes an authority, Pods trust that authority at once.
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

	t.Setenv("LOGPLANE_EXTERNAL_ADDRESS", "api.example:443") // of the environment that 'api' has too: not an error
	require.Contains(t, said(t, with("init", "--replicas", "3")...),
		"stream 'logplane' has 1 replicas, not 3: change it with 'nats stream edit logplane --replicas 3', then run 'logplane init' again")
	require.Contains(t, said(t, with("inspect", "history", "nodes/a")...), "no version of '/nodes/a' is kept: is it a path such as '/configmaps/NAMESPACE/NAME', '/minions/NAME' for a node")
}

// TestFlagsAreDocumented: docs/flags.md names each flag of each command. Descriptions refer to other flags by name, not
// by their places in the list, which is in alphabetical order.
func TestFlagsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/flags.md")
	require.NoError(t, err)
	named := map[string]bool{}
	for _, word := range strings.FieldsFunc(string(text), func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }) {
		named[word] = true
	}
	visit(newRoot(io.Discard), func(cmd *cobra.Command) {
		if strings.HasPrefix(cmd.CommandPath(), "logplane completion") {
			return
		}
		look := func(f *pflag.Flag) {
			require.True(t, f.Name == "help" || named["--"+f.Name], "%s --%s is not in docs/flags.md", cmd.CommandPath(), f.Name)
			require.NotRegexp(t, "next (two|three|are)|files below|the same for all other", f.Usage, f.Name)
		}
		cmd.Flags().VisitAll(look)
		cmd.PersistentFlags().VisitAll(look)
		require.True(t, cmd.Long != "" || cmd.HasParent() && cmd.Parent().Name() == "inspect" || cmd.Name() == "version" || cmd.Name() == "help", "%s has no description", cmd.CommandPath())
	})
}

// TestHistoryByDefault: every command that commits keeps the past for a week, except of objects that change by
// themselves. The rules are those in the flag's text, and adapt to any other --history.
func TestHistoryByDefault(t *testing.T) {
	said := &[]projection.HistoryRule{}
	require.NoError(t, (&historyRules{rules: said}).Set(defaultHistoryRules.text))
	require.Equal(t, *defaultHistoryRules.rules, *said)
	var commands []string
	for _, cmd := range newRoot(io.Discard).Commands() {
		if flag := cmd.Flags().Lookup("history"); flag != nil {
			commands = append(commands, cmd.Name())
			require.Equal(t, "168h0m0s", flag.Value.String(), cmd.Name())
			require.Equal(t, defaultHistoryRules.text, cmd.Flags().Lookup("history-rules").Value.String(), cmd.Name())
		}
	}
	require.Subset(t, commands, slices.Concat(handlers, []string{"dev", "init", "watcher"}), "each command that may commit, and each function")

	for _, c := range []struct {
		args    string
		history time.Duration
		rules   int
		refused string
	}{
		{"", defaultHistory, 5, ""},
		{"--history 0", 0, 0, ""},
		{"--history 2h", 2 * time.Hour, 4, ""},
		{"--retention 1h --history 1h", time.Hour, 1, ""},
		{"--retention 200h", 200 * time.Hour, 5, ""},
		{"--history-rules none", defaultHistory, 0, ""},
		{"--history-rules secrets=24h", defaultHistory, 1, ""},
		{"--history 12h --history-rules secrets=24h", 12 * time.Hour, 1, "it must be for less than --history"},
		{"--history 30m", 30 * time.Minute, 0, "it must be 0 or at least --retention"},
	} {
		where, flags := connection{reads: "quorum", cluster: "main", blockCacheFolderMiB: 1}, pflag.NewFlagSet("", pflag.ContinueOnError)
		registerRetention(flags, &where.logRetention, &where.retention, &where.history, &where.historyRules, &where.checkpoints)
		require.NoError(t, flags.Parse(strings.Fields(c.args)), c.args)
		err := where.check()
		if c.refused != "" {
			require.ErrorContains(t, err, c.refused, c.args)
			continue
		}
		require.NoError(t, err, c.args)
		require.Equal(t, c.history, where.history, c.args)
		require.Len(t, where.historyRules, c.rules, c.args)
	}
	require.Len(t, *defaultHistoryRules.rules, 5, "nobody has changed them")
}
