package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSyncBeforeAcknowledgement traces the system calls of 'logplane dev' during one write: between the
// write of the event to the log's file and the HTTP answer there is an fsync or fdatasync of that file.
func TestSyncBeforeAcknowledgement(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("strace is missing: install Debian's package 'strace'")
		}
		t.Skip("strace is not installed")
	}
	server := dev(t, t.TempDir())
	_, typed, _ := clientsFor(t, server.url())
	_, err = typed.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "warm"}}, metav1.CreateOptions{})
	require.NoError(t, err)

	const marker = "MarkedBodyOfTheTracedWrite"
	trace := filepath.Join(t.TempDir(), "trace")
	tracer := exec.Command(strace, "-f", "-tt", "-y", "-s", "8192", "-e", "trace=write,pwrite64,writev,fsync,fdatasync,openat", "-o", trace, "-p", pid(server))
	require.NoError(t, tracer.Start())
	defer func() { _ = tracer.Process.Kill(); _ = tracer.Wait() }()
	waitForFile(t, trace, func() {
		_, err := typed.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "traced-"}, Data: map[string]string{"a": marker},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}, `HTTP/1\.1 201`)

	calls, err := os.ReadFile(trace)
	require.NoError(t, err)
	appended, synced, answered := order(string(calls), marker)
	require.Positive(t, appended, "no write of the event seen")
	require.Greater(t, synced, appended, "no sync after the append")
	require.Greater(t, answered, synced, "answered before the sync")
}

// order finds the line numbers of the first write of the marker to the log's block file, the first sync of
// a block file after it, and the answer after that; 0 for what is missing.
func order(trace, marker string) (appended, synced, answered int) {
	sync := regexp.MustCompile(`(fsync|fdatasync)\(\d+<[^>]*/msgs/[^>]*\.blk>|fsync resumed|fdatasync resumed`)
	for i, line := range strings.Split(trace, "\n") {
		switch {
		case appended == 0 && strings.Contains(line, ".blk>") && strings.Contains(line, marker):
			appended = i + 1
		case appended > 0 && synced == 0 && sync.MatchString(line):
			synced = i + 1
		case appended > 0 && answered == 0 && strings.Contains(line, "HTTP/1.1 201") && strings.Contains(line, marker):
			answered = i + 1
		}
	}
	return appended, synced, answered
}

// waitForFile repeats the action until the traced answer shows up: strace attaches at its own pace.
func waitForFile(t *testing.T, path string, action func(), pattern string) {
	t.Helper()
	expected := regexp.MustCompile(pattern)
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		action()
		if content, err := os.ReadFile(path); err == nil && expected.Match(content) {
			return
		}
	}
	t.Fatal("strace saw no answer within a minute")
}
