package apiserver

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/apiserver/access"
	"github.com/logplane/logplane/internal/apiserver/access/accesstest"
	"github.com/logplane/logplane/internal/kubestore/kubestoretest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
)

const (
	inA = "/api/v1/namespaces/a"
	// earlier is the content of the first namespace of the name, and later is the content of the second.
	earlier, later = "what the first one hid", "what the second one has"
)

// tells says whether an answer contains a text, plain or in base64 as in a Secret.
func tells(body, text string) bool {
	return strings.Contains(body, text) || strings.Contains(body, base64.StdEncoding.EncodeToString([]byte(text)))
}

// makeNamespace makes namespace 'a' with a Secret that is written twice. It returns a revision at which the Secret
// existed, and the first revision of the append that made the namespace. A right inside the namespace allows ann to
// read the Secret.
func (s *Server) makeNamespace(t *testing.T, content string) (at, made string) {
	t.Helper()
	must := func(code int, r request) answer { return s.must(t, code, r.as("root")) }
	must(201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"a","annotations":{"x":"` + content + `"}}}`})
	must(201, request{method: "POST", path: inA + "/secrets", body: `{"metadata":{"name":"s"},"stringData":{"k":"a first ` + content + `"}}`})
	must(201, request{method: "POST", path: inA + "/secrets", body: `{"metadata":{"name":"only-` + strings.Fields(content)[2] + `"},"stringData":{"k":"` + content + `"}}`})
	must(200, merging("PATCH", inA+"/secrets/s", `{"stringData":{"k":"`+content+`"}}`))
	must(200, merging("PATCH", inA, `{"metadata":{"labels":{"changed":"once"}}}`))
	must(200, merging("PATCH", inA, `{"metadata":{"labels":{"changed":"twice"}}}`))
	must(201, request{method: "POST", path: rbacPath + "/namespaces/a/roles", body: `{"metadata":{"name":"reader"},"rules":[
		{"apiGroups":["","history.logplane.dev"],"resources":["secrets","serviceaccounts","namespaces","versions","changes"],"verbs":["get","list","watch","deletecollection"]}]}`})
	bound := must(201, request{method: "POST", path: rbacPath + "/namespaces/a/rolebindings", body: bindAnn("Role", "reader")})
	v, err := s.config.Cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	row, found, err := v.Get(t.Context(), s.stores.Key(corev1.Resource("serviceaccounts"), "a", "default").RowKey(), v.Revision())
	require.NoError(t, err)
	require.True(t, found)
	return fieldOf(bound.object(t), "metadata.resourceVersion").(string), fmt.Sprint(row.Revision)
}

// bindAnn binds ann to a role.
func bindAnn(kind, role string) string {
	return `{"metadata":{"name":"ann"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"` + kind + `","name":"` + role + `"},
		"subjects":[{"kind":"User","name":"ann","apiGroup":"rbac.authorization.k8s.io"}]}`
}

// endNamespace deletes namespace 'a' and everything in it.
func (s *Server) endNamespace(t *testing.T) {
	t.Helper()
	must := func(code int, r request) { s.must(t, code, r.as("root")) }
	for _, path := range []string{inA + "/secrets", inA + "/serviceaccounts", rbacPath + "/namespaces/a/roles", rbacPath + "/namespaces/a/rolebindings"} {
		must(200, request{method: "DELETE", path: path})
	}
	must(200, request{method: "DELETE", path: inA})
	must(200, request{method: "PUT", path: inA + "/finalize", body: `{"metadata":{"name":"a"},"spec":{"finalizers":[]}}`})
	must(404, request{method: "GET", path: inA})
}

// sink collects everything that a watch sends.
func (s *Server) sink(t *testing.T, r request) answer {
	t.Helper()
	if !strings.Contains(r.path, "watch=true") {
		return r.do(t, s)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	q := httptest.NewRequest(http.MethodGet, r.path+"&timeoutSeconds=1", nil).WithContext(ctx)
	q.Header = r.header
	w := httptest.NewRecorder()
	s.ServeHTTP(w, q)
	return answer{code: w.Code, header: w.Header(), body: w.Body.String()}
}

// TestRightsOfANamespaceBeginWithIt: however the past is read, a user with a right inside a namespace can read
// everything since the namespace was made, and nothing of the earlier namespace of that name. A user with the right in
// all namespaces can read everything.
func TestRightsOfANamespaceBeginWithIt(t *testing.T) {
	for _, where := range []string{"kept", "below the floor"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			s := newArchive(t, withFeed(t))
			p := s.config.Cell.Projection
			age := func() {
				if where == "kept" {
					return
				}
				applied, err := p.Commit(t.Context())
				require.NoError(t, err)
				require.NoError(t, p.Retain(t.Context(), applied, applied))
			}
			old, _ := s.makeNamespace(t, earlier)
			first := s.must(t, 200, request{method: "GET", path: inA + "/secrets?limit=1"}.as("ann"))
			token := "continue=" + url.QueryEscape(fieldOf(first.object(t), "metadata.continue").(string))
			s.must(t, 200, request{method: "GET", path: "/at/" + old + inA + "/secrets"}.as("ann"))
			age()
			s.endNamespace(t)
			between := s.newestRevision(t)
			age()
			at, made := s.makeNamespace(t, later)
			age()
			s.must(t, 200, merging("PATCH", inA, `{"metadata":{"labels":{"changed":"again"}}}`).as("root"))
			head := s.newestRevision(t)

			const history = historyPath + "/namespaces/a"
			exact := "?resourceVersionMatch=Exact&resourceVersion=" + old
			for _, c := range []struct {
				code int
				path string
			}{
				{403, "/at/" + old + inA}, {403, "/at/" + old + inA + "/secrets"}, {403, "/at/" + old + inA + "/secrets/s"},
				{403, "/at/" + old + inA + "/secrets?limit=1"}, {403, "/at/" + old + inA + "/secrets?watch=true"},
				{403, "/at/" + old + inA + "/secrets?watch=true&resourceVersion=1"}, {403, "/at/" + between + inA + "/secrets"},
				{403, "/at/" + old + inA + "/secrets?fieldSelector=metadata.name%3Ds"}, {403, "/at/" + head + inA + "/secrets?" + token},
				{403, "/at/" + old + history + "/versions?fieldSelector=object%3Dsecrets/s"}, {403, "/at/" + old + history + "/changes"},
				{403, "/at/" + old + history + "/versions/" + old},
				{410, "/at/" + head + inA + "/secrets" + exact}, {410, "/at/" + head + inA + "/secrets?watch=true&resourceVersion=" + old},
				{410, inA + "/secrets" + exact}, {410, inA + "/secrets?limit=1&resourceVersion=" + old}, {410, inA + "/secrets?" + token},
				{410, inA + "/secrets?watch=true&resourceVersion=" + old}, {410, inA + "/secrets?resourceVersionMatch=Exact&resourceVersion=" + between},
				{404, history + "/versions/" + old},
			} {
				for _, accept := range []string{"", table, "application/yaml", "application/vnd.kubernetes.protobuf", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"} {
					a := s.sink(t, request{method: "GET", path: c.path, accept: accept}.as("ann"))
					require.False(t, tells(a.body, earlier) || strings.Contains(a.body, "only-first"), "%s: %s", c.path, a.body)
					if where != "kept" && strings.Contains(c.path, "resourceVersion") && !strings.HasPrefix(c.path, "/at/") || accept != "" && strings.Contains(c.path, "/history.") {
						continue // expired for everybody, or not served in this form
					}
					require.Equal(t, c.code, a.code, "%s as '%s': %s", c.path, accept, a.body)
					if c.code != 404 {
						require.Contains(t, strings.Join(strings.Fields(a.body), " "), "reaches back to revision "+made, c.path)
					}
				}
			}
			s.must(t, 410, request{method: "DELETE", path: inA + "/secrets" + exact}.as("ann"))

			// The lists of history begin where the namespace began, whatever revision a client names.
			seen := []string{"update secrets/s root unknown data.k", "create secrets/s root unknown"}
			for _, query := range []string{"", "&continue=" + head} {
				require.Equal(t, seen, summary(s.versions(t, 200, "ann", history+"/versions?fieldSelector=object%3Dsecrets/s"+query)))
			}
			page := s.versions(t, 200, "ann", history+"/versions?limit=1&fieldSelector=object%3Dsecrets/s")
			page = s.versions(t, 200, "ann", history+"/versions?limit=1&fieldSelector=object%3Dsecrets/s&continue="+page.Continue)
			require.Equal(t, seen[1:], summary(page))
			require.Empty(t, page.Continue, "not that there is more")
			for _, path := range []string{"/versions?fieldSelector=object%3Dsecrets/only-first", "/versions?fieldSelector=object%3Dsecrets/s&continue=" + made, "/changes?fieldSelector=from%3D0,to%3D" + between} {
				require.Empty(t, s.versions(t, 200, "ann", history+path).Items, path)
			}
			mine := []string{"create serviceaccounts/default", "create secrets/s", "create secrets/only-second", "update secrets/s"}
			for _, query := range []string{"fieldSelector=from%3D0", "fieldSelector=from%3D" + old, "continue=" + old + "." + head, "continue=1." + head} {
				var got []string
				for _, v := range s.versions(t, 200, "ann", history+"/changes?"+query).Items {
					got = append(got, v.Verb+" "+v.Object.String())
				}
				require.Equal(t, mine, got, query)
			}
			if where == "kept" {
				all, _ := s.watched(t, "ann", "/namespaces/a/changes?watch=true&timeoutSeconds=30&resourceVersion=1", 4)
				require.Equal(t, "only-second", all[2].Object.Name)
			}

			// A plan contains nothing of the earlier namespace.
			for _, spec := range []string{`"undelete":{"object":"secrets/only-first"}`, `"undo":{"object":"secrets/s","revision":"` + old + `"}`,
				`"undo":{"user":"root","since":"1"}`, `"restore":{"to":"` + old + `"}`} {
				a := request{method: "POST", path: historyPath + "/plans?dryRun=All", body: `{"apiVersion":"history.logplane.dev/v1","kind":"Plan","spec":{"namespace":"a",` + spec + `}}`}.as("ann").do(t, s)
				require.False(t, tells(a.body, earlier) || strings.Contains(a.body, "only-first") && !strings.Contains(spec, "only-first"), "%s: %s", spec, a.body)
				require.NotContains(t, a.body, `"verb":"create"`, spec)
				require.Equal(t, strings.Contains(spec, "restore"), strings.Contains(a.body, "reaches back to revision "+made), "%s: %s", spec, a.body)
			}

			// The namespace's own past can be read.
			require.Len(t, s.versions(t, 200, "ann", history+"/versions?fieldSelector=object%3Dserviceaccounts/default").Items, 1)
			for _, moment := range []string{made, at, head} {
				require.Equal(t, moment != made, tells(s.must(t, 200, request{method: "GET", path: "/at/" + moment + inA + "/secrets"}.as("ann")).body, later), moment)
			}
			if where == "kept" {
				s.must(t, 200, request{method: "GET", path: inA + "/secrets?resourceVersionMatch=Exact&resourceVersion=" + made}.as("ann"))
				require.True(t, tells(s.sink(t, request{method: "GET", path: inA + "/secrets?watch=true&resourceVersion=" + between}.as("ann")).body, later))
			}

			// A right in all namespaces applies at every moment. A right to one name applies to every object that has
			// had the name.
			require.True(t, tells(s.must(t, 200, request{method: "GET", path: "/at/" + old + inA + "/secrets"}.as("root")).body, earlier))
			s.must(t, 201, request{method: "POST", path: rbacPath + "/clusterroles", body: `{"metadata":{"name":"one"},"rules":[{"apiGroups":[""],"resources":["secrets"],"resourceNames":["s"],"verbs":["get"]}]}`}.as("root"))
			s.must(t, 201, request{method: "POST", path: rbacPath + "/clusterrolebindings", body: bindAnn("ClusterRole", "one")}.as("root"))
			require.True(t, tells(s.must(t, 200, request{method: "GET", path: "/at/" + old + inA + "/secrets/s"}.as("ann")).body, earlier))
			s.must(t, 403, request{method: "GET", path: "/at/" + old + inA + "/secrets"}.as("ann"))
			s.must(t, 403, request{method: "GET", path: "/at/" + old + inA + "/secrets/only-first"}.as("ann"))
			require.Equal(t, seen, summary(s.versions(t, 200, "ann", history+"/versions?fieldSelector=object%3Dsecrets/s")), "the right to list versions is one of this namespace")
			s.must(t, 201, request{method: "POST", path: rbacPath + "/clusterroles", body: `{"metadata":{"name":"every"},"rules":[{"apiGroups":["history.logplane.dev"],"resources":["versions","changes"],"verbs":["get","list"]}]}`}.as("root"))
			s.must(t, 201, request{method: "POST", path: rbacPath + "/clusterrolebindings", body: strings.Replace(bindAnn("ClusterRole", "every"), `"ann"`, `"too"`, 1)}.as("root"))
			require.Len(t, s.versions(t, 200, "ann", history+"/versions?fieldSelector=object%3Dsecrets/s").Items, 5)
			require.Empty(t, s.versions(t, 200, "ann", history+"/versions?fieldSelector=object%3Dsecrets/only-first").Items)
			s.must(t, 200, request{method: "PUT", path: rbacPath + "/clusterroles/one", body: `{"metadata":{"name":"one"},"rules":[{"apiGroups":[""],"resources":["secrets"],"verbs":["get","list"]}]}`}.as("root"))
			require.True(t, tells(s.must(t, 200, request{method: "GET", path: "/at/" + old + inA + "/secrets"}.as("ann")).body, earlier))
			require.Len(t, s.versions(t, 200, "ann", history+"/versions?fieldSelector=object%3Dsecrets/only-first").Items, 2)
		})
	}
}

// newestRevision is the revision of the last event.
func (s *Server) newestRevision(t *testing.T) string {
	t.Helper()
	v, err := s.config.Cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	return fmt.Sprint(v.Revision())
}

// TestRightsToCustomResourcesBeginWithTheirDefinition: a user who may read custom resources in a namespace cannot read
// the resources of an earlier definition of the name. While the definition is missing, the user can read no custom
// resources.
func TestRightsToCustomResourcesBeginWithTheirDefinition(t *testing.T) {
	s := newArchive(t)
	must := func(code int, r request) answer { return s.must(t, code, r.as("root")) }
	roles := rbacPath + "/namespaces/default/"
	must(201, request{method: "POST", path: roles + "roles", body: `{"metadata":{"name":"reader"},"rules":[
		{"apiGroups":["example.com"],"resources":["widgets"],"verbs":["get","list"]},{"apiGroups":["history.logplane.dev"],"resources":["versions","changes"],"verbs":["list"]}]}`})
	must(201, request{method: "POST", path: roles + "rolebindings", body: bindAnn("Role", "reader")})
	define := func(color string) {
		must(201, request{method: "POST", path: definitionPath, body: pastDefinition(color)})
	}
	remove := func() {
		must(200, request{method: "DELETE", path: widgetsPath + "/w"})
		must(200, request{method: "DELETE", path: definitionPath + "/widgets.example.com"})
		must(200, merging("PATCH", definitionPath+"/widgets.example.com", `{"metadata":{"finalizers":null}}`))
	}
	widget := func(color string) string {
		body := `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w"},"spec":{"` + color + `":"` + color + ` of it"}}`
		return fieldOf(must(201, request{method: "POST", path: widgetsPath, body: body}).object(t), "metadata.resourceVersion").(string)
	}
	const versions = historyPath + "/namespaces/default/versions?include=object&fieldSelector=object%3Dwidgets.example.com/w"
	const changes = historyPath + "/namespaces/default/changes?fieldSelector=from%3D0"
	at := func(user, moment string) answer {
		return request{method: "GET", path: "/at/" + moment + widgetsPath}.as(user).do(t, s)
	}
	define("hue")
	old := widget("hue")
	require.Contains(t, at("ann", old).body, "hue of it")
	require.Len(t, s.versions(t, 200, "ann", versions).Items, 1)
	remove()
	require.Contains(t, at("ann", old).body, "which is not there now")
	require.Empty(t, s.versions(t, 200, "ann", versions).Items)
	require.Empty(t, s.versions(t, 200, "ann", changes).Items)
	before, err := strconv.Atoi(s.newestRevision(t))
	require.NoError(t, err)
	begins := fmt.Sprint(before + 1) // the append of the definition begins with the claims of its names
	define("tint")
	now := widget("tint")
	for _, changed := range []string{"", "once", "twice"} {
		if changed != "" {
			must(200, merging("PATCH", definitionPath+"/widgets.example.com", `{"metadata":{"labels":{"changed":"`+changed+`"}}}`))
		}
		a := at("ann", old)
		require.Equal(t, 403, a.code, a.body)
		require.Contains(t, a.body, "reaches back to revision "+begins)
		require.Contains(t, a.body, "definition 'widgets.example.com'")
		require.Contains(t, at("ann", now).body, "tint of it")
		require.Len(t, s.versions(t, 200, "ann", versions).Items, 1)
		require.Len(t, s.versions(t, 200, "ann", changes).Items, 1)
	}
	require.Contains(t, at("root", old).body, "hue of it")
	require.Len(t, s.versions(t, 200, "root", versions).Items, 3)
}

