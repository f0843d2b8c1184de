package apiserver

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/logplane/logplane/internal/apiserver/tokens"
)

// in returns the request for another cluster.
func (r request) in(cluster string) request {
	r.path = "/clusters/" + cluster + r.path
	return r
}

// grant gives users rights on Clusters, or in the cluster that the request for it names.
func (s *Server) grant(t *testing.T, by request, name, rule string, users ...string) {
	t.Helper()
	var subjects []string
	for _, user := range users {
		subjects = append(subjects, fmt.Sprintf(`{"kind":"User","apiGroup":%q,"name":%q}`, rbacv1.GroupName, user))
	}
	role, binding := by, by
	role.method, role.path, role.body = "POST", by.path+rbacPath+"/clusterroles", fmt.Sprintf(`{"metadata":{"name":%q},"rules":[%s]}`, name, rule)
	s.must(t, 201, role)
	binding.method, binding.path = "POST", by.path+rbacPath+"/clusterrolebindings"
	binding.body = fmt.Sprintf(`{"metadata":{"name":%q},"roleRef":{"apiGroup":%q,"kind":"ClusterRole","name":%q},"subjects":[%s]}`, name, rbacv1.GroupName, name, strings.Join(subjects, ","))
	s.must(t, 201, binding)
}

// onClusters is a rule about Clusters.
func onClusters(verb, names string) string {
	return fmt.Sprintf(`{"apiGroups":["clusters.logplane.dev"],"resources":["clusters"],"verbs":[%q],"resourceNames":[%s]}`, verb, names)
}

// TestRightsOfClusters: a cluster is made by who may make Clusters and branch its source, used by its creator and by
// who may use it, and inside it its own rules decide.
func TestRightsOfClusters(t *testing.T) {
	s := newGuarded(t)
	require.NoError(t, s.Bootstrap(t.Context()))
	root := request{}.as("root")
	list, create := request{method: "GET", path: configMaps}, request{method: "POST", path: clustersPath, body: branchOf("a", "")}
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`}.as("root"))
	s.grant(t, root, "makers", `{"apiGroups":["clusters.logplane.dev"],"resources":["clusters"],"verbs":["create"]}`, "ann", "bob")
	s.grant(t, root, "readers", `{"apiGroups":[""],"resources":["configmaps"],"verbs":["list"]}`, "bob")
	require.Contains(t, s.must(t, 403, create.as("ann")).body, "the verb 'branch' on the source is needed")
	require.Empty(t, s.branches(t))
	s.grant(t, root, "branchers", onClusters("branch", `"main"`), "ann")
	s.must(t, 201, create.as("ann"))

	// The creator is the administrator of the cluster, and of nothing else.
	require.Len(t, s.must(t, 200, list.in("a").as("ann")).object(t)["items"], 1)
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"y"}}`}.in("a").as("ann"))
	s.must(t, 403, list.as("ann"))
	require.Len(t, s.must(t, 200, list.as("bob")).object(t)["items"], 1, "main has not changed")

	// Without the right to use it, a cluster is like one that does not exist, whatever rights its rules give.
	for _, r := range []request{
		list, {method: "GET", path: "/healthz"}, {method: "POST", path: configMaps, body: "{}"}, {method: "GET", path: configMaps + "?watch=true"},
		{method: "GET", path: "/api/v1/watch"}, {method: "GET", path: configMaps + "?watch=1&timeout=abc"}, {method: "OPTIONS", path: configMaps},
		list.with("Impersonate-User", "x"), {method: "GET", path: "/at/1" + configMaps}, {method: "GET", path: "/at/never" + configMaps},
	} {
		for _, user := range []string{"bob", ""} {
			there, nowhere := r.in("a"), r.in("b")
			if user != "" {
				there, nowhere = there.with("Authorization", "Bearer bob-token"), nowhere.with("Authorization", "Bearer bob-token")
			}
			a, b := there.do(t, s), nowhere.do(t, s)
			require.Equal(t, b.code, a.code, r.path)
			require.Equal(t, strings.ReplaceAll(b.body, "/clusters/b", "/clusters/a"), a.body, r.path)
			require.NotEqual(t, 200, a.code, r.path)
		}
	}
	s.grant(t, root, "users", onClusters("use", `"a"`), "bob")
	s.must(t, 200, list.in("a").as("bob")) // by the rules that the cluster inherits
	s.must(t, 403, request{method: "DELETE", path: configMaps + "/x"}.in("a").as("bob"))
	s.grant(t, request{path: "/clusters/a"}.as("ann"), "deleters", `{"apiGroups":[""],"resources":["configmaps"],"verbs":["delete"]}`, "bob")
	s.must(t, 200, request{method: "DELETE", path: configMaps + "/x"}.in("a").as("bob"))
	s.must(t, 200, request{method: "GET", path: configMaps + "/x"}.as("root"))

	// Whoever acts as another user needs the right to use the cluster himself.
	s.must(t, 403, list.in("a").as("ann").with("Impersonate-User", "carl"))
	s.must(t, 200, list.in("a").as("root").with("Impersonate-User", "bob"))
	s.must(t, 403, list.in("b").as("bob").with("Impersonate-User", "ann"))

	// What describes the process is not the tenant's.
	for _, path := range []string{"/metrics", "/flagz", "/statusz"} {
		s.must(t, 404, request{method: "GET", path: path}.in("a").as("ann"))
	}
	s.must(t, 200, request{method: "GET", path: "/readyz"}.in("a").as("ann"))
	s.must(t, 200, list.in("main").as("bob"))
}

