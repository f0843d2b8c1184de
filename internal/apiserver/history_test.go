package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/logplane/logplane/internal/apiserver/access"
	"github.com/logplane/logplane/internal/apiserver/access/accesstest"
	"github.com/logplane/logplane/internal/apiserver/gate"
	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/kubestore/kubestoretest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/memory"
)

const historyPath = "/apis/history.logplane.dev/v1"

// newArchive makes a server with users. The server's cell keeps the past in checkpoints and archived events.
func newArchive(t *testing.T, changes ...func(*Config)) *Server {
	path := filepath.Join(t.TempDir(), "tokens.csv")
	require.NoError(t, os.WriteFile(path, []byte("root-token,root,1,system:masters\nann-token,ann,2\n"), 0o600))
	cell := kubestoretest.Cell(t, projection.Config{InlineBytes: 2000, History: time.Hour,
		Checkpoints: []projection.CheckpointRule{{Every: 50 * time.Millisecond, Keep: time.Hour}}})
	config := Config{Cell: cell, Authentication: access.Authentication{TokenFile: path}, Authorization: access.Authorization{Mode: "RBAC"}}
	for _, change := range changes {
		change(&config)
	}
	s, err := New(config)
	require.NoError(t, err)
	require.NoError(t, s.Bootstrap(t.Context()))
	return s
}

func (s *Server) versions(t *testing.T, code int, user, path string) (list history.VersionList) {
	t.Helper()
	a := request{method: "GET", path: path}.as(user).do(t, s)
	require.Equal(t, code, a.code, a.body)
	if code == 200 {
		require.NoError(t, json.Unmarshal([]byte(a.body), &list))
	} else {
		list.Continue = a.body
	}
	return list
}

// summary is one line for each version, without parts that differ from run to run.
func summary(list history.VersionList) (lines []string) {
	for _, v := range list.Items {
		lines = append(lines, strings.TrimSpace(fmt.Sprint(v.Verb, " ", v.Object, " ", v.User, " ", v.Manager, " ", strings.Join(v.Changed, ","))))
	}
	return lines
}

// History tells apart managers who each write their own fields repeatedly within one second: by the items of a list, by
// the values of a list, and by a field that one manager has taken over.
func TestVersionsNameManagers(t *testing.T) {
	s := newArchive(t)
	var want []string
	step := func(manager, method, path, body string) {
		a := request{method: method, path: path + "?fieldManager=" + manager, body: body, contentType: "application/strategic-merge-patch+json"}.as("root").do(t, s)
		require.Less(t, a.code, 300, a.body)
		want = append([]string{manager}, want...)
	}
	const web = deploymentPath + "/web"
	image := func(container, image string) string {
		return `{"spec":{"template":{"spec":{"containers":[{"name":"` + container + `","image":"` + image + `"}]}}}}`
	}
	a := request{method: "POST", path: deploymentPath + "?fieldManager=alice", body: `{"metadata":{"name":"web","finalizers":["example.com/a"]},
		"spec":{"replicas":1,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},
		"spec":{"containers":[{"name":"one","image":"i:1"},{"name":"two","image":"i:1"}]}}}}`}.as("root").do(t, s)
	require.Equal(t, 201, a.code, a.body)
	want = append(want, "alice")
	for n := range 5 {
		step("robot", "PATCH", web, image("two", fmt.Sprintf("robot:%d", n)))
		step("alice", "PATCH", web, image("one", fmt.Sprintf("alice:%d", n)))
		step("alice", "PATCH", web, fmt.Sprintf(`{"spec":{"replicas":%d}}`, n+2))
		step("robot", "PATCH", web, fmt.Sprintf(`{"metadata":{"labels":{"n":"%d"}}}`, n))
		step("alice", "PATCH", web, fmt.Sprintf(`{"metadata":{"labels":{"n":"%d"}}}`, n+10))
		step("robot", "PATCH", web, fmt.Sprintf(`{"metadata":{"labels":{"n":"%d"}}}`, n+20))
		step("robot", "PATCH", web, fmt.Sprintf(`{"metadata":{"finalizers":["example.com/robot-%d"]}}`, n))
	}
	a = request{method: "POST", path: configMaps + "?fieldManager=alice", body: configMap("own", "1")}.as("root").do(t, s)
	require.Equal(t, 201, a.code, a.body)
	for n := range 3 {
		step("robot", "PATCH", configMaps+"/own", fmt.Sprintf(`{"data":{"v":"robot-%d"}}`, n)) // only 'data' itself is left of alice's fields
	}
	var got []string
	for _, v := range s.versions(t, 200, "root", historyPath+"/namespaces/default/versions?fieldSelector=object%3Dconfigmap/own").Items[:3] {
		got = append(got, v.Manager)
	}
	for _, v := range s.versions(t, 200, "root", historyPath+"/namespaces/default/versions?fieldSelector=object%3Ddeploy/web").Items {
		got = append(got, v.Manager)
	}
	require.Equal(t, want, got)
}

