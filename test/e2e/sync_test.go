package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/test/product"
)

// TestSyncBeforeAcknowledgement traces the system calls of 'logplane dev' during one write. An fsync or fdatasync of
// the log's file must come between the write of the event to that file and the HTTP answer.
func TestSyncBeforeAcknowledgement(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("strace is missing: install Debian's package 'strace'")
		}
		t.Skip("strace is not installed")
	}
	server := product.Dev(t, t.TempDir())
	_, typed, _ := clientsFor(t, server.URL())
	_, err = typed.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "warm"}}, metav1.CreateOptions{})
	require.NoError(t, err)

	trace := filepath.Join(t.TempDir(), "trace")
	tracer := exec.Command(strace, "-f", "-tt", "-y", "-s", "8192", "-e", "trace=write,pwrite64,writev,fsync,fdatasync", "-o", trace, "-p", strconv.Itoa(server.Cmd.Process.Pid))
	require.NoError(t, tracer.Start())
	defer func() { _ = tracer.Process.Kill(); _ = tracer.Wait() }()

	// strace attaches to one thread after another. So the test repeats the write until it was traced from append to
	// answer.
	for attempt, deadline := 0, time.Now().Add(time.Minute); time.Now().Before(deadline); attempt++ {
		marker := fmt.Sprintf("MarkedBodyOfTracedWrite%dEnd", attempt)
		_, err := typed.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "traced-"}, Data: map[string]string{"a": marker},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		calls, err := os.ReadFile(trace)
		if os.IsNotExist(err) {
			continue
		}
		require.NoError(t, err)
		appended, synced, answered := order(string(calls), marker)
		if appended > 0 && answered > 0 {
			require.Greater(t, synced, appended, "no sync between append and answer")
			require.Greater(t, answered, synced, "answered before the sync")
			return
		}
	}
	t.Fatal("strace saw no write from append to answer within a minute")
}

// order returns three line numbers: of the first write of the marker to the log's block file, of the first sync of a
// block file after that write, and of the answer after that sync. The number of a missing line is 0.
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