// TestTokensOfClusters: a service account's token is good in its own cluster only, and only as long as that lives, even
// if the clusters have the same account.
func TestTokensOfClusters(t *testing.T) {
	s, other := newAccounts(t, tokens.Config{Issuers: []string{issuer}, SigningKeyFile: writeKey(t, "key")})
	list := request{method: "GET", path: configMaps}
	secret := request{method: "POST", path: "/api/v1/namespaces/default/secrets",
		body: `{"metadata":{"name":"s","annotations":{"kubernetes.io/service-account.name":"builder"}},"type":"kubernetes.io/service-account-token"}`}.as("root")
	inSecret := func(a answer) string {
		text, err := base64.StdEncoding.DecodeString(fieldOf(a.object(t), "data.token").(string))
		require.NoError(t, err)
		return string(text)
	}
	ofMain, secretOfMain := s.issue(t, ""), inSecret(s.must(t, 201, secret))
	for _, name := range []string{"a", "b"} {
		s.must(t, 201, request{method: "POST", path: clustersPath, body: branchOf(name, "")}.as("root"))
	}
	issued := s.must(t, 201, request{method: "POST", path: accounts + "/builder/token", body: `{}`}.in("a").as("root")).object(t)
	token := fieldOf(issued, "status.token").(string)
	for _, server := range []*Server{s, other} {
		server.must(t, 200, list.bearing(ofMain))
		server.must(t, 200, list.bearing(secretOfMain))
		server.must(t, 200, list.in("a").bearing(token))
		server.must(t, 401, list.in("b").bearing(token))
		server.must(t, 401, list.bearing(token))
		server.must(t, 401, list.in("a").bearing(ofMain))
		server.must(t, 401, list.in("a").bearing(secretOfMain))
	}

	// A branch signs no token that main could take for one of its own.
	s.must(t, 200, request{method: "DELETE", path: "/api/v1/namespaces/default/secrets/s"}.in("a").as("root"))
	require.Nil(t, fieldOf(s.must(t, 201, secret.in("a")).object(t), "data.token"))

	discovery := s.must(t, 200, request{method: "GET", path: "/.well-known/openid-configuration"}.in("a").as("root")).object(t)
	key := fieldOf(s.must(t, 200, request{method: "GET", path: clustersPath + "/a"}.as("root")).object(t), "status.key")
	require.Equal(t, fmt.Sprintf("%s/clusters/%s", issuer, key), discovery["issuer"])
	require.Contains(t, discovery["jwks_uri"], fmt.Sprintf("/clusters/%s/openid/v1/jwks", key))

	// A second cluster of the name is another cluster.
	s.must(t, 200, request{method: "DELETE", path: clustersPath + "/a"}.as("root"))
	s.must(t, 404, list.in("a").as("root"))
	other.must(t, 404, list.in("a").as("root"))
	other.must(t, 201, request{method: "POST", path: clustersPath, body: branchOf("a", "")}.as("root"))
	for _, server := range []*Server{s, other} {
		server.must(t, 401, list.in("a").bearing(token))
		server.must(t, 200, list.in("a").as("root"))
		server.must(t, 404, list.in(fmt.Sprint(key)).as("root"))
	}
}

