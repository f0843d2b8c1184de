package apiserver

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/internal/apiserver/history"
)

// Every group that kube-apiserver serves by default can be built. Every resource that can be listed is listed, in every
// scope, although no object was ever stored.
func TestEveryGroup(t *testing.T) {
	s := newServer(t)
	var empty []string
	for _, b := range builtins() {
		built, err := s.groups[b.name].get()
		require.NoError(t, err)
		routes, err := s.route(&built.info, func(string) bool { return true })
		require.NoError(t, err)
		served := discoveryOf(t, b.name, routes).Versions
		if len(served) == 0 {
			empty = append(empty, b.name)
		}
		for _, version := range served {
			root := "/apis/" + b.name + "/" + version.Name + "/"
			if b.name == "" {
				root = "/api/v1/"
			}
			for _, resource := range version.Resources {
				if !slices.Contains(resource.Verbs, "list") {
					continue
				}
				if b.name == history.GroupName && resource.Name == "versions" {
					resource.Name += "?fieldSelector=object%3Dconfigmaps/default/x" // these lists are of one object
				}
				got := request{method: "GET", path: root + resource.Name}.do(t, s)
				require.Equal(t, 200, got.code, "%s%s: %s", root, resource.Name, got.body)
				table := request{method: "GET", path: root + resource.Name, accept: "application/json;as=Table;v=v1;g=meta.k8s.io"}.do(t, s)
				require.Equal(t, 200, table.code, "%s%s: %s", root, resource.Name, table.body)
				if resource.Namespaced {
					got := request{method: "GET", path: root + "namespaces/default/" + resource.Name}.do(t, s)
					require.Equal(t, 200, got.code, "%s%s: %s", root, resource.Name, got.body)
				}
			}
		}
	}
	require.Equal(t, []string{"internal.apiserver.k8s.io"}, empty, "groups without a version that is on by default")
}

// The routes to a resource are made by the first request for it. All names that the group does not have share one
// entry, so nobody can fill the memory with them.
func TestRoutesAreMadeWhenTheyAreAskedFor(t *testing.T) {
	s := newServer(t)
	s.must(t, 200, request{method: "GET", path: "/api/v1/namespaces/default/configmaps"})
	core, err := s.groups[""].get()
	require.NoError(t, err)
	require.NotContains(t, core.routes, "pods")
	s.must(t, 200, request{method: "GET", path: "/api/v1/pods"})
	s.must(t, 404, request{method: "GET", path: "/api/v1/namespaces/default/pods/p/nothing"})
	require.Contains(t, core.routes, "pods")
	before := len(core.routes)
	for _, name := range []string{"one", "two", "pods%2Fstatus", "*"} {
		got := s.must(t, 404, request{method: "GET", path: "/api/v1/namespaces/default/" + name})
		require.Contains(t, got.body, `"kind":"Status"`)
	}
	require.Len(t, core.routes, before+1)
}

// A local APIService of a version that is not served is stored, and has no effect (row 65).
func TestAPIServices(t *testing.T) {
	s := newServer(t)
	local := s.must(t, 201, request{method: "POST", path: apiServices, body: `{"metadata":{"name":"v1.local.example"},"spec":{"group":"local.example","version":"v1","groupPriorityMinimum":100,"versionPriority":100}}`})
	require.Contains(t, local.body, `"reason":"Local"`)
	applied := s.must(t, 200, request{method: "PATCH", path: apiServices + "/v1.local.example?fieldManager=x", contentType: "application/apply-patch+yaml", body: `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.local.example","labels":{"a":"b"}}}`})
	require.Contains(t, applied.body, `"a":"b"`)
	s.must(t, 404, request{method: "GET", path: "/apis/local.example/v1/things"})
	s.must(t, 404, request{method: "GET", path: "/apis/local.example"})
}

// TestDeclarativeValidation: upstream's declarative rules are enforced in place of the handwritten rules, also where
// our strategies wrap upstream's strategies. Otherwise upstream's answer would name each mistake several times.
func TestDeclarativeValidation(t *testing.T) {
	s := newServer(t, withTokens(t))
	const schemas = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"
	schema := `{"metadata":{"name":"a"},"spec":{"priorityLevelConfiguration":{"name":"a"},"matchingPrecedence":2}}`
	for path, object := range map[string]string{configMaps: configMap("a", "1"), schemas: schema} {
		s.must(t, 201, request{method: "POST", path: path, body: object}.as("root"))
		refused := s.must(t, 422, merging("PATCH", path+"/a", `{"metadata":{"ownerReferences":[{"kind":"x"}]}}`).as("root"))
		require.Len(t, fieldOf(refused.object(t), "details.causes"), 3, path)
	}
}

// TestManyMistakes: an answer lists some of an object's mistakes, and says how many there are.
func TestManyMistakes(t *testing.T) {
	s := newServer(t)
	containers := strings.TrimSuffix(strings.Repeat("{},", 300), ",")
	refused := s.must(t, 422, request{method: "POST", path: "/api/v1/namespaces/default/pods", body: `{"metadata":{"name":"a"},"spec":{"containers":[` + containers + `]}}`})
	require.Len(t, fieldOf(refused.object(t), "details.causes"), 101)
	require.Regexp(t, `these are 100 of [3-9]\d\d mistakes`, refused.body)
}