// TestRightsOfNoNamespace: a webhook may allow requests in a missing namespace. Such a right does not cover any of the
// past.
func TestRightsOfNoNamespace(t *testing.T) {
	kubeconfig := accesstest.NewWebhook(t, func(_ *http.Request, review map[string]any) bool {
		attributes, _ := review["spec"].(map[string]any)["resourceAttributes"].(map[string]any)
		review["status"] = map[string]any{"allowed": attributes["namespace"] == "a"}
		return true
	})
	s := newServer(t, withTokens(t), func(c *Config) { c.Authorization.ConfigFile = authorizationOf(t, kubeconfig) })
	old, _ := s.makeNamespace(t, earlier)
	get := request{method: "GET", path: "/at/" + old + inA + "/secrets"}.as("ann")
	versions := request{method: "GET", path: historyPath + "/namespaces/a/changes?fieldSelector=from%3D0"}.as("ann")
	require.True(t, tells(s.must(t, 200, get).body, earlier))
	require.Contains(t, s.must(t, 200, versions).body, "only-first")
	s.endNamespace(t)
	require.Contains(t, s.must(t, 403, get).body, "namespace 'a', which is not there now")
	require.NotContains(t, s.must(t, 200, versions).body, "only-first")
	_, made := s.makeNamespace(t, later)
	require.Contains(t, s.must(t, 403, get).body, "reaches back to revision "+made)
	require.NotContains(t, s.must(t, 200, versions).body, "only-first")
	require.Contains(t, s.must(t, 200, versions).body, "only-second")
}

