package apiserver

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
)

// The tables of this file contain the cases of upstream's tests. Comments give the names of those tests. Upstream's
// tests call functions; here the same questions are asked over HTTP.

// TestNobodyGrantsMoreThanTheyHave has the cases of component-helpers/auth/rbac/validation, 'TestCovers…': the rules
// that a user owns, the rules that the user wants to grant, and the wanted rules that the user lacks. Two of upstream's
// cases mix resources and paths in one rule; such a rule cannot be stored. Each case is tried as a new role, as a
// changed role, and as a binding to an existing role. Rules that an administrator has just written on another process
// apply at once.
func TestNobodyGrantsMoreThanTheyHave(t *testing.T) {
	one, other, _ := twoServers(t, withTokens(t), func(c *Config) { c.Authorization.Mode = "RBAC" })
	post := func(path, body string) {
		one.must(t, 201, request{method: "POST", path: path, body: body}.as("root"))
	}
	post("/api/v1/namespaces", `{"metadata":{"name":"default"}}`) // not by Bootstrap, whose roles grant some of the paths
	post(clusterRolesPath, roleOf("clerk", can("create,update,patch,get", rbacv1.GroupName, "roles,rolebindings,clusterroles,clusterrolebindings")))
	post(clusterRoleBindingsPath, boundTo("clerk", "ClusterRole", "clerk", "ann"))
	post(clusterRolesPath, roleOf("owned"))
	post(clusterRoleBindingsPath, boundTo("owned", "ClusterRole", "owned", "ann"))
	post(clusterRolesPath, roleOf("wanted"))
	post(clusterRolesPath, roleOf("mine"))
	post(rolesPath, roleOf("mine"))

	type rules = []rbacv1.PolicyRule
	for name, c := range map[string]struct {
		owned, wanted rules
		lacking       string // empty if the user owns everything
	}{
		"the same":             {rules{can("get", "v1", "builds")}, rules{can("get", "v1", "builds")}, ""},
		"a subresource of all": {rules{can("get", "v1", "*/scale")}, rules{can("get", "v1", "foo/scale")}, ""},
		"several rules cover one": {
			rules{can("delete", "v1", "deployments"), can("delete", "v1", "builds"), can("update", "v1", "builds,deployments")},
			rules{can("delete,update", "v1", "builds,deployments")}, "",
		},
		"several groups cover one": {
			rules{
				can("delete", "group1", "deployments"), can("delete", "group1", "builds"), can("update", "group1", "builds,deployments"),
				can("delete", "group2", "deployments"), can("delete", "group2", "builds"), can("update", "group2", "builds,deployments"),
			},
			rules{can("delete,update", "group1,group2", "builds,deployments")}, "",
		},
		"one rule covers several": {
			rules{can("delete,update", "group1,group2", "builds,deployments")},
			rules{
				can("delete", "group1", "deployments"), can("delete", "group1", "builds"), can("update", "group1", "builds,deployments"),
				can("delete", "group2", "deployments"), can("delete", "group2", "builds"), can("update", "group2", "builds,deployments"),
			}, "",
		},
		"a verb of a resource is missing": {
			rules{can("delete,update", "v1", "builds,deployments"), can("delete", "v1", "pods")},
			rules{can("delete,update", "v1", "builds,deployments,pods")}, `{APIGroups:["v1"], Resources:["pods"], Verbs:["update"]}`,
		},
		"all groups cover some":        {rules{can("get", "*", "roles")}, rules{can("get", "group1,group2", "roles")}, ""},
		"a group is not all":           {rules{can("get", "dummy-group", "roles")}, rules{can("get", "*", "roles")}, `{APIGroups:["*"], Resources:["roles"], Verbs:["get"]}`},
		"all groups cover all":         {rules{can("get", "*", "roles")}, rules{can("get", "*", "roles")}, ""},
		"all verbs cover some":         {rules{can("*", "v1", "roles")}, rules{can("watch,list", "v1", "roles")}, ""},
		"many verbs are not all":       {rules{can("get,list,watch,create,update,delete,exec", "v1", "roles")}, rules{can("*", "v1", "roles")}, `{APIGroups:["v1"], Resources:["roles"], Verbs:["*"]}`},
		"all verbs cover all":          {rules{can("*", "v1", "roles")}, rules{can("*", "v1", "roles")}, ""},
		"all resources cover one":      {rules{can("get", "v1", "*")}, rules{can("get", "v1", "resourcegroup:deployments")}, ""},
		"some resources are not all":   {rules{can("get", "v1", "roles,resourcegroup:deployments")}, rules{can("get", "v1", "*")}, `{APIGroups:["v1"], Resources:["*"], Verbs:["get"]}`},
		"all resources cover all":      {rules{can("get", "v1", "*")}, rules{can("get", "v1", "*")}, ""},
		"all names cover some":         {rules{can("get", "v1", "pods")}, rules{can("get", "v1", "pods", "foo", "bar")}, ""},
		"some names are not all":       {rules{can("get", "v1", "pods", "foo", "bar")}, rules{can("get", "v1", "pods")}, `{APIGroups:["v1"], Resources:["pods"], Verbs:["get"]}`},
		"the same path":                {rules{canAt("*", "/apis")}, rules{canAt("*", "/apis")}, ""},
		"all paths cover some":         {rules{canAt("*", "*")}, rules{canAt("*", "/apis", "/apis/v1", "/")}, ""},
		"what is below is not it":      {rules{canAt("*", "/apis/*")}, rules{canAt("get", "/apis", "/apis/v1")}, `{NonResourceURLs:["/apis"], Verbs:["get"]}`},
		"a prefix covers what follows": {rules{canAt("*", "/apis/*")}, rules{canAt("get", "/apis/v1/foo", "/apis/v1")}, ""},
		// TestNonResourceURLCovers.
		"* covers /":                 {rules{canAt("get", "*")}, rules{canAt("get", "/")}, ""},
		"* covers /api":              {rules{canAt("get", "*")}, rules{canAt("get", "/api")}, ""},
		"/* covers /":                {rules{canAt("get", "/*")}, rules{canAt("get", "/")}, ""},
		"/* covers /foo":             {rules{canAt("get", "/*")}, rules{canAt("get", "/foo")}, ""},
		"/apis is not /api":          {rules{canAt("get", "/apis")}, rules{canAt("get", "/api")}, `["/api"]`},
		"/api/v1 is not /api":        {rules{canAt("get", "/api/v1")}, rules{canAt("get", "/api")}, `["/api"]`},
		"/api/v1 covers itself":      {rules{canAt("get", "/api/v1")}, rules{canAt("get", "/api/v1")}, ""},
		"/api/* covers /api/v1":      {rules{canAt("get", "/api/*")}, rules{canAt("get", "/api/v1")}, ""},
		"/api/* is not /api":         {rules{canAt("get", "/api/*")}, rules{canAt("get", "/api")}, `["/api"]`},
		"two stars cover nothing":    {rules{canAt("get", "/api/*/*")}, rules{canAt("get", "/api/v1")}, `["/api/v1"]`},
		"an inner star is no prefix": {rules{canAt("get", "/*/v1/*")}, rules{canAt("get", "/api/v1")}, `["/api/v1"]`},
	} {
		t.Run(name, func(t *testing.T) {
			for role, granted := range map[string]rules{"owned": c.owned, "wanted": c.wanted} {
				one.must(t, 200, request{method: "PUT", path: clusterRolesPath + "/" + role, body: roleOf(role, granted...)}.as("root"))
			}
			attempts := []request{
				{method: "POST", path: clusterRolesPath, body: roleOf("new", c.wanted...)},
				{method: "PUT", path: clusterRolesPath + "/mine", body: roleOf("mine", c.wanted...)},
				mergePatch(clusterRolesPath+"/mine", `{"rules":`+jsonOf(c.wanted)+`}`),
				{method: "POST", path: clusterRoleBindingsPath, body: boundTo("new", "ClusterRole", "wanted", "bob")},
				{method: "POST", path: roleBindingsPath, body: boundTo("new", "ClusterRole", "wanted", "bob")},
			}
			if c.wanted[0].NonResourceURLs == nil { // a Role has no paths
				attempts = append(attempts, request{method: "POST", path: rolesPath, body: roleOf("new", c.wanted...)},
					request{method: "PUT", path: rolesPath + "/mine", body: roleOf("mine", c.wanted...)}, mergePatch(rolesPath+"/mine", `{"rules":`+jsonOf(c.wanted)+`}`))
			}
			for _, r := range attempts {
				r.path += "?dryRun=All"
				got := r.as("ann").do(t, other)
				if c.lacking == "" {
					require.Less(t, got.code, 300, "%s %s: %s", r.method, r.path, got.body)
					continue
				}
				require.Equal(t, 403, got.code, "%s %s: %s", r.method, r.path, got.body)
				message := fieldOf(got.object(t), "message")
				require.Contains(t, message, `is attempting to grant RBAC permissions not currently held`)
				require.Contains(t, message, c.lacking)
			}
		})
	}
}