// Every version of an object is listed, newest first, with its user, its object and its changes. Deletions,
// compactions, purges and pages do not affect the list.
func TestVersions(t *testing.T) {
	s := newArchive(t)
	p := s.config.Cell.Projection
	var want []string
	step := func(user, method, path, body, says string) {
		q := request{method: method, path: path, body: body}
		if method == "PATCH" {
			q.contentType = "application/merge-patch+json"
		}
		a := q.as(user).do(t, s)
		require.Less(t, a.code, 300, a.body)
		want = append([]string{says}, want...)
	}
	const web = deploymentPath + "/web"
	replicas := func(n int) string { return fmt.Sprintf(`{"spec":{"replicas":%d}}`, n) }
	for round := range 3 {
		step("root", "POST", deploymentPath+"?fieldManager=maker", `{"metadata":{"name":"web"},"spec":{"replicas":1,"selector":{"matchLabels":{"a":"b"}},
			"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i:1"}]}}}}`, "create deployments.apps/web root maker")
		for n := range 4 {
			step("root", "PATCH", web+"?fieldManager=scaler", replicas(n+2), "update deployments.apps/web root scaler spec.replicas")
		}
		step("root", "PATCH", web+"?fieldManager=labeler", `{"metadata":{"labels":{"x":"1"},"annotations":{"a.b/c":"2"}}}`,
			`update deployments.apps/web root labeler metadata.annotations,metadata.labels`)
		_, err := p.Commit(t.Context())
		require.NoError(t, err)
		step("root", "DELETE", web, "", "delete deployments.apps/web root")
		_, err = p.Commit(t.Context())
		require.NoError(t, err)
		if round < 2 {
			v, err := p.Latest(t.Context())
			require.NoError(t, err)
			require.NoError(t, p.Retain(t.Context(), v.Applied(), v.Applied()))
			_, err = p.Compact(t.Context())
			require.NoError(t, err)
		}
	}
	all := s.versions(t, 200, "root", historyPath+"/namespaces/default/versions?fieldSelector=object%3Ddeployments.apps/web")
	got := summary(all)
	for all.Continue != "" {
		all = s.versions(t, 200, "root", historyPath+"/namespaces/default/versions?fieldSelector=object%3Ddeployments.apps/web&continue="+all.Continue)
		got = append(got, summary(all)...)
	}
	for i := range got { // the order of a patch's operations is not defined
		got[i] = strings.Replace(got[i], "metadata.labels,metadata.annotations", "metadata.annotations,metadata.labels", 1)
	}
	require.Equal(t, want, got)

	var paged []string
	next := ""
	for pages := 0; pages == 0 || next != ""; pages++ {
		list := s.versions(t, 200, "root", historyPath+"/namespaces/default/versions?limit=2&fieldSelector=object%3Ddeploy/web&continue="+next)
		require.LessOrEqual(t, len(list.Items), 2)
		for _, v := range list.Items {
			paged = append(paged, v.Name)
		}
		next = list.Continue
	}
	require.Len(t, paged, len(want))

	by := s.versions(t, 200, "root", historyPath+"/namespaces/default/versions?fieldSelector=object%3Ddeploy/web,manager%3Dlabeler")
	require.Len(t, by.Items, 3, "one in each round")
	with := s.versions(t, 200, "root", historyPath+"/namespaces/default/versions?include=object&limit=1&fieldSelector=object%3Ddeploy/web,verb%3Ddelete")
	require.Contains(t, string(with.Items[0].Content.Raw), `"a.b/c":"2"`, "the last state of what was deleted")
	one := request{method: "GET", path: historyPath + "/namespaces/default/versions/" + by.Items[0].Name}.as("root").do(t, s)
	require.Equal(t, 200, one.code, one.body)
	require.Contains(t, one.body, `"manager":"labeler"`)
	tabled := request{method: "GET", path: historyPath + "/namespaces/default/versions?fieldSelector=object%3Ddeploy/web,manager%3Dlabeler", accept: table}.as("root").do(t, s)
	require.Contains(t, tabled.body, `"name":"Changed"`)
	require.Contains(t, tabled.body, `"cells":["`+by.Items[0].Name)

	changes := s.versions(t, 200, "root", historyPath+"/namespaces/default/changes?fieldSelector=resource%3Ddeployments.apps,from%3D"+paged[len(paged)-1])
	require.Len(t, changes.Items, len(want)-1, "after the first")
	require.Equal(t, changes.Items[len(changes.Items)-1].Name, paged[0])
	for path, says := range map[string]string{
		"/namespaces/default/versions":                                              "name the object",
		"/namespaces/default/versions?fieldSelector=object%3Dweb":                   "names no object",
		"/namespaces/default/versions?fieldSelector=object%3Dnothings/web":          "there is no resource 'nothings'",
		"/namespaces/default/versions?fieldSelector=colour%3Dred":                   "cannot be selected",
		"/versions?fieldSelector=object%3Ddeploy/web":                               "is in a namespace",
		"/namespaces/default/versions?fieldSelector=object%3Ddeploy/web&continue=x": "continue token",
		"/namespaces/default/versions?fieldSelector=object%3Ddeploy/web&include=x":  "only 'object' can be included",
		"/namespaces/default/changes?fieldSelector=from%3Dtomorrow":                 "is not a valid moment",
	} {
		require.Contains(t, s.versions(t, 400, "root", historyPath+path).Continue, says, path)
	}
}

