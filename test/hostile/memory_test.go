package hostile

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/test/product"
)

// TestMemoryComesBack: a load takes several times the memory of a fresh process. A minute after the load, the process
// has released that memory. On e14eff4 an idle process keeps all the memory.
func TestMemoryComesBack(t *testing.T) {
	s := serve(t, "api")
	s.asOwner(tenant)
	path := "/api/v1/namespaces/tenant/configmaps"
	value := strings.Repeat("0123456789", 3000)
	for range 20 { // warm up
		s.must(tenant, http.MethodGet, path, "")
	}
	start := s.memory()
	for i := range 2000 {
		s.must(tenant, http.MethodPost, path, fmt.Sprintf(`{"metadata":{"name":"large-%d"},"data":{"k":"%d%s"}}`, i, i, value))
	}
	var listing sync.WaitGroup
	for range 12 {
		listing.Go(func() {
			for range 4 {
				s.must(tenant, http.MethodGet, path, "")
			}
		})
	}
	listing.Wait()
	peak := s.memory()
	require.Greater(t, peak, 2*start)
	require.Eventually(t, func() bool { return s.memory() < min(peak/2, start*3/2) }, time.Minute, time.Second,
		"%d MiB at the start, %d MiB at the peak", start>>20, peak>>20)
}

// TestMemoryLimit: a process obeys the limit of its container or function, but a limit that the user sets wins. On
// e14eff4 only GOMEMLIMIT limits a process.
func TestMemoryLimit(t *testing.T) {
	limit := func(t *testing.T) float64 { return serve(t, "api").sum("go_gc_gomemlimit_bytes") }
	t.Run("function", func(t *testing.T) {
		t.Setenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "1000")
		require.Equal(t, float64(900<<20), limit(t))
	})
	t.Run("user", func(t *testing.T) {
		t.Setenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "1000")
		t.Setenv("GOMEMLIMIT", "2000MiB")
		require.Equal(t, float64(2000<<20), limit(t))
	})
	t.Run("container", func(t *testing.T) {
		binary := product.Logplane(t)
		t.Setenv("LOGPLANE_BINARY", inContainer(t, binary, 1000<<20))
		require.Equal(t, float64(900<<20), limit(t))
	})
}

// inContainer returns a command that runs the binary with that limit of memory.
func inContainer(t *testing.T, binary string, limit int) string {
	t.Helper()
	for _, hierarchy := range []struct{ path, file string }{{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "memory.max"}} {
		group, err := os.MkdirTemp(hierarchy.path, "logplane-test-")
		if err != nil {
			continue
		}
		t.Cleanup(func() { _ = os.Remove(group) }) // after the processes have ended
		if os.WriteFile(filepath.Join(group, hierarchy.file), fmt.Append(nil, limit), 0o644) != nil {
			continue
		}
		command := filepath.Join(t.TempDir(), "logplane")
		script := fmt.Sprintf("#!/bin/sh\necho $$ > %s/cgroup.procs && exec %s \"$@\"\n", group, binary)
		require.NoError(t, os.WriteFile(command, []byte(script), 0o755))
		return command
	}
	t.Skip("no cgroup can be made here")
	return ""
}