// attempt is a request of a user and the code of its answer.
type attempt struct {
	user string
	request
	code int
}

// TestRolesAreWrittenByWhoHasThem has the cases of kubernetes/pkg/registry/rbac: 'TestEscalation' of role/policybased
// and of clusterrole/policybased, and 'TestIsOnlyMutatingGCFields'. In these cases 'steve' may escalate, 'alice' has
// all rights, and 'bob' may write roles.
func TestRolesAreWrittenByWhoHasThem(t *testing.T) {
	s := newServer(t, withUsers(t, "bob", "steve", "alice", "nobody"), func(c *Config) { c.Authorization.Mode = "RBAC" })
	require.NoError(t, s.Bootstrap(t.Context()))
	post := func(path, body string) { s.must(t, 201, request{method: "POST", path: path, body: body}.as("root")) }
	post(clusterRolesPath, roleOf("clerk", can("create,update,patch,get", rbacv1.GroupName, "roles,clusterroles")))
	post(clusterRolesPath, roleOf("escalator", can("escalate", rbacv1.GroupName, "roles,clusterroles")))
	post(clusterRolesPath, roleOf("escalator-of-one", can("escalate", rbacv1.GroupName, "roles,clusterroles", "kept")))
	post(clusterRoleBindingsPath, boundTo("clerk", "ClusterRole", "clerk", "bob", "steve"))
	post(clusterRoleBindingsPath, boundTo("escalator", "ClusterRole", "escalator", "steve"))
	post(clusterRoleBindingsPath, boundTo("alice", "ClusterRole", "cluster-admin", "alice"))
	pods, secrets := can("get", "", "pods"), can("get", "", "secrets")
	const aggregates = `{"metadata":{"name":"new"},"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"a":"b"}}]}}`
	post(clusterRolesPath, strings.Replace(aggregates, "new", "aggregated", 1))
	for _, path := range []string{rolesPath, clusterRolesPath} {
		post(path, roleOf("kept", pods))
		kept := path + "/kept"
		for _, a := range []attempt{
			{"root", request{method: "POST", path: path, body: roleOf("new", pods)}, 201},
			{"bob", request{method: "POST", path: path, body: roleOf("new", pods)}, 403},
			{"steve", request{method: "POST", path: path, body: roleOf("new", pods)}, 201},
			{"alice", request{method: "POST", path: path, body: roleOf("new", pods)}, 201},
			{"nobody", request{method: "POST", path: path, body: roleOf("new")}, 403},
			{"bob", request{method: "POST", path: path, body: roleOf("new")}, 201}, // this role grants nothing
			{"root", request{method: "PUT", path: kept, body: roleOf("kept", secrets)}, 200},
			{"bob", request{method: "PUT", path: kept, body: roleOf("kept", secrets)}, 403},
			{"steve", request{method: "PUT", path: kept, body: roleOf("kept", secrets)}, 200},
			{"alice", request{method: "PUT", path: kept, body: roleOf("kept", secrets)}, 200},
			{"bob", request{method: "PUT", path: kept, body: roleOf("kept")}, 200}, // a narrower role
			{"bob", request{method: "PUT", path: path + "/made", body: roleOf("made", pods)}, 403},
			{"bob", mergePatch(kept, `{"rules":[]}`), 200},
			{"bob", mergePatch(kept, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"b"}]}}`), 200},
			{"bob", mergePatch(kept, `{"metadata":{"finalizers":["example.com/a"]}}`), 200},
			{"bob", mergePatch(kept, `{"metadata":{"annotations":{"a":"b"}}}`), 403},
			{"bob", mergePatch(kept, `{"metadata":{"finalizers":["example.com/a"],"annotations":{"a":"b"}}}`), 403},
			{"bob", mergePatch(kept, `{"metadata":{"labels":{"rbac.authorization.k8s.io/aggregate-to-view":"true"}}}`), 403},
		} {
			a.path += "?dryRun=All"
			require.Equal(t, a.code, a.as(a.user).do(t, s).code, "%s %s %s %s", a.user, a.method, a.path, a.body)
		}
	}
	for _, a := range []attempt{
		{"bob", request{method: "POST", path: clusterRolesPath, body: aggregates}, 403},
		{"steve", request{method: "POST", path: clusterRolesPath, body: aggregates}, 201},
		{"alice", request{method: "POST", path: clusterRolesPath, body: aggregates}, 201},
		{"bob", mergePatch(clusterRolesPath+"/kept", `{"rules":[],"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"a":"b"}}]}}`), 403},
		{"bob", mergePatch(clusterRolesPath+"/aggregated", `{"aggregationRule":null}`), 403}, // the rule keeps others from tightening the role
		{"bob", mergePatch(clusterRolesPath+"/aggregated", `{"metadata":{"annotations":{"a":"b"}}}`), 403},
		{"alice", mergePatch(clusterRolesPath+"/aggregated", `{"aggregationRule":null}`), 200},
	} {
		a.path += "?dryRun=All"
		got := a.as(a.user).do(t, s)
		require.Equal(t, a.code, got.code, "%s %s %s %s", a.user, a.method, a.path, a.body)
		if a.code == 403 {
			require.Contains(t, got.body, "must have cluster-admin privileges to use the aggregationRule")
		}
	}
	// A user who may escalate one role may not make another role, even of the same name: a new role has no name yet.
	s.must(t, 200, request{method: "PUT", path: clusterRoleBindingsPath + "/escalator", body: boundTo("escalator", "ClusterRole", "escalator", "root")}.as("root"))
	post(clusterRoleBindingsPath, boundTo("one", "ClusterRole", "escalator-of-one", "steve"))
	s.must(t, 200, request{method: "PUT", path: rolesPath + "/kept", body: roleOf("kept", secrets)}.as("steve"))
	s.must(t, 403, request{method: "POST", path: rolesPath, body: roleOf("new", secrets)}.as("steve"))
}