// A version shows the object as clients saw it: with defaults, nulls and every digit. So selectors find a change by the
// labels of its object, and writing a version back restores the object exactly.
func TestVersionsAreWhatClientsSee(t *testing.T) {
	s := newArchive(t)
	a := request{method: "POST", path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body: `{"metadata":{"name":"nulls.example.com"},"spec":{"group":"example.com","scope":"Namespaced",
		"names":{"plural":"nulls","singular":"null0","kind":"Null0","listKind":"Null0List"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object",
		"properties":{"spec":{"type":"object","properties":{"limit":{"type":"string","nullable":true,"default":"10"},"size":{"type":"string","default":"s"},
		"free":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}}}}]}}`}.as("root").do(t, s)
	require.Equal(t, 201, a.code, a.body)
	template := `"template":{"metadata":{"labels":{"app":"x"}},"spec":{"containers":[{"name":"c","image":"i","ports":[{"containerPort":80}],"livenessProbe":{"httpGet":{"path":"/","port":80}}}]`
	for kind, object := range map[string]struct{ path, body string }{
		"jobs.batch":                           {"/apis/batch/v1/namespaces/default/jobs", `{"metadata":{"name":"x"},"spec":{` + template + `,"restartPolicy":"Never"}}}}`},
		"cronjobs.batch":                       {"/apis/batch/v1/namespaces/default/cronjobs", `{"metadata":{"name":"x"},"spec":{"schedule":"* * * * *","jobTemplate":{"spec":{` + template + `,"restartPolicy":"Never"}}}}}}`},
		"replicationcontrollers":               {"/api/v1/namespaces/default/replicationcontrollers", `{"metadata":{"name":"x"},"spec":{` + template + `}}}}`},
		"deployments.apps":                     {"/apis/apps/v1/namespaces/default/deployments", `{"metadata":{"name":"x"},"spec":{"selector":{"matchLabels":{"app":"x"}},` + template + `}}}}`},
		"daemonsets.apps":                      {"/apis/apps/v1/namespaces/default/daemonsets", `{"metadata":{"name":"x"},"spec":{"selector":{"matchLabels":{"app":"x"}},` + template + `}}}}`},
		"statefulsets.apps":                    {"/apis/apps/v1/namespaces/default/statefulsets", `{"metadata":{"name":"x"},"spec":{"serviceName":"x","selector":{"matchLabels":{"app":"x"}},` + template + `}},"volumeClaimTemplates":[{"metadata":{"name":"d"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}]}}`},
		"persistentvolumeclaims":               {"/api/v1/namespaces/default/persistentvolumeclaims", `{"metadata":{"name":"x"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`},
		"persistentvolumes":                    {"/api/v1/persistentvolumes", `{"metadata":{"name":"x"},"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"hostPath":{"path":"/x"}}}`},
		"services":                             {"/api/v1/namespaces/default/services", `{"metadata":{"name":"x"},"spec":{"ports":[{"port":80}],"selector":{"app":"x"}}}`},
		"configmaps":                           {configMaps, `{"metadata":{"name":"x"},"data":{"a":"1"}}`},
		"secrets":                              {"/api/v1/namespaces/default/secrets", `{"metadata":{"name":"x"},"stringData":{"a":"1"}}`},
		"nodes":                                {"/api/v1/nodes", `{"metadata":{"name":"x"}}`},
		"ingresses.networking.k8s.io":          {"/apis/networking.k8s.io/v1/namespaces/default/ingresses", `{"metadata":{"name":"x"},"spec":{"defaultBackend":{"service":{"name":"x","port":{"number":80}}}}}`},
		"networkpolicies.networking.k8s.io":    {"/apis/networking.k8s.io/v1/namespaces/default/networkpolicies", `{"metadata":{"name":"x"},"spec":{"podSelector":{},"ingress":[{"ports":[{"port":80}]}]}}`},
		"horizontalpodautoscalers.autoscaling": {"/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", `{"metadata":{"name":"x"},"spec":{"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"x"},"maxReplicas":3}}`},
		"poddisruptionbudgets.policy":          {"/apis/policy/v1/namespaces/default/poddisruptionbudgets", `{"metadata":{"name":"x"},"spec":{"minAvailable":1,"selector":{"matchLabels":{"app":"x"}}}}`},
		"validatingwebhookconfigurations.admissionregistration.k8s.io": {"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", `{"metadata":{"name":"x"},"webhooks":[{"name":"a.example.com","clientConfig":{"url":"https://example.com"},"rules":[],"sideEffects":"None","admissionReviewVersions":["v1"]}]}`},
		"apiservices.apiregistration.k8s.io":                           {"/apis/apiregistration.k8s.io/v1/apiservices", `{"metadata":{"name":"v1.remote.example.com"},"spec":{"group":"remote.example.com","version":"v1","groupPriorityMinimum":100,"versionPriority":10,"service":{"namespace":"default","name":"x"}}}`},
		"customresourcedefinitions.apiextensions.k8s.io":               {"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"metadata":{"name":"others.example.com"},"spec":{"group":"example.com","scope":"Cluster","names":{"plural":"others","kind":"Other"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`},
		"nulls.example.com":                                            {"/apis/example.com/v1/namespaces/default/nulls", `{"apiVersion":"example.com/v1","kind":"Null0","metadata":{"name":"x"},"spec":{"limit":null,"free":{"a":null,"id":9007199254740993,"f":1.5}}}`},
	} {
		t.Run(kind, func(t *testing.T) {
			made := request{method: "POST", path: object.path, body: object.body}.as("root").do(t, s)
			require.Equal(t, 201, made.code, made.body)
			name := "x"
			for _, other := range []string{"v1.remote.example.com", "others.example.com"} {
				if strings.Contains(object.body, `"name":"`+other+`"`) {
					name = other
				}
			}
			got := request{method: "GET", path: object.path + "/" + name}.as("root").do(t, s)
			require.Equal(t, 200, got.code, got.body)
			namespace := ""
			if strings.Contains(object.path, "/namespaces/default/") {
				namespace = "/namespaces/default"
			}
			list := s.versions(t, 200, "root", historyPath+namespace+"/versions?include=object&limit=1&fieldSelector=object%3D"+kind+"/"+name)
			require.JSONEq(t, got.body, string(list.Items[0].Content.Raw))
			for _, number := range regexp.MustCompile(`[0-9]{16,}`).FindAllString(object.body, -1) { // JSONEq rounds these numbers
				require.Contains(t, string(list.Items[0].Content.Raw), number)
			}
		})
	}
	found := s.versions(t, 200, "root", historyPath+"/namespaces/default/changes?labelSelector=app%3Dx")
	require.ElementsMatch(t, []string{"create jobs.batch/x root unknown", "create replicationcontrollers/x root unknown"}, summary(found), "labels from a template")
}

// A user who may read one namespace sees nothing of another namespace, at any moment, and sees Secrets only with a
// right to Secrets.
func TestThePastIsUnderTodaysRights(t *testing.T) {
	s := newArchive(t)
	must := func(code int, q request) answer { return s.must(t, code, q) }
	const secret = "the-secret-of-b"
	for _, ns := range []string{"a", "b"} {
		must(201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"` + ns + `"}}`}.as("root"))
		must(201, request{method: "POST", path: "/api/v1/namespaces/" + ns + "/configmaps", body: `{"metadata":{"name":"c"},"data":{"k":"` + secret[:len(secret)-1] + ns + `"}}`}.as("root"))
		must(201, request{method: "POST", path: "/api/v1/namespaces/" + ns + "/secrets", body: `{"metadata":{"name":"s"},"stringData":{"k":"x"}}`}.as("root"))
	}
	role := func(resources string) string {
		return `{"metadata":{"name":"reader"},"rules":[{"apiGroups":["","history.logplane.dev"],"resources":[` + resources + `],"verbs":["get","list","watch"]}]}`
	}
	const roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/a/roles"
	must(201, request{method: "POST", path: roles, body: role(`"configmaps","versions","changes","namespaces"`)}.as("root"))
	must(201, request{method: "POST", path: "/apis/rbac.authorization.k8s.io/v1/namespaces/a/rolebindings", body: `{"metadata":{"name":"ann"},
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"reader"},"subjects":[{"kind":"User","name":"ann","apiGroup":"rbac.authorization.k8s.io"}]}`}.as("root"))
	head := fieldOf(must(200, request{method: "GET", path: "/api/v1/namespaces"}.as("root")).object(t), "metadata.resourceVersion").(string)
	for _, prefix := range []string{"", "/at/" + head, "/at/0s"} {
		for path, code := range map[string]int{
			"/api/v1/namespaces/a/configmaps":                                                            200,
			"/api/v1/namespaces/a/configmaps/c":                                                          200,
			"/api/v1/namespaces/b/configmaps":                                                            403,
			"/api/v1/namespaces/b/configmaps/c":                                                          403,
			"/api/v1/configmaps":                                                                         403,
			"/api/v1/configmaps?limit=1":                                                                 403,
			"/api/v1/namespaces/a/secrets":                                                               403,
			historyPath + "/namespaces/a/versions?fieldSelector=object%3Dconfigmaps/c":                   200,
			historyPath + "/namespaces/a/versions?fieldSelector=object%3Dsecrets/s":                      403,
			historyPath + "/namespaces/a/versions?fieldSelector=object%3Dnamespaces/a":                   200,
			historyPath + "/namespaces/a/versions?fieldSelector=object%3Dnamespaces/b":                   403,
			historyPath + "/namespaces/b/versions?fieldSelector=object%3Dconfigmaps/c":                   403,
			historyPath + "/namespaces/a/versions?fieldSelector=object%3Dconfigmaps/b/c":                 400,
			historyPath + "/versions?fieldSelector=object%3Dconfigmaps/b/c":                              403,
			historyPath + "/changes":                                                                     403,
			historyPath + "/namespaces/b/changes":                                                        403,
			historyPath + "/namespaces/a/versions?fieldSelector=object%3Dnodes/n,metadata.namespace%3Da": 403,
		} {
			for _, accept := range []string{"", table, "application/yaml", "application/cbor"} {
				a := request{method: "GET", path: prefix + path, accept: accept}.as("ann").do(t, s)
				require.Equal(t, code, a.code, "%s%s: %s", prefix, path, a.body)
				require.NotContains(t, a.body, secret)
			}
		}
		s.versions(t, 400, "ann", prefix+historyPath+"/namespaces/a/changes?fieldSelector=metadata.namespace%3Db")
		list := s.versions(t, 200, "ann", prefix+historyPath+"/namespaces/a/changes")
		require.Equal(t, []string{"create configmaps/c root unknown"}, summary(list))
		for _, revision := range []string{"1", head, list.Items[0].Name} {
			a := request{method: "GET", path: prefix + historyPath + "/namespaces/a/versions/" + revision}.as("ann").do(t, s)
			require.Equal(t, revision == list.Items[0].Name, a.code == 200, a.body)
		}
	}
	must(403, request{method: "DELETE", path: "/at/" + head + "/api/v1/namespaces/a/configmaps/c"}.as("ann"))
	must(405, request{method: "DELETE", path: "/at/" + head + "/api/v1/namespaces/a/configmaps/c"}.as("root"))
	must(401, request{method: "GET", path: "/at/" + head + "/api/v1/namespaces/a/configmaps", header: map[string][]string{"Authorization": {"Bearer wrong"}}})

	// The right does not exist today, so it does not apply to the past either, although it existed then.
	before := fieldOf(must(200, request{method: "GET", path: "/api/v1/namespaces"}.as("root")).object(t), "metadata.resourceVersion").(string)
	must(200, request{method: "DELETE", path: roles + "/reader"}.as("root"))
	must(403, request{method: "GET", path: "/at/" + before + "/api/v1/namespaces/a/configmaps"}.as("ann"))
	must(403, request{method: "GET", path: historyPath + "/namespaces/a/changes"}.as("ann"))
}

// A webhook may deny one object by its name and allow all others. History does not show any version of the denied
// object either.
func TestThePastAsksByName(t *testing.T) {
	kubeconfig := accesstest.NewWebhook(t, func(_ *http.Request, review map[string]any) bool {
		attributes, _ := review["spec"].(map[string]any)["resourceAttributes"].(map[string]any)
		review["status"] = map[string]any{"allowed": attributes["name"] != "closed", "denied": attributes["name"] == "closed"}
		return true
	})
	s := newServer(t, withTokens(t), func(c *Config) { c.Authorization.ConfigFile = authorizationOf(t, kubeconfig) })
	for _, name := range []string{"open", "closed"} {
		s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"` + name + `"},"data":{"k":"in ` + name + `"}}`}.as("root"))
	}
	s.must(t, 403, request{method: "GET", path: configMaps + "/closed"}.as("ann"))
	list := s.must(t, 200, request{method: "GET", path: historyPath + "/namespaces/default/changes?include=object"}.as("ann")).body
	require.Contains(t, list, "in open")
	require.NotContains(t, list, "in closed")
}