// TestPathsOfClusters: everything that a server tells a client about paths leads to the same cluster.
func TestPathsOfClusters(t *testing.T) {
	s := newServer(t)
	require.NoError(t, s.Bootstrap(t.Context()))
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"},"data":{"of":"main"}}`})
	made := s.must(t, 201, request{method: "POST", path: clustersPath, body: branchOf("a", "")}).object(t)
	key, begins := fieldOf(made, "status.key").(string), fieldOf(made, "status.revision").(float64)
	defined := s.must(t, 201, request{method: "POST", path: crdPath, body: fmt.Sprintf(outageCRD, "widget", "Widget")}.in("a"))
	require.Contains(t, defined.body, "widgets")
	s.must(t, 404, request{method: "GET", path: "/apis/ex.com/v1"})
	s.must(t, 200, request{method: "GET", path: "/apis/ex.com/v1"}.in("a"))
	s.must(t, 200, request{method: "GET", path: "/apis/ex.com/v1"}.in(key))

	index := s.must(t, 200, request{method: "GET", path: "/openapi/v3"}.in("a")).object(t)
	url := index["paths"].(map[string]any)["apis/ex.com/v1"].(map[string]any)["serverRelativeURL"].(string)
	require.Contains(t, s.must(t, 200, request{method: "GET", path: url}).body, "Widget")
	old, _, _ := strings.Cut(url, "?hash=")
	moved := request{method: "GET", path: strings.TrimPrefix(old, "/clusters/"+key) + "?hash=0"}.in("a").do(t, s)
	require.Equal(t, 301, moved.code)
	require.True(t, strings.HasPrefix(moved.header.Get("Location"), "/clusters/a/openapi/"), moved.header)

	// A branch has a past of its own, from its beginning on.
	changed := s.must(t, 200, request{method: "PATCH", path: configMaps + "/x", body: `{"data":{"of":"a"}}`, contentType: "application/merge-patch+json"}.in("a")).object(t)
	rev := fieldOf(changed, "metadata.resourceVersion").(string)
	at := func(revision string) answer {
		return request{method: "GET", path: "/at/" + revision + configMaps + "/x"}.in("a").do(t, s)
	}
	require.Equal(t, "a", fieldOf(at(rev).object(t), "data.of"))
	require.Equal(t, "main", fieldOf(at(fmt.Sprint(int(begins))).object(t), "data.of"))
	before := at(fmt.Sprint(int(begins) - 1))
	require.Equal(t, 410, before.code, before.body)
	require.Contains(t, before.body, "begins as 'main'")
	versions := s.must(t, 200, request{method: "GET", path: "/apis/history.logplane.dev/v1/namespaces/default/versions?fieldSelector=object%3Dconfigmaps/x"}.in("a")).object(t)
	require.Len(t, versions["items"], 2)
}

// TestABranchCallsNobody: the administrator of a cluster chooses the servers that its objects name, so none is called.
// What the cluster inherits of this kind stays in the way until it is deleted.
func TestABranchCallsNobody(t *testing.T) {
	s := newServer(t)
	require.NoError(t, s.Bootstrap(t.Context()))
	called := make(chan struct{}, 100)
	hook := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called <- struct{}{} }))
	t.Cleanup(hook.Close)
	s.must(t, 201, request{method: "POST", path: clustersPath, body: branchOf("a", "")})
	const hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
	s.must(t, 201, request{method: "POST", path: hooks, body: fmt.Sprintf(`{"metadata":{"name":"h"},"webhooks":[{"name":"h.ex.com","sideEffects":"None","admissionReviewVersions":["v1"],
		"clientConfig":{"url":%q},"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["*"],"resources":["configmaps"]}]}]}`, hook.URL)}.in("a"))
	refused := s.must(t, 500, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`}.in("a"))
	require.Contains(t, refused.body, "only the cluster main calls other servers")
	require.Empty(t, called)
	s.must(t, 200, request{method: "DELETE", path: hooks + "/h"}.in("a"))
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`}.in("a"))
	s.must(t, 405, request{method: "GET", path: "/api/v1/namespaces/default/pods/p/log"}.in("a"))
}

