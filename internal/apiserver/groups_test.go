package apiserver

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every group that kube-apiserver serves by default can be built. Everything in it
// that can be listed is listed, in every scope, although nothing was ever stored.
func TestEveryGroup(t *testing.T) {
	s := newServer(t)
	var empty []string
	for _, b := range builtins() {
		built, err := s.groups[b.name].get()
		require.NoError(t, err)
		if len(built.discovery) == 0 {
			empty = append(empty, b.name)
		}
		for _, version := range built.discovery {
			root := "/apis/" + b.name + "/" + version.Version + "/"
			if b.name == "" {
				root = "/api/v1/"
			}
			for _, resource := range version.Resources {
				if !slices.Contains(resource.Verbs, "list") {
					continue
				}
				got := request{method: "GET", path: root + resource.Resource}.do(t, s)
				require.Equal(t, 200, got.code, "%s%s: %s", root, resource.Resource, got.body)
				table := request{method: "GET", path: root + resource.Resource, accept: "application/json;as=Table;v=v1;g=meta.k8s.io"}.do(t, s)
				require.Equal(t, 200, table.code, "%s%s: %s", root, resource.Resource, table.body)
				if resource.Scope == "Namespaced" {
					got := request{method: "GET", path: root + "namespaces/default/" + resource.Resource}.do(t, s)
					require.Equal(t, 200, got.code, "%s%s: %s", root, resource.Resource, got.body)
				}
			}
		}
	}
	require.Equal(t, []string{"internal.apiserver.k8s.io", "storagemigration.k8s.io"}, empty, "groups without a version that is on by default")
}

// A local APIService of a version that nobody serves is stored, and changes nothing (row 65).
func TestAPIServices(t *testing.T) {
	s := newServer(t)
	local := s.must(t, 201, request{method: "POST", path: apiServices, body: `{"metadata":{"name":"v1.local.example"},"spec":{"group":"local.example","version":"v1","groupPriorityMinimum":100,"versionPriority":100}}`})
	require.Contains(t, local.body, `"reason":"Local"`)
	applied := s.must(t, 200, request{method: "PATCH", path: apiServices + "/v1.local.example?fieldManager=x", contentType: "application/apply-patch+yaml", body: `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.local.example","labels":{"a":"b"}}}`})
	require.Contains(t, applied.body, `"a":"b"`)
	s.must(t, 404, request{method: "GET", path: "/apis/local.example/v1/things"})
	s.must(t, 404, request{method: "GET", path: "/apis/local.example"})
}