// A client may name the wrong group for a stored object. The rights to the object's real resource decide.
func TestVersionsOfAnotherGroup(t *testing.T) {
	s := newArchive(t)
	s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"a"}}`}.as("root"))
	s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces/a/secrets", body: `{"metadata":{"name":"s"},"stringData":{"k":"x"}}`}.as("root"))
	s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces/a/services", body: `{"metadata":{"name":"s"},"spec":{"ports":[{"port":80}]}}`}.as("root"))
	s.must(t, 201, request{method: "POST", path: "/apis/rbac.authorization.k8s.io/v1/namespaces/a/roles", body: `{"metadata":{"name":"reader"},"rules":[
		{"apiGroups":["history.logplane.dev"],"resources":["versions","changes"],"verbs":["list"]},
		{"apiGroups":["apps","services","x.example"],"resources":["*"],"verbs":["get"]}]}`}.as("root"))
	s.must(t, 201, request{method: "POST", path: "/apis/rbac.authorization.k8s.io/v1/namespaces/a/rolebindings", body: `{"metadata":{"name":"ann"},
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"reader"},"subjects":[{"kind":"User","name":"ann","apiGroup":"rbac.authorization.k8s.io"}]}`}.as("root"))
	for _, object := range []string{"secrets.apps/s", "secrets.services/s", "specs.services/s", "secrets.x.example/s", "pods.apps/s", "claims.logplane.dev/s"} {
		for _, resource := range []string{"versions?include=object&fieldSelector=object%3D" + object, "changes?include=object&fieldSelector=object%3D" + object} {
			a := request{method: "GET", path: historyPath + "/namespaces/a/" + resource}.as("ann").do(t, s)
			require.NotContains(t, a.body, `"verb"`, resource)
			require.Contains(t, []int{200, 400}, a.code, a.body)
		}
	}
}

// A page ends when it has become large. Large numbers stay exact. A version in which everything changes has no patch.
func TestVersionsOfLargeObjects(t *testing.T) {
	s := newArchive(t)
	s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces/default/configmaps", body: `{"metadata":{"name":"large"}}`}.as("root"))
	for n := range 8 {
		data := map[string]string{}
		for i := range 6000 {
			data[fmt.Sprintf("key%05d", i)] = fmt.Sprintf("%d-%080d", n, i)
		}
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"name": "large"}, "data": data})
		require.NoError(t, err)
		s.must(t, 200, request{method: "PUT", path: "/api/v1/namespaces/default/configmaps/large", body: string(body)}.as("root"))
	}
	path := historyPath + "/namespaces/default/versions?fieldSelector=object%3Dconfigmaps/large"
	var all []history.Version
	pages := 0
	for next := ""; pages == 0 || next != ""; pages++ {
		list := s.versions(t, 200, "root", path+"&continue="+next)
		all, next = append(all, list.Items...), list.Continue
	}
	require.Greater(t, pages, 1)
	require.Len(t, all, 9)
	require.True(t, all[0].PatchOmitted)
	require.Empty(t, all[0].Patch)
	require.Equal(t, "data.key00000", all[0].Changed[0])

}

// A patch between two objects keeps integers beyond 2^53, contains all fields, and is not cut.
func TestAPatchBetweenObjects(t *testing.T) {
	object := func(n int64, manager string, list ...any) map[string]any {
		return map[string]any{"metadata": map[string]any{"managedFields": manager}, "spec": map[string]any{"n": n, "l": list}}
	}
	between := func(before, after map[string]any) string {
		encoded, err := json.Marshal(history.PatchBetween(before, after))
		require.NoError(t, err)
		return string(encoded)
	}
	one := object(9007199254740993, "m", "a", "b", "c")
	require.JSONEq(t, `[{"op":"replace","path":"/spec/n","value":9007199254740992}]`, between(one, object(9007199254740992, "m", "a", "b", "c")))
	require.JSONEq(t, `[{"op":"replace","path":"/metadata/managedFields","value":"n"},{"op":"add","path":"/spec/l/0","value":"x"}]`,
		between(one, object(9007199254740993, "n", "x", "a", "b", "c")))
	require.JSONEq(t, `[{"op":"add","path":"/spec","value":null}]`, between(map[string]any{}, map[string]any{"spec": nil}))
	require.JSONEq(t, `[{"op":"remove","path":""}]`, between(one, nil))
	require.JSONEq(t, `[{"op":"add","path":"","value":{"a":1}}]`, between(nil, map[string]any{"a": int64(1)}))
	require.Equal(t, "null", between(nil, nil))
	require.Equal(t, "null", between(one, one))
	large := map[string]any{}
	for i := range 1000 {
		large[fmt.Sprint(i)] = "x"
	}
	require.Len(t, history.PatchBetween(map[string]any{}, large), 1000)
}

// watched reads a watch of changes to its end, or until it has 'many' changes. It returns the changes, with a line for
// each change.
func (s *Server) watched(t *testing.T, user, query string, many int) (all []history.Change, lines []string) {
	t.Helper()
	listener := httptest.NewServer(s)
	t.Cleanup(listener.Close)
	r, err := http.NewRequestWithContext(t.Context(), "GET", listener.URL+historyPath+query, nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+user+"-token")
	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, 200, response.StatusCode)
	for decoder := json.NewDecoder(response.Body); len(all) < many; {
		var event struct {
			Type   string
			Object history.Change
		}
		require.NoError(t, decoder.Decode(&event), "after %s", lines)
		require.Equal(t, "ADDED", event.Type)
		require.Equal(t, event.Object.Name, event.Object.ResourceVersion)
		all = append(all, event.Object)
	}
	list := history.VersionList{}
	for _, c := range all {
		list.Items = append(list.Items, c.Version)
	}
	return all, summary(list)
}

// TestChangesAreWatched: a watch of changes delivers each change once and in order, from wherever it begins, and in the
// form in which changes are listed. A user gets the changes of objects that the user may get at the time of the watch.
func TestChangesAreWatched(t *testing.T) {
	s := newArchive(t, withFeed(t))
	must := func(code int, q request) answer { return s.must(t, code, q.as("root")) }
	head := fieldOf(must(200, request{method: "GET", path: configMaps}).object(t), "metadata.resourceVersion").(string)
	const inDefault = "/namespaces/default/changes?watch=true&timeoutSeconds=30&resourceVersion="
	must(201, request{method: "POST", path: configMaps, body: configMap("a", "1")})
	must(201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"other"}}`})
	must(201, request{method: "POST", path: "/api/v1/namespaces/other/configmaps", body: `{"metadata":{"name":"elsewhere"}}`})
	must(200, merging("PATCH", configMaps+"/a?fieldManager=m", `{"metadata":{"labels":{"x":"y"}},"data":{"v":"2"}}`))
	const roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/"
	must(201, request{method: "POST", path: roles + "roles", body: `{"metadata":{"name":"reader"},"rules":[{"apiGroups":["history.logplane.dev"],"resources":["changes"],"verbs":["list","watch"]}]}`})
	must(201, request{method: "POST", path: roles + "rolebindings", body: `{"metadata":{"name":"ann"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"reader"},"subjects":[{"kind":"User","name":"ann","apiGroup":"rbac.authorization.k8s.io"}]}`})
	must(200, request{method: "DELETE", path: configMaps + "/a"})
	want := []string{"create configmaps/a root unknown", "update configmaps/a root m data.v,metadata.labels",
		"create roles.rbac.authorization.k8s.io/reader root unknown", "create rolebindings.rbac.authorization.k8s.io/ann root unknown", "delete configmaps/a root"}
	all, lines := s.watched(t, "root", inDefault+head, len(want))
	require.Equal(t, want, lines)
	const empty = ",to%3D,object%3D,verb%3D,user%3D,manager%3D" // counts as absent
	listed := s.versions(t, 200, "root", historyPath+"/namespaces/default/changes?fieldSelector=from%3D"+head+empty+",resource%3D")
	require.Len(t, listed.Items, len(want))
	for i, c := range all { // the only difference is that events of a watch name their kind
		c.TypeMeta = listed.Items[i].TypeMeta
		require.Equal(t, listed.Items[i], c.Version)
	}
	_, lines = s.watched(t, "root", inDefault+all[1].Name, 3)
	require.Equal(t, want[2:], lines, "it goes on")
	for selector, many := range map[string]int{"fieldSelector=verb%3Ddelete": 1, "fieldSelector=resource%3Dconfigmaps": 3, "fieldSelector=object%3Dconfigmaps/a,manager%3Dm": 1, "labelSelector=x%3Dy": 2} {
		_, lines := s.watched(t, "root", inDefault+head+"&"+selector, many)
		require.Len(t, lines, many, selector)
		require.Contains(t, strings.Join(want, "\n"), lines[many-1], selector)
	}
	_, lines = s.watched(t, "root", "/changes?watch=true&timeoutSeconds=30&fieldSelector=from%3D"+head+empty+",resource%3Dconfigmaps", 4)
	require.Equal(t, "create configmaps/elsewhere root", lines[1])

	// Once ann may get the objects, she sees their changes.
	must(201, request{method: "POST", path: configMaps, body: configMap("b", "1")})
	must(200, request{method: "PUT", path: roles + "roles/reader", body: `{"metadata":{"name":"reader"},"rules":[{"apiGroups":["","history.logplane.dev"],"resources":["changes","configmaps"],"verbs":["get","list","watch"]}]}`})
	must(201, request{method: "POST", path: "/api/v1/namespaces/default/secrets", body: `{"metadata":{"name":"s"}}`})
	must(201, request{method: "POST", path: configMaps, body: configMap("c", "1")})
	now := must(200, request{method: "GET", path: configMaps}).object(t)
	all, _ = s.watched(t, "ann", inDefault+all[4].Name, 2)
	require.Equal(t, []string{"b", "c"}, []string{all[0].Object.Name, all[1].Object.Name}, "her rights are those of today")

	// A watch of changes refuses these requests.
	for query, code := range map[string]int{"&fieldSelector=to%3D1h": 400, "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true": 422, "x": 400} {
		s.must(t, code, request{method: "GET", path: historyPath + inDefault + head + query}.as("root"))
	}
	s.must(t, 403, request{method: "GET", path: historyPath + "/changes?watch=true"}.as("ann"))

	// A watch of the past needs no feed, and ends.
	s.config.Cell.Feed = nil
	moment := fieldOf(now, "metadata.resourceVersion").(string)
	a := s.must(t, 200, request{method: "GET", path: "/at/" + moment + historyPath + "/changes?watch=true&fieldSelector=resource%3Dconfigmaps&resourceVersion=" + head, accept: table}.as("root"))
	require.Equal(t, 6, strings.Count(a.body, `"ADDED"`), a.body)
	require.Contains(t, a.body, `"configmaps/elsewhere"`)
}