// TestReachOfAForgottenNamespace: if the creation of a namespace is no longer known, a right inside the namespace
// reaches back to the oldest kept version of the namespace.
func TestReachOfAForgottenNamespace(t *testing.T) {
	cell := kubestoretest.Cell(t, projection.Config{InlineBytes: 1, History: time.Hour,
		Checkpoints: []projection.CheckpointRule{{Every: time.Nanosecond, Keep: time.Hour}}, HistoryRules: []projection.HistoryRule{{Prefix: "/namespaces"}}})
	p := cell.Projection
	s := newServer(t, withTokens(t), func(c *Config) { c.Authorization, c.Cell = access.Authorization{Mode: "RBAC"}, cell })
	commit := func() projection.Revision {
		applied, err := p.Commit(t.Context())
		require.NoError(t, err)
		return applied
	}
	old, _ := s.makeNamespace(t, earlier)
	commit()
	s.endNamespace(t)
	at, _ := s.makeNamespace(t, later)
	commit()
	s.must(t, 200, merging("PATCH", inA, `{"metadata":{"labels":{"changed":"again"}}}`).as("root"))
	newest := s.newestRevision(t)
	applied := commit()
	require.NoError(t, p.Retain(t.Context(), applied, applied))
	trimmed, err := p.Trim(t.Context())
	require.NoError(t, err)
	require.True(t, trimmed)
	for _, moment := range []string{old, at} {
		get := request{method: "GET", path: "/at/" + moment + inA + "/secrets"}
		require.Contains(t, s.must(t, 403, get.as("ann")).body, "reaches back to revision "+newest)
		s.must(t, 200, get.as("root"))
	}
	s.must(t, 200, request{method: "GET", path: "/at/" + newest + inA + "/secrets"}.as("ann"))
	for _, path := range []string{"/changes?fieldSelector=from%3D1", "/versions?fieldSelector=object%3Dsecrets/s"} {
		a := s.must(t, 200, request{method: "GET", path: historyPath + "/namespaces/a" + path}.as("ann"))
		require.NotContains(t, a.body, "secrets", path)
	}
}

