package apiserver

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/logplane/logplane/eventlog"
)

// TestCorruptObjects: a list names objects that cannot be decoded. A user needs a special right to delete such an
// object, and nobody can delete any other object in that way.
func TestCorruptObjects(t *testing.T) {
	s := newServer(t, withTokens(t), func(c *Config) { c.Authorization.Mode = "RBAC" })
	require.NoError(t, s.Bootstrap(t.Context()))
	s.must(t, 201, request{method: "POST", path: rbacPath + "/namespaces/default/rolebindings", body: bindAnn("ClusterRole", "edit")}.as("root"))
	s.must(t, 201, request{method: "POST", path: configMaps, body: configMap("a", "1")}.as("root"))
	for _, name := range []string{"b", "c"} {
		view, err := s.config.Cell.Projection.Latest(t.Context())
		require.NoError(t, err)
		at, err := view.State(t.Context(), eventlog.Key{Cluster: "main", Resource: "configmaps", Prefix: "/configmaps", Namespace: "default", Name: name})
		require.NoError(t, err)
		_, err = view.Append(t.Context(), name, at.Put(runtime.ContentTypeProtobuf, []byte("k8s\x00garbage"), 0))
		require.NoError(t, err)
	}
	of := func(method, user, path, body string) request {
		return request{method: method, path: configMaps + path, body: body}.as(user)
	}
	const unsafe = `{"kind":"DeleteOptions","apiVersion":"v1","ignoreStoreReadErrorWithClusterBreakingPotential":true}`
	s.must(t, 500, of("GET", "ann", "/b", ""))
	s.must(t, 500, of("DELETE", "ann", "/b", ""))
	list := s.must(t, 500, of("GET", "ann", "", "")).object(t)
	require.Equal(t, "StorageReadError", list["reason"])
	require.Len(t, fieldOf(list, "details.causes"), 2)
	require.Contains(t, s.must(t, 403, of("DELETE", "ann", "/b", unsafe)).body, "unsafe-delete-ignore-read-errors")
	s.must(t, 500, of("GET", "ann", "/b", ""))

	s.must(t, 200, of("DELETE", "root", "/b", unsafe))
	s.must(t, 404, of("GET", "ann", "/b", ""))
	require.Len(t, fieldOf(s.must(t, 500, of("GET", "ann", "?limit=2", "")).object(t), "details.causes"), 1)
	s.must(t, 200, of("DELETE", "root", "/c", unsafe))
	require.Len(t, fieldOf(s.must(t, 200, of("GET", "ann", "", "")).object(t), "items"), 1)
	s.must(t, 409, of("DELETE", "root", "/a", unsafe))
}
