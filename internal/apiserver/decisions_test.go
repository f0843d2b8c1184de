package apiserver

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/internal/apiserver/tokens"
)

// can makes a rule. The lists are separated by commas.
func can(verbs, groups, resources string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: strings.Split(verbs, ","), APIGroups: strings.Split(groups, ","), Resources: strings.Split(resources, ","), ResourceNames: names}
}

// canAt makes a rule for paths that are not resources.
func canAt(verbs string, paths ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: strings.Split(verbs, ","), NonResourceURLs: paths}
}

// roleOf makes a Role or a ClusterRole.
func roleOf(name string, rules ...rbacv1.PolicyRule) string {
	return jsonOf(rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules})
}

// boundTo makes a RoleBinding or a ClusterRoleBinding. A subject is a user, 'group:name' or 'account:namespace/name'.
func boundTo(name, kind, role string, subjects ...string) string {
	return jsonOf(rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role}, Subjects: subjectsOf(subjects)})
}

func subjectsOf(subjects []string) (all []rbacv1.Subject) {
	for _, s := range subjects {
		group, isGroup := strings.CutPrefix(s, "group:")
		account, isAccount := strings.CutPrefix(s, "account:")
		switch {
		case isGroup:
			all = append(all, rbacv1.Subject{Kind: "Group", APIGroup: rbacv1.GroupName, Name: group})
		case isAccount:
			namespace, name, _ := strings.Cut(account, "/")
			all = append(all, rbacv1.Subject{Kind: "ServiceAccount", Namespace: namespace, Name: name})
		default:
			all = append(all, rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: s})
		}
	}
	return all
}