// fill appends many small events of a hundred ConfigMaps, and moves the floor above these events.
func fill(t *testing.T, s *Server, events int, text string) {
	p := s.config.Cell.Projection
	for n := 0; n < events; {
		v, err := p.Latest(t.Context())
		require.NoError(t, err)
		var writes []projection.Write
		for range min(100, events-n) {
			key := s.stores.Key(corev1.Resource("configmaps"), "default", fmt.Sprint("filler-", n%100))
			state, err := v.State(t.Context(), key)
			require.NoError(t, err)
			writes = append(writes, state.Put("application/json", []byte(text), 0))
			n++
		}
		_, err = v.Append(t.Context(), fmt.Sprint("fill-", n), writes...)
		require.NoError(t, err)
	}
	applied, err := p.Commit(t.Context())
	require.NoError(t, err)
	require.NoError(t, p.Retain(t.Context(), applied, applied))
}

// TestChangesThatMatchNothing: events that match nothing count for a page, too. If there are many such events, the
// request takes a heavy seat.
func TestChangesThatMatchNothing(t *testing.T) {
	for name, of := range map[string]struct {
		events, pages int
		text          string
	}{"many": {45_000, 3, "{}"}, "large": {150, 5, strings.Repeat("x", 1<<20)}} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, withTokens(t), func(c *Config) {
				p, err := projection.Open(projection.Config{Log: c.Cell.Log, Bucket: memory.Strict(t), History: time.Hour})
				require.NoError(t, err)
				c.Cell.Projection, c.Requests = p, gate.RequestLimits{Timeout: 10 * time.Second}
			})
			const none = historyPath + "/namespaces/default/changes?fieldSelector=from%3D0,"
			s.must(t, 200, request{method: "GET", path: none + "resource%3Dsecrets"}.as("ann"))
			fill(t, s, of.events, of.text)
			func() {
				taken, err := s.gate.Heavy.Take(t.Context(), "ann")
				require.NoError(t, err)
				defer taken()
				s.must(t, 429, request{method: "GET", path: none + "resource%3Dsecrets"}.as("ann"))
			}()
			for _, selected := range []string{"resource%3Dsecrets", "object%3Dsecrets/none", "object%3Dconfigmaps/none", "user%3Dnobody"} {
				pages := 1
				for token := ""; ; pages++ {
					list := s.versions(t, 200, "bob", none+selected+"&continue="+token)
					require.Empty(t, list.Items)
					if token = list.Continue; token == "" {
						break
					}
				}
				require.Equal(t, of.pages, pages, selected)
			}
		})
	}
}