// TestChangesOfInheritedObjects: a change of an inherited object says what changed, and can be undone, also long after
// the object's last change in the source.
func TestChangesOfInheritedObjects(t *testing.T) {
	s := newServer(t)
	require.NoError(t, s.Bootstrap(t.Context()))
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"},"data":{"of":"main"}}`})
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"later"}}`})
	s.must(t, 201, request{method: "POST", path: clustersPath, body: branchOf("a", "")})
	s.must(t, 200, request{method: "PATCH", path: configMaps + "/x", body: `{"data":{"of":"a"}}`, contentType: "application/merge-patch+json"}.in("a"))
	changes := s.must(t, 200, request{method: "GET", path: "/apis/history.logplane.dev/v1/namespaces/default/changes?fieldSelector=object%3Dconfigmaps/x"}.in("a")).object(t)
	require.Len(t, changes["items"], 1)
	require.Equal(t, []any{"data.of"}, changes["items"].([]any)[0].(map[string]any)["changed"])
}

// TestUIDsOfBranches: a branch has uids of its own for the namespaces by which clusters are told apart, unless other
// objects refer to these: such objects would be taken for garbage.
func TestUIDsOfBranches(t *testing.T) {
	s := newServer(t)
	require.NoError(t, s.Bootstrap(t.Context()))
	uid := func(cluster, path string) any {
		return fieldOf(s.must(t, 200, request{method: "GET", path: path}.in(cluster)).object(t), "metadata.uid")
	}
	const system, account = "/api/v1/namespaces/kube-system", "/api/v1/namespaces/default/serviceaccounts/default"
	s.must(t, 201, request{method: "POST", path: configMaps, body: fmt.Sprintf(`{"metadata":{"name":"x","ownerReferences":[{"apiVersion":"v1","kind":"Namespace","name":"default","uid":%q}]}}`,
		uid("main", "/api/v1/namespaces/default"))})
	s.must(t, 201, request{method: "POST", path: clustersPath, body: branchOf("a", "")})
	s.must(t, 201, request{method: "POST", path: clustersPath, body: `{"metadata":{"name":"b"}}`})
	require.NotEqual(t, uid("main", system), uid("a", system))
	require.Equal(t, uid("main", "/api/v1/namespaces/default"), uid("a", "/api/v1/namespaces/default"))
	require.Equal(t, uid("main", account), uid("a", account))
	for _, path := range []string{system, account, "/api/v1/namespaces/default"} {
		require.NotEqual(t, uid("main", path), uid("b", path))
	}
	s.must(t, 201, request{method: "POST", path: clustersPath, body: `{"metadata":{"name":"c"}}`})
	require.NotEqual(t, uid("c", system), uid("b", system))
}

// TestANameUsedAgain: a client of a cluster that has ended does not go on in a later one of the same name.
func TestANameUsedAgain(t *testing.T) {
	s := newServer(t, withFeed(t))
	require.NoError(t, s.Bootstrap(t.Context()))
	empty := request{method: "POST", path: clustersPath, body: `{"metadata":{"name":"a"}}`}
	s.must(t, 201, empty)
	x := s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`}.in("a")).object(t)
	s.must(t, 200, request{method: "DELETE", path: clustersPath + "/a"})
	s.must(t, 201, empty)
	rev := fieldOf(x, "metadata.resourceVersion").(string)
	s.must(t, 410, request{method: "GET", path: configMaps + "?resourceVersionMatch=Exact&resourceVersion=" + rev}.in("a"))
	ended := s.must(t, 200, request{method: "GET", path: configMaps + "?watch=1&timeoutSeconds=5&resourceVersion=" + rev}.in("a"))
	require.Contains(t, ended.body, `"code":410`)
}