// TestRequestsUnderRBAC has the cases of kubernetes/test/integration/auth, 'TestRBAC'. An administrator makes each
// binding, and then removes it.
func TestRequestsUnderRBAC(t *testing.T) {
	users := []string{"any-rolebinding-writer", "any-rolebinding-writer-namespace", "bob", "job-writer", "job-writer-namespace", "nonescalating-rolebinding-writer",
		"pod-reader", "limitrange-updater", "limitrange-patcher", "user-with-no-permissions"}
	one, other, _ := twoServers(t, withUsers(t, users...), func(c *Config) { c.Authorization.Mode = "RBAC" })
	require.NoError(t, one.Bootstrap(t.Context()))
	post := func(path, body string) { one.must(t, 201, request{method: "POST", path: path, body: body}.as("root")) }
	for _, namespace := range []string{"pod-namespace", "job-namespace", "forbidden-namespace", "limitrange-namespace"} {
		post("/api/v1/namespaces", `{"metadata":{"name":"`+namespace+`"}}`)
	}
	const bindings = rbacPath + "/namespaces/job-namespace/rolebindings"
	post(clusterRolesPath, roleOf("read-pods", can("list,get,watch", "", "pods")))
	post(clusterRoleBindingsPath, boundTo("read-pods", "ClusterRole", "read-pods", "pod-reader"))
	post(clusterRolesPath, roleOf("write-jobs", can("*", "batch", "*")))
	post(clusterRolesPath, roleOf("create-rolebindings", can("create", rbacv1.GroupName, "rolebindings")))
	post(clusterRolesPath, roleOf("bind-any-clusterrole", can("bind", rbacv1.GroupName, "clusterroles")))
	post(clusterRoleBindingsPath, boundTo("write-jobs", "ClusterRole", "write-jobs", "job-writer"))
	post(clusterRoleBindingsPath, boundTo("create-rolebindings", "ClusterRole", "create-rolebindings", "job-writer", "nonescalating-rolebinding-writer", "any-rolebinding-writer"))
	post(clusterRoleBindingsPath, boundTo("bind-any-clusterrole", "ClusterRole", "bind-any-clusterrole", "any-rolebinding-writer"))
	post(bindings, boundTo("write-jobs", "ClusterRole", "write-jobs", "job-writer-namespace"))
	post(bindings, boundTo("create-rolebindings", "ClusterRole", "create-rolebindings", "job-writer-namespace", "any-rolebinding-writer-namespace"))
	post(bindings, boundTo("bind-any-clusterrole", "ClusterRole", "bind-any-clusterrole", "any-rolebinding-writer-namespace"))
	for verb, who := range map[string]string{"update": "limitrange-updater", "patch": "limitrange-patcher"} {
		post(clusterRolesPath, roleOf(verb+"-limitranges", can(verb, "", "limitranges")))
		post(clusterRoleBindingsPath, boundTo(verb+"-limitranges", "ClusterRole", verb+"-limitranges", who))
	}

	in := func(method, group, resource, namespace, name string) request {
		path := "/api/v1"
		if group != "" {
			path = "/apis/" + group + "/v1"
		}
		if namespace != "" {
			path += "/namespaces/" + namespace
		}
		path += "/" + resource
		if name != "" {
			path += "/" + name
		}
		body := ""
		switch {
		case method == "GET":
		case resource == "pods":
			body = `{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}]}}`
		case resource == "jobs":
			body = `{"metadata":{"name":"pi"},"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"pi","image":"perl"}]}}}}`
		case resource == "limitranges":
			body = `{"apiVersion":"v1","kind":"LimitRange","metadata":{"name":"a"}}`
		case resource == "rolebindings":
			body = boundTo("pi", "ClusterRole", "write-jobs", "admin")
		}
		r := request{method: method, path: path, body: body}
		if method == "PATCH" {
			r.contentType = "application/merge-patch+json"
		}
		return r
	}
	const free, forbidden = "job-namespace", "forbidden-namespace"
	bind := func(namespace string) request { return in("POST", rbacv1.GroupName, "rolebindings", namespace, "") }
	for n, a := range []attempt{
		{"root", in("GET", "", "pods", "", ""), 200},
		{"root", in("GET", "", "pods", "pod-namespace", "a"), 404},
		{"root", in("POST", "", "pods", "pod-namespace", ""), 201},
		{"root", in("GET", "", "pods", "pod-namespace", "a"), 200},
		{"bob", in("GET", "", "pods", "", ""), 403},
		{"bob", in("GET", "", "pods", "pod-namespace", "a"), 403},
		{"pod-reader", in("GET", "", "pods", "", ""), 200},
		{"pod-reader", in("POST", "", "pods", "pod-namespace", ""), 403},

		{"user-with-no-permissions", in("POST", "batch", "jobs", free, ""), 403},
		{"user-with-no-permissions", in("GET", "batch", "jobs", free, "pi"), 403},
		{"job-writer-namespace", in("GET", "batch", "jobs", forbidden, ""), 403},
		{"job-writer-namespace", in("GET", "batch", "jobs", forbidden, "pi"), 403},
		{"job-writer-namespace", in("POST", "batch", "jobs", forbidden, ""), 403},
		{"job-writer", in("GET", "batch", "jobs", forbidden, ""), 200},
		{"job-writer", in("GET", "batch", "jobs", forbidden, "pi"), 404},
		{"job-writer", in("POST", "batch", "jobs", forbidden, ""), 201},
		{"job-writer", in("GET", "batch", "jobs", forbidden, "pi"), 200},
		{"job-writer-namespace", in("GET", "batch", "jobs", free, ""), 200},
		{"job-writer-namespace", in("GET", "batch", "jobs", free, "pi"), 404},
		{"job-writer-namespace", in("POST", "batch", "jobs", free, ""), 201},
		{"job-writer-namespace", in("GET", "batch", "jobs", free, "pi"), 200},

		{"user-with-no-permissions", bind(free), 403},
		{"any-rolebinding-writer-namespace", bind(forbidden), 403},
		{"job-writer-namespace", bind(forbidden), 403},
		{"job-writer-namespace", bind(free), 201},
		{"job-writer", bind(forbidden), 201},
		{"nonescalating-rolebinding-writer", bind(free), 403},
		{"any-rolebinding-writer", bind(free), 201},
		{"any-rolebinding-writer-namespace", bind(free), 201},

		{"limitrange-updater", in("PUT", "", "limitranges", "limitrange-namespace", "a"), 403}, // the request would create the object
		{"root", in("PUT", "", "limitranges", "limitrange-namespace", "a"), 201},
		{"root", in("PUT", "", "limitranges", "limitrange-namespace", "a"), 200},
		{"limitrange-updater", in("PUT", "", "limitranges", "limitrange-namespace", "a"), 200},
		{"limitrange-patcher", in("PATCH", "", "limitranges", "limitrange-namespace", "a"), 200},

		// A binding to a missing role: a user who may bind the role may do so before the role exists.
		{"job-writer", request{method: "POST", path: bindings, body: boundTo("pi", "ClusterRole", "missing", "admin")}, 404},
		{"any-rolebinding-writer", request{method: "POST", path: bindings, body: boundTo("pi", "ClusterRole", "missing", "admin")}, 201},
		{"any-rolebinding-writer", request{method: "POST", path: bindings, body: boundTo("pi", "Role", "missing", "admin")}, 404},
		{"job-writer", request{method: "POST", path: clusterRoleBindingsPath, body: boundTo("pi", "ClusterRole", "write-jobs", "admin")}, 403},
	} {
		server := []*Server{one, other}[n%2]
		got := a.as(a.user).do(t, server)
		require.Equal(t, a.code, got.code, "%d: %s %s %s: %s", n, a.user, a.method, a.path, got.body)
		if strings.HasSuffix(a.path, "/rolebindings") && got.code == http.StatusCreated {
			server.must(t, 200, request{method: "DELETE", path: a.path + "/pi"}.as("root"))
		}
	}
}

