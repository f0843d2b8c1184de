package apiserver

import (
	"fmt"
	"net/http"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/kubestore/kubestoretest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// withTail makes a server whose process may hold the given number of bytes of events that are not committed.
func withTail(t *testing.T, bytes int) (*Server, *memory.Bucket) {
	t.Helper()
	bucket := memory.Strict(t)
	return newServer(t, func(c *Config) { c.Cell = kubestoretest.Cell(t, projection.Config{Bucket: bucket, TailBytes: bytes}) }), bucket
}

// large is a request that creates a ConfigMap of about 4 KiB.
func large(name string) request {
	return request{method: "POST", path: configMaps, body: fmt.Sprintf(`{"metadata":{"name":%q},"data":{"a":%q}}`, name, strings.Repeat("x", 4000))}
}

// While no commit succeeds, the events that a process holds grow. Once the process holds more events than it may, every
// write is answered 429 with Retry-After and changes nothing, while reads go on. After a commit, writes are accepted
// again.
func TestBackPressure(t *testing.T) {
	if testing.Short() {
		t.Skip("megabytes of writes")
	}
	s, bucket := withTail(t, 100_000)
	bucket.Inject(func(op memory.Op, key string) memory.Fault {
		if path.Base(key) == "root" && op != memory.OpGet {
			return memory.Fails
		}
		return memory.Works
	})
	var names []any
	var refused answer
	for refused.code != http.StatusTooManyRequests {
		require.Less(t, len(names), 100, "the tail has a budget")
		name := fmt.Sprintf("c%03d", len(names))
		refused = large(name).do(t, s)
		if refused.code != http.StatusTooManyRequests {
			require.Equal(t, 201, refused.code, refused.body)
			names = append(names, name)
		}
	}
	require.Greater(t, len(names), 10)
	for _, r := range []request{
		large("late"),
		{method: "PUT", path: configMaps + "/c000", body: `{"metadata":{"name":"c000"},"data":{"a":"changed"}}`},
		{method: "PATCH", path: configMaps + "/c000", contentType: "application/merge-patch+json", body: `{"data":{"a":"changed"}}`},
		{method: "DELETE", path: configMaps + "/c000"},
		{method: "DELETE", path: configMaps},
		{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"late"}}`},
	} {
		a := s.must(t, 429, r)
		require.Equal(t, "1", a.header.Get("Retry-After"), r.method)
		status := a.object(t)
		require.Equal(t, "Status", status["kind"])
		require.Equal(t, "TooManyRequests", status["reason"])
		require.EqualValues(t, 1, fieldOf(status, "details.retryAfterSeconds"))
		require.Contains(t, status["message"], "nothing was written")
	}
	require.Equal(t, names, configMapNames(t, s), "reads go on, and nothing was changed")
	require.Equal(t, strings.Repeat("x", 4000), fieldOf(s.must(t, 200, request{method: "GET", path: configMaps + "/c000"}).object(t), "data.a"))

	bucket.Inject(nil)
	eventlogtest.Eventually(t, "a commit succeeded, by the process itself", func() bool { return large("late").do(t, s).code == 201 })
	s.must(t, 200, request{method: "DELETE", path: configMaps + "/c000"})
	require.Equal(t, append(names[1:], "late"), configMapNames(t, s))
}

func configMapNames(t *testing.T, s *Server) (names []any) {
	t.Helper()
	items, _ := fieldOf(s.must(t, 200, request{method: "GET", path: configMaps}).object(t), "items").([]any)
	for _, item := range items {
		names = append(names, fieldOf(item.(map[string]any), "metadata.name"))
	}
	return names
}

// Without any projector, the process that serves requests commits before its tail has grown too long, and refuses
// nothing.
func TestTheAPIProjectsItself(t *testing.T) {
	s, bucket := withTail(t, 100_000)
	for i := range 100 {
		a := large(fmt.Sprintf("c%03d", i)).do(t, s)
		require.Equal(t, 201, a.code, a.body)
	}
	_, _, err := bucket.Get(t.Context(), "logplane/root")
	require.NoError(t, err, "a root was committed")
	v := s.config.Cell.Projection.Current()
	require.Less(t, uint64(v.Revision()-v.Applied()), uint64(20), "most of it is in the snapshot")
	require.Len(t, configMapNames(t, s), 100)
}
