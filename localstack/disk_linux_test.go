package localstack_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/localstack"
)

// TestFullDisk: after the log's disk was full, the cell writes again as soon as the disk has space. Until then the
// cell's answers name the fault.
func TestFullDisk(t *testing.T) {
	disk := eventlogtest.MountDisk(t, 64<<20)
	c := start(t, localstack.Config{Folder: disk.Folder})
	// write does not use client-go, which would retry after a 503.
	write := func(name string) (int, string) {
		body := fmt.Sprintf(`{"metadata":{"name":%q},"data":{"x":%q}}`, name, strings.Repeat("x", 100_000))
		got, err := http.Post(c.URL()+"/api/v1/namespaces/default/configmaps", "application/json", strings.NewReader(body))
		require.NoError(t, err)
		defer got.Body.Close()
		text, err := io.ReadAll(got.Body)
		require.NoError(t, err)
		return got.StatusCode, string(text)
	}
	ready := func() (int, string) {
		got, err := http.Get(c.URL() + "/readyz?verbose")
		require.NoError(t, err)
		defer got.Body.Close()
		text, err := io.ReadAll(got.Body)
		require.NoError(t, err)
		return got.StatusCode, string(text)
	}
	written := map[string]bool{}
	create := func(name string) {
		t.Helper()
		code, text := write(name)
		require.Equal(t, http.StatusCreated, code, text)
		written[name] = true
	}
	create("before")
	for round := range 2 {
		disk.Fill(t)
		code := http.StatusCreated
		for i := 0; code == http.StatusCreated; i++ {
			require.Less(t, i, 100, "the disk is full")
			name := fmt.Sprintf("full-%d-%d", round, i)
			code, _ = write(name)
			if code == http.StatusCreated {
				written[name] = true
			}
		}
		eventlogtest.Eventually(t, "the process is not ready", func() bool {
			code, text := ready()
			return code == http.StatusInternalServerError && strings.Contains(text, "[-]writable failed")
		})
		code, text := write("refused")
		require.Equal(t, http.StatusServiceUnavailable, code, text)
		require.Contains(t, text, "nothing was written")
		require.Contains(t, text, "no space left on device")
		_, err := c.CoreV1().ConfigMaps("default").Get(t.Context(), "before", metav1.GetOptions{})
		require.NoError(t, err, "what there is can be read")

		disk.Free(t)
		eventlogtest.Eventually(t, "the process is ready", func() bool { code, _ := ready(); return code == http.StatusOK })
		create(fmt.Sprint("after-", round))
	}
	list, err := c.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, one := range list.Items {
		delete(written, one.Name)
	}
	require.Empty(t, written, "acknowledged and lost")
}

// TestCredentialsOnAFullDisk: wherever the disk becomes full, the next process makes the missing files.
func TestCredentialsOnAFullDisk(t *testing.T) {
	disk := eventlogtest.MountDisk(t, 1<<20)
	failed := 0
	for pages := range int64(12) {
		folder := filepath.Join(disk.Folder, "credentials")
		require.NoError(t, os.Mkdir(folder, 0o700))
		disk.Fill(t)
		disk.Leave(t, pages<<12)
		if _, err := localstack.EnsureCredentials(folder, "localhost:7373"); err != nil {
			failed++
		}
		disk.Free(t)
		_, err := localstack.EnsureCredentials(folder, "localhost:7373")
		require.NoError(t, err, "%d pages", pages)
		require.NoError(t, os.RemoveAll(folder))
	}
	require.GreaterOrEqual(t, failed, 6, "once for each file")
	require.Less(t, failed, 12)
}