// TestImpersonation has the cases of apiserver/pkg/endpoints/filters/impersonation, 'TestImpersonationFilter'. The
// groups of a user stand for the user's rights to impersonate.
func TestImpersonation(t *testing.T) {
	const authentication = "authentication.k8s.io"
	rights := map[string][]rbacv1.PolicyRule{
		"users":       {can("impersonate", "", "users")},
		"groups":      {can("impersonate", "", "groups")},
		"accounts":    {can("impersonate", "", "serviceaccounts")},
		"scopes":      {can("impersonate", authentication, "userextras/scopes")},
		"one-scope":   {can("impersonate", authentication, "userextras/scopes", "scope-a")},
		"project":     {can("impersonate", authentication, "userextras/project")},
		"escaped":     {can("impersonate", authentication, "userextras/example.com/escapedᛄscopes")},
		"odd":         {can("impersonate", authentication, "userextras/almost%zzpercent%xxencoded")},
		"uid":         {can("impersonate", authentication, "uids", "some-uid")},
		"everyone":    {can("create", authentication, "selfsubjectreviews")},
		"constrained": {can("impersonate:user-info", authentication, "users", "anyone"), can("impersonate-on:user-info:create", authentication, "selfsubjectreviews")},
		"half":        {can("impersonate:user-info", authentication, "users", "anyone"), can("impersonate-on:user-info:list", "", "configmaps")},
		"on-accounts": {can("impersonate:serviceaccount", authentication, "serviceaccounts"), can("impersonate-on:serviceaccount:create", authentication, "selfsubjectreviews")},
		"on-nodes":    {can("impersonate:arbitrary-node", authentication, "nodes", "node1"), can("impersonate-on:arbitrary-node:create", authentication, "selfsubjectreviews")},
	}
	type headers map[string][]string
	user := func(name string) headers { return headers{"Impersonate-User": {name}} }
	type impersonation struct {
		has  string // rights, separated by commas
		asks headers
		code int
		// is describes the user in the answer: name, uid, groups and extra values
		is string
	}
	cases := []impersonation{
		{"", headers{}, 201, "dev-0 uid-of-dev-0 system:authenticated"},
		{"", user("anyone"), 403, ""},
		{"", headers{"Impersonate-Group": {"some-group"}}, 400, ""},
		{"", headers{"Impersonate-Extra-Scopes": {"scope-a"}}, 400, ""},
		{"", headers{"Impersonate-Uid": {"some-uid"}}, 400, ""},
		{"users", headers{"Impersonate-User": {"tester"}, "Impersonate-Group": {"some-group"}}, 403, ""},
		{"users,groups", headers{"Impersonate-User": {"tester"}, "Impersonate-Group": {"some-group"}}, 201, "tester some-group system:authenticated"},
		{"users,groups", headers{"Impersonate-User": {"tester"}, "Impersonate-Group": {"some-group"}, "Impersonate-Extra-Scopes": {"scope-a"}}, 403, ""},
		{"users,project", headers{"Impersonate-User": {"tester"}, "Impersonate-Extra-Scopes": {"scope-a"}}, 403, ""},
		{"users,one-scope", headers{"Impersonate-User": {"tester"}, "Impersonate-Extra-Scopes": {"scope-a", "scope-b"}}, 403, ""},
		{"users,one-scope", headers{"Impersonate-User": {"tester"}, "Impersonate-Extra-Scopes": {"scope-a"}}, 201, "tester system:authenticated scopes:[scope-a]"},
		{"users,scopes", headers{"Impersonate-User": {"tester"}, "Impersonate-Extra-Scopes": {"scope-a", "scope-b"}}, 201, "tester system:authenticated scopes:[scope-a scope-b]"},
		{"users,escaped", headers{"Impersonate-User": {"tester"}, "Impersonate-Extra-Example.com%2fescaped%e1%9b%84scopes": {"a"}}, 201, "tester system:authenticated example.com/escapedᛄscopes:[a]"},
		{"users,odd", headers{"Impersonate-User": {"tester"}, "Impersonate-Extra-Almost%zzpercent%xxencoded": {"a"}}, 201, "tester system:authenticated almost%zzpercent%xxencoded:[a]"},
		{"users", user("tester"), 201, "tester system:authenticated"},
		{"accounts", user("tester"), 403, ""},
		{"accounts", user("system:serviceaccount:foo:default"), 201, "system:serviceaccount:foo:default system:serviceaccounts system:serviceaccounts:foo system:authenticated"},
		{"users", user("system:serviceaccount:foo:default"), 403, ""},
		{"users", user("system:anonymous"), 201, "system:anonymous system:unauthenticated"},
		{"users,groups", headers{"Impersonate-User": {"unknown"}, "Impersonate-Group": {"system:unauthenticated"}}, 201, "unknown system:unauthenticated"},
		{"users,groups", headers{"Impersonate-User": {"unknown"}, "Impersonate-Group": {"system:authenticated"}}, 201, "unknown system:authenticated"},
		{"users,groups", headers{"Impersonate-User": {"tester"}, "Impersonate-Group": {"some-group", "system:authenticated"}}, 201, "tester some-group system:authenticated"},
		{"users,groups", headers{"Impersonate-User": {"system:anonymous"}, "Impersonate-Group": {"system:unauthenticated"}}, 201, "system:anonymous system:unauthenticated"},
		{"users,uid", headers{"Impersonate-User": {"tester"}, "Impersonate-Uid": {"some-uid"}}, 201, "tester some-uid system:authenticated"},
		{"users,uid", headers{"Impersonate-User": {"tester"}, "Impersonate-Uid": {"disallowed-uid"}}, 403, ""},
		{
			"users,uid,groups,scopes", headers{"Impersonate-User": {"tester"}, "Impersonate-Uid": {"some-uid"}, "Impersonate-Group": {"system:authenticated"}, "Impersonate-Extra-Scopes": {"scope-a", "scope-b"}},
			201, "tester some-uid system:authenticated scopes:[scope-a scope-b]",
		},
		// 'TestConstrainedImpersonationFilter'.
		{"constrained", user("anyone"), 201, "anyone system:authenticated"},
		{"constrained", user("another"), 403, ""},
		{"constrained", headers{"Impersonate-User": {"anyone"}, "Impersonate-Group": {"system:masters"}}, 403, ""},
		{"half", user("anyone"), 403, ""},
		{"on-accounts", user("system:serviceaccount:default:default"), 201, "system:serviceaccount:default:default system:serviceaccounts system:serviceaccounts:default system:authenticated"},
		{"on-accounts", user("anyone"), 403, ""},
		{"on-nodes", user("system:node:node1"), 201, "system:node:node1 system:nodes system:authenticated"},
		{"on-nodes", user("system:node:node2"), 403, ""},
		{"constrained", user("system:node:node1"), 403, ""},
	}
	var lines []string
	for n, c := range cases {
		lines = append(lines, strings.TrimSuffix(fmt.Sprintf("dev-%d,%s", n, c.has), ","))
	}
	s := newServer(t, withUsers(t, lines...), func(c *Config) { c.Authorization.Mode = "RBAC" })
	for name, granted := range rights {
		s.must(t, 201, request{method: "POST", path: clusterRolesPath, body: roleOf(name, granted...)}.as("root"))
		to := []string{"group:" + name}
		if name == "everyone" {
			to = []string{"group:system:authenticated", "group:system:unauthenticated"}
		}
		s.must(t, 201, request{method: "POST", path: clusterRoleBindingsPath, body: boundTo(name, "ClusterRole", name, to...)}.as("root"))
	}
	for n, c := range cases {
		r := whoami.as(fmt.Sprintf("dev-%d", n))
		for name, values := range c.asks {
			r.header[name] = values
		}
		got := r.do(t, s)
		require.Equal(t, c.code, got.code, "%d: %v: %s", n, c.asks, got.body)
		if c.code == http.StatusCreated {
			require.Equal(t, c.is, toldOf(fieldOf(got.object(t), "status.userInfo").(map[string]any)), "%d: %v", n, c.asks)
		}
	}
}