// TestWhatAReachCosts: reading a namespace's past costs nothing more with a right in all namespaces, and little more
// with a right inside the namespace.
func TestWhatAReachCosts(t *testing.T) {
	log, counted := eventlogtest.Log(t), bucket.Count(memory.Strict(t))
	users := withTokens(t)
	process := func(change func(*projection.Config)) *Server {
		c := projection.Config{Log: log, Bucket: counted, InlineBytes: 1, History: time.Hour, Checkpoints: []projection.CheckpointRule{{Every: time.Nanosecond, Keep: time.Hour}}}
		change(&c)
		of := Config{Authorization: access.Authorization{Mode: "RBAC"}, Cell: kubestoretest.Cell(t, c)}
		users(&of)
		s, err := New(of)
		require.NoError(t, err)
		return s
	}
	writer := process(func(*projection.Config) {})
	require.NoError(t, writer.Bootstrap(t.Context()))
	age := func() {
		applied, err := writer.config.Cell.Projection.Commit(t.Context())
		require.NoError(t, err)
		require.NoError(t, writer.config.Cell.Projection.Retain(t.Context(), applied, applied))
	}
	old, _ := writer.makeNamespace(t, later)
	age()
	for range 3 {
		writer.must(t, 200, merging("PATCH", inA+"/secrets/s", `{"stringData":{"k":"x"}}`).as("root"))
		writer.must(t, 200, merging("PATCH", inA, `{"metadata":{"labels":{"changed":"`+writer.newestRevision(t)+`"}}}`).as("root"))
		age()
	}
	reads := func(user string) (n int64) {
		cold := process(func(c *projection.Config) { c.ReadOnly = true })
		cold.must(t, 200, request{method: "GET", path: inA + "/secrets/s"}.as(user))
		before := counted.Counts()
		cold.must(t, 200, request{method: "GET", path: "/at/" + old + inA + "/secrets/s"}.as(user))
		after := counted.Counts()
		return after.Get + after.GetRange - before.Get - before.GetRange
	}
	require.EqualValues(t, 3, reads("root"))
	require.LessOrEqual(t, reads("ann"), int64(5))
}
