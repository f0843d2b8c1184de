package cells

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/projection"
)

// TestBucketFolders: a folder's URL that looks relative is refused, because the URL would mean another folder than
// intended.
func TestBucketFolders(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, url := range []string{"file://cellx/bucket", "file:cellx", "file://", "file:///", "file:/cellx"} {
		where := Connection{Bucket: url}
		_, _, err := where.OpenBucket(t.Context())
		require.ErrorContains(t, err, "--bucket is '"+url+"': a folder must be 'file://' and its absolute path", url)
	}
	where := Connection{Bucket: "file://" + t.TempDir()}
	_, _, err := where.OpenBucket(t.Context())
	require.NoError(t, err)
	missing := filepath.Join(t.TempDir(), "missing")
	where = Connection{Bucket: "file://" + missing}
	_, _, err = where.OpenBucket(t.Context())
	require.ErrorContains(t, err, "there is no such folder")
	require.NoDirExists(t, missing, "who looks makes nothing")
}

// TestFolderURLs: each folder has a URL that leads to it and to no other folder.
func TestFolderURLs(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"plain", "with space", "a#b", "a?b", "a%41", "a%zz", "a\nb", "ä"} {
		folder := filepath.Join(root, name)
		where := Connection{Bucket: FolderURL(folder), Founds: true}
		_, _, err := where.OpenBucket(t.Context())
		require.NoError(t, err, name)
		require.DirExists(t, folder)
	}
	entries, err := os.ReadDir(root)
	require.NoError(t, err)
	require.Len(t, entries, 8)
}

// TestOthersBuckets: a process that serves from a folder in which others may write warns of that folder. A process that
// only reads does not warn.
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
			where := Connection{Bucket: "file://" + folder, ReadOnly: readOnly}
			_, _, err := where.OpenBucket(t.Context())
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

// TestHistoryRules: the default rules are those in the flag's text, and adapt to any other --history.
func TestHistoryRules(t *testing.T) {
	said := &[]projection.HistoryRule{}
	require.NoError(t, (&historyRules{rules: said}).Set(defaultHistoryRules.text))
	require.Equal(t, *defaultHistoryRules.rules, *said)
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
		kept, flags := Retention{}, pflag.NewFlagSet("", pflag.ContinueOnError)
		kept.Register(flags)
		require.NoError(t, flags.Parse(strings.Fields(c.args)), c.args)
		err := kept.Settle()
		if c.refused != "" {
			require.ErrorContains(t, err, c.refused, c.args)
			continue
		}
		require.NoError(t, err, c.args)
		require.Equal(t, c.history, kept.History, c.args)
		require.Len(t, kept.Rules, c.rules, c.args)
	}
	require.Len(t, *defaultHistoryRules.rules, 5, "nobody has changed them")
}