// toldOf returns the description of the user in a review.
func toldOf(who map[string]any) string {
	words := []string{who["username"].(string)}
	if uid, ok := who["uid"].(string); ok {
		words = append(words, uid)
	}
	groups, _ := who["groups"].([]any)
	for _, group := range groups {
		words = append(words, group.(string))
	}
	extra, _ := who["extra"].(map[string]any)
	for name, values := range extra {
		words = append(words, fmt.Sprintf("%s:%v", name, values))
	}
	slices.Sort(words[len(words)-len(extra):])
	return strings.Join(words, " ")
}

// TestImpersonationIsRevoked: a revoked right to impersonate no longer applies to the next request of another process,
// not even for the verbs that upstream remembers for ten seconds.
func TestImpersonationIsRevoked(t *testing.T) {
	one, other, _ := twoServers(t, withTokens(t), func(c *Config) { c.Authorization.Mode = "RBAC" })
	require.NoError(t, one.Bootstrap(t.Context()))
	const authentication = "authentication.k8s.io"
	for name, rules := range map[string][]rbacv1.PolicyRule{
		"legacy":      {can("impersonate", "", "users", "bob")},
		"constrained": {can("impersonate:user-info", authentication, "users", "bob"), can("impersonate-on:user-info:create", authentication, "selfsubjectreviews")},
	} {
		one.must(t, 201, request{method: "POST", path: clusterRolesPath, body: roleOf(name, rules...)}.as("root"))
		asBob := whoami.as("ann").with("Impersonate-User", "bob")
		other.must(t, 403, asBob)
		for range 3 {
			one.must(t, 201, request{method: "POST", path: clusterRoleBindingsPath, body: boundTo(name, "ClusterRole", name, "ann")}.as("root"))
			require.Equal(t, "bob", fieldOf(other.must(t, 201, asBob).object(t), "status.userInfo.username"))
			one.must(t, 200, request{method: "DELETE", path: clusterRoleBindingsPath + "/" + name}.as("root"))
			other.must(t, 403, asBob)
		}
	}
}