// TestViewTellsWhoWrites: a user with the role 'view' in a namespace learns from history who writes in the namespace.
// If the role that grants this right is no longer part of 'view', the user does not learn who writes.
func TestViewTellsWhoWrites(t *testing.T) {
	s := newArchive(t)
	s.must(t, 201, request{method: "POST", path: configMaps, body: configMap("a", "1")}.as("root"))
	s.must(t, 201, request{method: "POST", path: rbacPath + "/namespaces/default/rolebindings", body: bindAnn("ClusterRole", "view")}.as("root"))
	history := request{method: "GET", path: historyPath + "/namespaces/default/versions?fieldSelector=object%3Dconfigmaps/a"}.as("ann")
	require.Contains(t, s.must(t, 200, history).body, `"user":"root"`)
	require.NotContains(t, s.must(t, 200, request{method: "GET", path: configMaps + "/a"}.as("ann")).body, "root")
	s.must(t, 200, merging("PATCH", rbacPath+"/clusterroles/logplane:aggregate-to-view", `{"metadata":{"labels":{"rbac.authorization.k8s.io/aggregate-to-view":null}}}`).as("root"))
	s.must(t, 403, history)
	require.NoError(t, s.Bootstrap(t.Context()))
	s.must(t, 403, history)
	s.must(t, 200, request{method: "GET", path: configMaps + "/a"}.as("ann"))
}