func jsonOf(object any) string {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// mergePatch is a request that changes an object by a merge patch.
func mergePatch(path, body string) request {
	return request{method: http.MethodPatch, path: path, body: body, contentType: "application/merge-patch+json"}
}

const (
	clusterRolesPath        = rbacPath + "/clusterroles"
	clusterRoleBindingsPath = rbacPath + "/clusterrolebindings"
	rolesPath               = rbacPath + "/namespaces/default/roles"
	roleBindingsPath        = rbacPath + "/namespaces/default/rolebindings"
)

// TestSixtyDecisions: a change of rights through one process applies to the next request to another process. Each of
// sixty requests is sent before and after the change that concerns the request, without a pause. The name of a user
// includes the user's groups.
func TestSixtyDecisions(t *testing.T) {
	one, other, _ := twoServers(t, withAccounts(t, tokens.Config{Issuers: []string{issuer}, SigningKeyFile: writeKey(t, "key")}),
		withUsers(t, "ann", "bob", "carl,reds", "dora,blues", "eve,reds,blues"))
	require.NoError(t, one.Bootstrap(t.Context()))
	root := func(r request) answer { return one.must(t, 201, r.as("root")) }
	post := func(path, body string) { root(request{method: "POST", path: path, body: body}) }
	bearer := map[string]string{"ann": "ann-token", "bob": "bob-token", "carl": "carl-token", "dora": "dora-token", "eve": "eve-token", "root": "root-token"}
	post("/api/v1/namespaces", `{"metadata":{"name":"other"}}`)
	for _, namespace := range []string{"default", "other"} {
		at := "/api/v1/namespaces/" + namespace + "/serviceaccounts"
		post(at, `{"metadata":{"name":"builder"}}`)
		made := root(request{method: "POST", path: at + "/builder/token", body: "{}"})
		bearer[namespace+"/builder"] = fieldOf(made.object(t), "status.token").(string)
	}
	post(clusterRolesPath, roleOf("reader", can("get,list", "", "configmaps,nodes"), can("get", "", "pods"), canAt("get", "/nothing/*")))
	post(clusterRoleBindingsPath, boundTo("readers", "ClusterRole", "reader", "ann", "group:reds", "account:default/builder"))
	post(rolesPath, roleOf("writer", can("create,update,patch,delete", "", "configmaps"), can("get,update", "apps", "deployments/scale"), can("get,list", "", "secrets", "one"), can("get", "", "pods/log")))
	post(clusterRolesPath, `{"metadata":{"name":"outer"},"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"to-outer":"yes"}}]}}`)
	post(rbacPath+"/namespaces/other/rolebindings", boundTo("outer", "ClusterRole", "outer", "bob"))

	// A question is a user's request, with the expected decisions before and after the change.
	asked := 0
	for n, change := range []struct {
		write     request
		questions string
	}{
		{mergePatch(clusterRoleBindingsPath+"/readers", `{"subjects":`+jsonOf(subjectsOf([]string{"bob", "group:blues", "account:other/builder"}))+`}`), `
			ann GET /api/v1/namespaces/default/configmaps yes no
			ann GET /api/v1/configmaps yes no
			ann GET /api/v1/nodes/x yes no
			ann GET /nothing/here yes no
			ann DELETE /api/v1/namespaces/default/configmaps/x no no
			ann GET /api/v1/namespaces/default/pods/x yes no
			ann GET /api/v1/namespaces/default/pods/x/status no no
			bob GET /api/v1/namespaces/default/configmaps no yes
			bob GET /nothing/here no yes
			bob GET /nothing no no
			carl GET /api/v1/namespaces/default/configmaps yes no
			carl GET /api/v1/namespaces/other/configmaps/x yes no
			dora GET /api/v1/namespaces/other/configmaps no yes
			dora GET /api/v1/namespaces/other/secrets no no
			eve GET /api/v1/namespaces/default/configmaps yes yes
			default/builder GET /api/v1/namespaces/default/configmaps yes no
			other/builder GET /api/v1/namespaces/default/configmaps no yes
			other/builder GET /api/v1/namespaces/other/pods/x no yes`},
		{request{method: "POST", path: roleBindingsPath, body: boundTo("writers", "Role", "writer", "ann", "group:blues")}, `
			ann DELETE /api/v1/namespaces/default/configmaps/x no yes
			ann POST /api/v1/namespaces/default/configmaps no yes
			ann PATCH /api/v1/namespaces/default/configmaps/x no yes
			ann PUT /api/v1/namespaces/default/configmaps/x no yes
			ann DELETE /api/v1/namespaces/other/configmaps/x no no
			ann GET /apis/apps/v1/namespaces/default/deployments/x/scale no yes
			ann GET /apis/apps/v1/namespaces/default/deployments/x no no
			ann GET /api/v1/namespaces/default/secrets/one no yes
			ann GET /api/v1/namespaces/default/secrets/two no no
			ann GET /api/v1/namespaces/default/secrets no no
			ann GET /api/v1/namespaces/default/secrets?fieldSelector=metadata.name=one no yes
			ann GET /api/v1/namespaces/default/pods/x/log no yes
			dora POST /api/v1/namespaces/default/configmaps no yes
			carl POST /api/v1/namespaces/default/configmaps no no`},
		{mergePatch(rolesPath+"/writer", `{"rules":`+jsonOf([]rbacv1.PolicyRule{can("delete", "", "configmaps", "keep"), can("*", "apps", "*")})+`}`), `
			ann DELETE /api/v1/namespaces/default/configmaps/keep yes yes
			ann DELETE /api/v1/namespaces/default/configmaps/x yes no
			ann POST /api/v1/namespaces/default/configmaps yes no
			ann GET /apis/apps/v1/namespaces/default/deployments/x no yes
			ann GET /apis/apps/v1/namespaces/default/deployments no yes
			ann GET /apis/apps/v1/namespaces/default/deployments/x/scale yes yes
			ann GET /api/v1/namespaces/default/secrets/one yes no
			dora DELETE /apis/apps/v1/namespaces/default/deployments/x no yes
			bob DELETE /apis/apps/v1/namespaces/default/deployments/x no no
			ann GET /apis/apps/v1/deployments no no`},
		{request{method: "DELETE", path: roleBindingsPath + "/writers"}, `
			ann GET /apis/apps/v1/namespaces/default/deployments/x yes no
			ann DELETE /api/v1/namespaces/default/configmaps/keep yes no
			dora DELETE /apis/apps/v1/namespaces/default/deployments/x yes no
			root DELETE /apis/apps/v1/namespaces/default/deployments/x yes yes`},
		{request{method: "POST", path: clusterRolesPath, body: strings.Replace(roleOf("leaf", can("get,list", "", "secrets")), `"name":"leaf"`, `"name":"leaf","labels":{"to-outer":"yes"}`, 1)}, `
			bob GET /api/v1/namespaces/other/secrets no yes
			bob GET /api/v1/namespaces/other/secrets/x no yes
			bob DELETE /api/v1/namespaces/other/secrets/x no no
			bob GET /api/v1/namespaces/default/secrets no no
			ann GET /api/v1/namespaces/other/secrets no no`},
		{mergePatch(clusterRolesPath+"/leaf", `{"metadata":{"labels":null}}`), `
			bob GET /api/v1/namespaces/other/secrets yes no
			bob GET /api/v1/namespaces/other/secrets/x yes no
			bob DELETE /api/v1/namespaces/other/secrets/x no no`},
		{request{method: "DELETE", path: clusterRolesPath + "/reader"}, `
			bob GET /api/v1/namespaces/default/configmaps yes no
			bob GET /nothing/here yes no
			dora GET /api/v1/namespaces/default/configmaps yes no
			eve GET /api/v1/namespaces/default/configmaps yes no
			other/builder GET /api/v1/namespaces/default/configmaps yes no
			root GET /nothing/here yes yes`},
	} {
		writer, reader := one, other
		if n%2 == 1 {
			writer, reader = other, one
		}
		var questions [][]string
		for _, line := range strings.Split(strings.TrimSpace(change.questions), "\n") {
			questions = append(questions, strings.Fields(line))
		}
		ask := func(when string, column int) {
			for _, q := range questions {
				got := request{method: q[1], path: q[2]}.bearing(bearer[q[0]]).do(t, reader)
				require.NotEqual(t, 401, got.code, got.body)
				require.Equal(t, q[column] == "yes", got.code != 403, "%s change %d: %v: %d %s", when, n, q, got.code, got.body)
			}
		}
		ask("before", 3)
		done := change.write.as("root").do(t, writer)
		require.Contains(t, []int{200, 201}, done.code, done.body)
		ask("after", 4)
		asked += len(questions)
	}
	require.Equal(t, 60, asked)
}