// TestMomentsTakeHeavySeats: a request of the past waits for other heavy reads of its user if a time names its moment,
// or if its moment is between two checkpoints. A moment between two checkpoints needs a pass over archived events. A
// request at a revision in memory does not wait.
func TestMomentsTakeHeavySeats(t *testing.T) {
	s := newServer(t, withTokens(t), func(c *Config) {
		p, err := projection.Open(projection.Config{Log: c.Cell.Log, Bucket: memory.Strict(t), History: time.Hour})
		require.NoError(t, err)
		c.Cell.Projection, c.Requests = p, gate.RequestLimits{Timeout: time.Second}
	})
	fill(t, s, 10, "{}") // fill also makes a checkpoint
	fill(t, s, 10, "{}")
	fill(t, s, 10, "{}")
	s.must(t, 201, request{method: "POST", path: configMaps, body: configMap("a", "1")}.as("ann"))
	head := s.head(t)
	takeHeavySeats(t, s, "ann")
	for at, code := range map[string]int{fmt.Sprint(head): 200, fmt.Sprint(head - 15): 429, "0s": 429} {
		for _, path := range []string{"/api/v1/namespaces", "/api/v1/namespaces/default"} {
			s.must(t, code, request{method: "GET", path: "/at/" + at + path}.as("ann"))
			s.must(t, 200, request{method: "GET", path: "/at/" + at + path}.as("bob"))
		}
	}
}
