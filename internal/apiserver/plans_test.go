package apiserver

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/apiserver/services"
	"github.com/logplane/logplane/internal/apiserver/tokens"
)

// planned sends a plan. dry means that nothing may be written. agreed is an earlier answer that the user has agreed to.
func (s *Server) planned(t *testing.T, spec string, dry bool, agreed *history.Plan) *history.Plan {
	t.Helper()
	r := request{method: "POST", path: historyPath + "/plans"}
	if dry {
		r.path += "?dryRun=All"
	}
	status := []byte("{}")
	if agreed != nil {
		var err error
		status, err = json.Marshal(agreed.Status)
		require.NoError(t, err)
	}
	r.body = fmt.Sprintf(`{"apiVersion":"history.logplane.dev/v1","kind":"Plan","spec":%s,"status":%s}`, spec, status)
	got := &history.Plan{}
	require.NoError(t, json.Unmarshal([]byte(s.must(t, 201, r).body), got))
	return got
}

// newestOf is the newest revision of a ConfigMap, 0 if it does not exist.
func (s *Server) newestOf(t *testing.T, name string) string {
	t.Helper()
	a := request{method: "GET", path: configMaps + "/" + name}.do(t, s)
	if a.code == 404 {
		return ""
	}
	return fieldOf(a.object(t), "metadata.resourceVersion").(string)
}

// TestPlan: a dry run writes nothing and lists the changes that the plan would make. The plan is carried out in one
// append. Changes that were made after the dry run are left alone.
func TestPlan(t *testing.T) {
	s := newServer(t)
	patch := func(name, value string) {
		s.must(t, 200, request{method: "PATCH", path: configMaps + "/" + name + "?fieldManager=robot",
			body: `{"data":{"v":"` + value + `"}}`, contentType: "application/merge-patch+json"})
	}
	names := []string{"a", "b", "c", "d"}
	for _, name := range names {
		s.must(t, 201, request{method: "POST", path: configMaps, body: configMap(name, "1")})
	}
	since := s.newestOf(t, "d")
	for _, name := range names[:3] {
		patch(name, "2")
	}
	undo := `{"namespace":"default","undo":{"manager":"robot","since":"` + since + `"}}`
	before := s.newestOf(t, "c")
	dry := s.planned(t, undo, true, nil)
	require.Equal(t, before, s.newestOf(t, "c"))
	require.Len(t, dry.Status.Changes, 3)
	for i, c := range dry.Status.Changes {
		require.Equal(t, names[i], c.Object.Name)
		require.Equal(t, "update", c.Verb)
		require.Equal(t, []string{"data.v"}, c.Fields)
		require.Empty(t, c.ResourceVersion)
	}
	patch("b", "3") // another change by the user whose changes are undone
	patch("d", "2") // an object that the plan did not name
	done := s.planned(t, undo, false, dry)
	for _, name := range []string{"a", "c"} {
		require.Equal(t, "1", fieldOf(s.must(t, 200, request{method: "GET", path: configMaps + "/" + name}).object(t), "data.v"))
	}
	require.Equal(t, "3", fieldOf(s.must(t, 200, request{method: "GET", path: configMaps + "/b"}).object(t), "data.v"))
	require.Equal(t, "2", fieldOf(s.must(t, 200, request{method: "GET", path: configMaps + "/d"}).object(t), "data.v"))
	var written []string
	for _, c := range done.Status.Changes {
		if c.Left != "" {
			require.Contains(t, c.Left, "meanwhile")
			continue
		}
		require.Equal(t, s.newestOf(t, c.Object.Name), c.ResourceVersion)
		written = append(written, c.ResourceVersion)
	}
	require.Len(t, written, 2)
	var first, second int
	_, err := fmt.Sscan(strings.Join(written, " "), &first, &second)
	require.NoError(t, err)
	require.Equal(t, first+1, second, "one append")

	a := s.must(t, 400, request{method: "POST", path: historyPath + "/plans", body: `{"apiVersion":"history.logplane.dev/v1","kind":"Plan","spec":{}}`})
	require.Contains(t, a.body, "one of spec.undo, spec.undelete and spec.restore")
	for _, spec := range []string{`{"restore":{"to":"999999"}}`, `{"undo":{"manager":"robot","since":"999999"}}`} {
		a = s.must(t, 400, request{method: "POST", path: historyPath + "/plans?dryRun=All",
			body: `{"apiVersion":"history.logplane.dev/v1","kind":"Plan","spec":` + spec + `}`})
		require.Contains(t, a.body, "has not come yet")
	}
}

// TestPlanWithARefusal: a step that is refused is named in the answer, and the other steps are written.
func TestPlanWithARefusal(t *testing.T) {
	s := newServer(t)
	secret := func(name, kind string) request {
		return request{method: "POST", path: "/api/v1/namespaces/default/secrets",
			body: `{"metadata":{"name":"` + name + `"},"type":"` + kind + `","data":{"a":"YQ=="}}`}
	}
	s.must(t, 201, secret("refused", "example.com/one"))
	s.must(t, 201, request{method: "POST", path: configMaps, body: configMap("back", "1")})
	then := s.newestOf(t, "back")
	s.must(t, 200, request{method: "DELETE", path: configMaps + "/back"})
	s.must(t, 200, request{method: "DELETE", path: "/api/v1/namespaces/default/secrets/refused"})
	s.must(t, 201, secret("refused", "example.com/two"))
	done := s.planned(t, `{"namespace":"default","restore":{"to":"`+then+`"}}`, false, nil)
	require.Equal(t, then, done.Status.Revision)
	require.Len(t, done.Status.Changes, 2)
	require.NotEmpty(t, s.newestOf(t, "back"))
	for _, c := range done.Status.Changes {
		require.Equal(t, c.Object.Name == "refused", c.Failed, c.Left)
	}
}

// TestPlanWritesAsItsUser: the author of a plan's writes is the user who sends the plan. An object that is made again
// has its earlier managers.
func TestPlanWritesAsItsUser(t *testing.T) {
	s := newServer(t)
	apply := func(manager, data string) {
		a := request{method: "PATCH", path: configMaps + "/shared?fieldManager=" + manager, contentType: "application/apply-patch+yaml",
			body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"shared"},"data":` + data + `}`}.do(t, s)
		require.Less(t, a.code, 300, a.body)
	}
	apply("one", `{"a":"1"}`)
	apply("two", `{"b":"1"}`)
	was := s.must(t, 200, request{method: "GET", path: configMaps + "/shared"}).object(t)
	s.must(t, 200, request{method: "DELETE", path: configMaps + "/shared"})
	done := s.planned(t, `{"namespace":"default","undelete":{"object":"configmaps/shared"}}`, false, nil)
	require.Equal(t, s.newestOf(t, "shared"), done.Status.Changes[0].ResourceVersion)
	is := s.must(t, 200, request{method: "GET", path: configMaps + "/shared"}).object(t)
	require.Equal(t, (&unstructured.Unstructured{Object: was}).GetManagedFields(), (&unstructured.Unstructured{Object: is}).GetManagedFields())
	versions := &history.VersionList{}
	a := s.must(t, 200, request{method: "GET", path: historyPath + "/namespaces/default/versions?fieldSelector=object%3Dconfigmaps/shared"})
	require.NoError(t, json.Unmarshal([]byte(a.body), versions))
	require.Equal(t, "create", versions.Items[0].Verb, "one event, though its fields were given back")
	require.Equal(t, versions.Items[1].User, versions.Items[0].User)
	require.Equal(t, "logplane-undelete", versions.Items[0].UserAgent)
}

// TestPlanOwners: an object that a plan writes names its owners by their present uids. The object does not name a
// missing owner, because the collector would then delete the object. An object that existed at the moment is not
// deleted together with an owner that was made later.
func TestPlanOwners(t *testing.T) {
	const secrets = "/api/v1/namespaces/default/secrets"
	for name, c := range map[string]struct {
		between func(s *Server, child func(owner string) string)
		spec    string
		owned   bool
	}{
		"undo": {func(s *Server, child func(string) string) {
			s.must(t, 200, request{method: "PUT", path: configMaps + "/child", body: child("")})
			s.must(t, 200, request{method: "DELETE", path: secrets + "/owner"})
		}, `{"namespace":"default","undo":{"user":"system:admin","since":"REVISION"}}`, true},
		"restore": {func(s *Server, child func(string) string) {
			s.must(t, 200, request{method: "PUT", path: configMaps + "/child", body: child("")})
			s.must(t, 200, request{method: "DELETE", path: secrets + "/owner"})
		}, `{"namespace":"default","restore":{"to":"REVISION"}}`, true},
		"restore without the owner": {func(s *Server, child func(string) string) {
			s.must(t, 200, request{method: "DELETE", path: configMaps + "/child"})
			s.must(t, 200, request{method: "DELETE", path: secrets + "/owner"})
			s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces/default/resourcequotas",
				body: `{"metadata":{"name":"none"},"spec":{"hard":{"count/secrets":"0"}}}`})
		}, `{"namespace":"default","restore":{"to":"REVISION"}}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			made := s.must(t, 201, request{method: "POST", path: secrets, body: `{"metadata":{"name":"owner"}}`})
			child := func(owner string) string {
				refs := ""
				if owner != "" {
					refs = `,"ownerReferences":[{"apiVersion":"v1","kind":"Secret","name":"owner","uid":"` + owner + `"}]`
				}
				return `{"metadata":{"name":"child"` + refs + `},"data":{"a":"1"}}`
			}
			s.must(t, 201, request{method: "POST", path: configMaps, body: child(fieldOf(made.object(t), "metadata.uid").(string))})
			then := s.newestOf(t, "child")
			c.between(s, child)
			s.planned(t, strings.Replace(c.spec, "REVISION", then, 1), false, nil)
			is := unstructured.Unstructured{Object: s.must(t, 200, request{method: "GET", path: configMaps + "/child"}).object(t)}
			if !c.owned {
				require.Empty(t, is.GetOwnerReferences())
				return
			}
			owner := s.must(t, 200, request{method: "GET", path: secrets + "/owner"}).object(t)
			require.Len(t, is.GetOwnerReferences(), 1)
			require.EqualValues(t, fieldOf(owner, "metadata.uid"), is.GetOwnerReferences()[0].UID)
		})
	}
	s := newServer(t)
	s.must(t, 201, request{method: "POST", path: configMaps, body: configMap("child", "1")})
	then := s.newestOf(t, "child")
	later := s.must(t, 201, request{method: "POST", path: secrets, body: `{"metadata":{"name":"later","labels":{"app":"x"}}}`})
	s.must(t, 200, request{method: "PATCH", path: configMaps + "/child", contentType: "application/merge-patch+json",
		body: fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Secret","name":"later","uid":"%v"}]}}`, fieldOf(later.object(t), "metadata.uid"))})
	done := s.planned(t, `{"namespace":"default","restore":{"to":"`+then+`","selector":"app=x","prune":true}}`, false, nil)
	require.Contains(t, done.Status.Changes[0].Left, "it owns configmaps/child")
	s.must(t, 200, request{method: "GET", path: secrets + "/later"})
}

// TestPlanMergesBySchema: the fields of a plan are the fields of server-side apply. So other users may change other
// items of a keyed list or of a set, while an atomic list is one field.
func TestPlanMergesBySchema(t *testing.T) {
	s := newServer(t)
	crd := definition("things", "example.com", "v1")
	crd.Annotations, crd.UID, crd.Spec.Scope = nil, "", apiextensionsv1.NamespaceScoped
	open := true
	texts := &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{Type: "string"}}
	pairs := &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Required: []string{"host", "port"},
		Properties: map[string]apiextensionsv1.JSONSchemaProps{"host": {Type: "string"}, "port": {Type: "integer"}, "weight": {Type: "integer"}}}}
	keyed, set := "map", "set"
	crd.Spec.Versions[0].Schema = &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
		Type: "object", XPreserveUnknownFields: &open, Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {Type: "object",
			Properties: map[string]apiextensionsv1.JSONSchemaProps{
				"backends": {Type: "array", Items: pairs, XListType: &keyed, XListMapKeys: []string{"host", "port"}},
				"tags":     {Type: "array", Items: texts, XListType: &set},
				"names":    {Type: "array", Items: texts},
			}}}}}
	body, err := json.Marshal(crd)
	require.NoError(t, err)
	s.must(t, 201, request{method: "POST", path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body: string(body)})
	const things, services = "/apis/example.com/v1/namespaces/default/things", "/api/v1/namespaces/default/services"
	for name, c := range map[string]struct {
		path, resource         string
		before, one, two, want string // JSON of spec, or of status
		field                  string // "spec" if empty
		conflict               string
	}{
		"ports of one number": {path: services, resource: "services",
			before: `{"clusterIP":"None","ports":[{"name":"t","port":53,"protocol":"TCP"},{"name":"u","port":53,"protocol":"UDP"}]}`,
			one:    `{"ports":[{"name":"t","port":53,"protocol":"TCP","targetPort":1},{"name":"u","port":53,"protocol":"UDP"}]}`,
			two:    `{"ports":[{"name":"t","port":53,"protocol":"TCP","targetPort":1},{"name":"u","port":53,"protocol":"UDP","targetPort":2}]}`,
			want:   `{"ports":[{"name":"t","port":53,"protocol":"TCP","targetPort":53},{"name":"u","port":53,"protocol":"UDP","targetPort":2}]}`},
		"items with two keys": {path: things, resource: "things",
			before: `{"backends":[{"host":"a","port":1,"weight":1},{"host":"a","port":2,"weight":1}]}`,
			one:    `{"backends":[{"host":"a","port":1,"weight":2},{"host":"a","port":2,"weight":1}]}`,
			two:    `{"backends":[{"host":"b","port":1},{"host":"a","port":1,"weight":2},{"host":"a","port":2,"weight":3}]}`,
			want:   `{"backends":[{"host":"b","port":1},{"host":"a","port":1,"weight":1},{"host":"a","port":2,"weight":3}]}`},
		"a set": {path: things, resource: "things",
			before: `{"tags":["a","b"]}`, one: `{"tags":["b"]}`, two: `{"tags":["b","c"]}`, want: `{"tags":["a","b","c"]}`},
		"an atomic list": {path: things, resource: "things",
			before: `{"names":["a","b"]}`, one: `{"names":["b"]}`, two: `{"names":["b","c"]}`, want: `{"names":["b","c"]}`,
			conflict: "spec.names is not what revision"},
		"a status that is a field as any other": {path: things, resource: "things", field: "status",
			before: `{"phase":"old"}`, one: `{"phase":"new"}`, two: `{"phase":"new","x":1}`, want: `{"phase":"old","x":1}`},
	} {
		t.Run(name, func(t *testing.T) {
			field := cmp.Or(c.field, "spec")
			object := strings.ReplaceAll(name, " ", "-")
			patch := func(manager, value string) string {
				a := s.must(t, 200, request{method: "PATCH", path: c.path + "/" + object + "?fieldManager=" + manager,
					body: `{"` + field + `":` + value + `}`, contentType: "application/merge-patch+json"})
				return fieldOf(a.object(t), "metadata.resourceVersion").(string)
			}
			kind := map[string]string{things: `"apiVersion":"example.com/v1","kind":"One",`}[c.path]
			s.must(t, 201, request{method: "POST", path: c.path, body: `{` + kind + `"metadata":{"name":"` + object + `"},"` + field + `":` + c.before + `}`})
			revision := patch("one", c.one)
			if c.field == "status" { // the last change is undone, without naming its revision
				revision = ""
			} else {
				patch("two", c.two)
			}
			done := s.planned(t, `{"namespace":"default","undo":{"object":"`+c.resource+"/"+object+`","revision":"`+revision+`"}}`, false, nil)
			require.Len(t, done.Status.Changes, 1)
			require.Contains(t, done.Status.Changes[0].Left, c.conflict)
			if c.field == "status" {
				c.want = c.before
			}
			is := s.must(t, 200, request{method: "GET", path: c.path + "/" + object}).object(t)
			var want map[string]any
			require.NoError(t, json.Unmarshal([]byte(c.want), &want))
			for part, value := range want {
				require.Equal(t, value, fieldOf(is, field+"."+part))
			}
		})
	}
}

// TestRestoreOfOwnersElsewhere: a reference to an owner that is not restored comes back with the owner's present uid.
// If an object was being deleted at the moment, another object of its name that was made afterwards counts as later
// than the moment.
func TestRestoreOfOwnersElsewhere(t *testing.T) {
	s := newServer(t)
	const roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
	role := `{"metadata":{"name":"owner"},"rules":[]}`
	uid := fieldOf(s.must(t, 201, request{method: "POST", path: roles, body: role}).object(t), "metadata.uid")
	s.must(t, 201, request{method: "POST", path: configMaps, body: fmt.Sprintf(`{"metadata":{"name":"child","ownerReferences":[`+
		`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","name":"owner","uid":"%v"}]}}`, uid)})
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"going","finalizers":["example.com/held"]}}`})
	s.must(t, 200, request{method: "DELETE", path: configMaps + "/going"})
	then := s.newestOf(t, "going")
	for name, fields := range map[string]string{"going": `"finalizers":null`, "child": `"ownerReferences":null`} {
		s.must(t, 200, request{method: "PATCH", path: configMaps + "/" + name, body: `{"metadata":{` + fields + `}}`, contentType: "application/merge-patch+json"})
	}
	s.must(t, 201, request{method: "POST", path: configMaps, body: configMap("going", "another")})
	s.must(t, 200, request{method: "DELETE", path: roles + "/owner"})
	uid = fieldOf(s.must(t, 201, request{method: "POST", path: roles, body: role}).object(t), "metadata.uid")

	restore := `{"namespace":"default","restore":{"to":"` + then + `"}}`
	done := s.planned(t, restore, false, nil)
	require.Len(t, done.Status.Changes, 1)
	require.EqualValues(t, 1, done.Status.Later)
	is := unstructured.Unstructured{Object: s.must(t, 200, request{method: "GET", path: configMaps + "/child"}).object(t)}
	require.Len(t, is.GetOwnerReferences(), 1)
	require.EqualValues(t, uid, is.GetOwnerReferences()[0].UID)
	require.Empty(t, s.planned(t, restore, false, nil).Status.Changes)
	s.planned(t, strings.Replace(restore, `"}}`, `","prune":true}}`, 1), false, nil)
	require.Empty(t, s.newestOf(t, "going"))
}

// TestRestoreBeforeTheCollector: a restore makes an owner again. An unchanged object that names the old owner then
// names the new owner.
func TestRestoreBeforeTheCollector(t *testing.T) {
	const secrets = "/api/v1/namespaces/default/secrets"
	s := newServer(t)
	owner := s.must(t, 201, request{method: "POST", path: configMaps, body: configMap("owner", "1")}).object(t)
	owned := func(name, owner string, uid any) string {
		return fmt.Sprintf(`{"metadata":{"name":%q,"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":%q,"uid":"%v"}]}}`, name, owner, uid)
	}
	child := s.must(t, 201, request{method: "POST", path: secrets, body: owned("child", "owner", fieldOf(owner, "metadata.uid"))}).object(t)
	s.must(t, 201, request{method: "POST", path: secrets, body: owned("grandchild", "child", fieldOf(child, "metadata.uid"))})
	then := fmt.Sprint(s.head(t))
	s.must(t, 200, request{method: "DELETE", path: configMaps + "/owner", body: `{"propagationPolicy":"Background"}`})

	restore := `{"namespace":"default","restore":{"to":"` + then + `"}}`
	done := s.planned(t, restore, false, nil)
	require.Len(t, done.Status.Changes, 2)
	uid := fieldOf(s.must(t, 200, request{method: "GET", path: configMaps + "/owner"}).object(t), "metadata.uid")
	is := unstructured.Unstructured{Object: s.must(t, 200, request{method: "GET", path: secrets + "/child"}).object(t)}
	require.EqualValues(t, uid, is.GetOwnerReferences()[0].UID)
	require.Empty(t, s.planned(t, restore, false, nil).Status.Changes)
}

// TestPlanOfWhatTheServerKeeps: fields that the API sets itself, such as counters and names, do not count as changes.
// Nor do references to owners that are not made again. An object that is made again gets such fields anew.
func TestPlanOfWhatTheServerKeeps(t *testing.T) {
	const workloads, jobs = "/apis/apps/v1/namespaces/default/daemonsets", "/apis/batch/v1/namespaces/default/jobs"
	const pod = `"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}`
	patch := func(s *Server, path, body string) string {
		a := s.must(t, 200, request{method: "PATCH", path: path, body: body, contentType: "application/merge-patch+json"})
		return fieldOf(a.object(t), "metadata.resourceVersion").(string)
	}
	get := func(s *Server, path string) map[string]any {
		return s.must(t, 200, request{method: "GET", path: path}).object(t)
	}
	t.Run("the templates of a DaemonSet", func(t *testing.T) {
		s := newServer(t)
		s.must(t, 201, request{method: "POST", path: workloads, body: `{"metadata":{"name":"x"},"spec":{"selector":{"matchLabels":{"a":"b"}},
			"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`})
		template := func(field, value string) string {
			return patch(s, workloads+"/x", fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{%q:%q}}}}}`, field, value))
		}
		then := template("first", "1")
		template("first", "2")
		changed := template("first", "3")
		template("second", "1")
		done := s.planned(t, `{"namespace":"default","undo":{"object":"daemonsets.apps/x","revision":"`+changed+`"}}`, false, nil)
		require.Empty(t, done.Status.Changes[0].Left)
		require.Equal(t, map[string]any{"first": "2", "second": "1"}, fieldOf(get(s, workloads+"/x"), "spec.template.metadata.annotations"))
		restore := `{"namespace":"default","restore":{"to":"` + then + `"}}`
		require.Len(t, s.planned(t, restore, false, nil).Status.Changes, 1)
		require.Empty(t, s.planned(t, restore, true, nil).Status.Changes)
	})
	t.Run("the uid of a Job", func(t *testing.T) {
		s := newServer(t)
		s.must(t, 201, request{method: "POST", path: jobs, body: `{"metadata":{"name":"x"},"spec":{"template":{` + pod + `}}`})
		patch(s, jobs+"/x", `{"metadata":{"labels":{"l":"1"}}}`)
		was := get(s, jobs+"/x")
		s.must(t, 200, request{method: "DELETE", path: jobs + "/x?propagationPolicy=Background"})
		s.planned(t, `{"namespace":"default","undelete":{"object":"jobs.batch/x"}}`, false, nil)
		is := get(s, jobs+"/x")
		uid := fieldOf(is, "metadata.uid")
		require.NotEqual(t, fieldOf(was, "metadata.uid"), uid)
		want := fieldOf(was, "metadata.labels").(map[string]any)
		want["controller-uid"], want["batch.kubernetes.io/controller-uid"] = uid, uid
		require.Equal(t, want, fieldOf(is, "metadata.labels"))
	})
	t.Run("a Job goes with its Pods", func(t *testing.T) {
		s := newServer(t)
		a := s.must(t, 201, request{method: "POST", path: jobs, body: `{"metadata":{"name":"x"},"spec":{"template":{` + pod + `}}`})
		s.planned(t, fmt.Sprintf(`{"namespace":"default","undo":{"object":"jobs.batch/x","revision":"%v"}}`, fieldOf(a.object(t), "metadata.resourceVersion")), false, nil)
		s.must(t, 404, request{method: "GET", path: jobs + "/x"}) // the Job does not wait for its Pods to be orphaned
	})
	t.Run("the address of a Service that stays", func(t *testing.T) {
		s := newServer(t, func(c *Config) { c.Services = services.Ranges{CIDR: "10.0.0.0/24"} })
		require.NoError(t, s.Bootstrap(t.Context()))
		const path = "/api/v1/namespaces/default/services"
		since := s.head(t)
		a := s.must(t, 201, request{method: "POST", path: path, body: `{"metadata":{"name":"x"},"spec":{"ports":[{"port":80}]}}`}).object(t)
		address := fmt.Sprint("/apis/networking.k8s.io/v1/ipaddresses/", fieldOf(a, "spec.clusterIP"))
		s.must(t, 200, request{method: "GET", path: address})
		body := strings.NewReplacer(`"sessionAffinity":"None"`, `"sessionAffinity":"ClientIP"`).Replace(encoded(a))
		s.must(t, 200, request{method: "PUT", path: path + "/x", body: body, loopback: true}) // another user
		done := s.planned(t, fmt.Sprintf(`{"undo":{"user":"system:admin","since":"%d"}}`, since), false, nil)
		require.Len(t, done.Status.Changes, 1)
		require.Contains(t, done.Status.Changes[0].Left, "it was changed since")
		s.must(t, 200, request{method: "GET", path: address})
	})
	t.Run("a status like other fields", func(t *testing.T) {
		s := newServer(t)
		s.must(t, 201, request{method: "POST", path: definitionPath, body: modelDefinitions[2]})
		const path = "/apis/example.com/v1/globals"
		s.must(t, 201, request{method: "POST", path: path, body: `{"apiVersion":"example.com/v1","kind":"Global","metadata":{"name":"x"},"status":{"a":1}}`})
		patch(s, path+"/x", `{"status":{"a":2}}`)
		s.planned(t, `{"undo":{"object":"globals.example.com/x"}}`, false, nil)
		require.EqualValues(t, 1, fieldOf(get(s, path+"/x"), "status.a"))
	})
	t.Run("fields of nobody", func(t *testing.T) {
		s := newServer(t)
		s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`})
		patch(s, configMaps+"/x", `{"data":{"a":"1"}}`)
		require.Nil(t, fieldOf(get(s, configMaps+"/x"), "metadata.managedFields"))
		s.must(t, 200, request{method: "DELETE", path: configMaps + "/x"})
		s.planned(t, `{"namespace":"default","undelete":{"object":"configmaps/x"}}`, false, nil)
		require.Nil(t, fieldOf(get(s, configMaps+"/x"), "metadata.managedFields"))
	})
	t.Run("an owner on its way out", func(t *testing.T) {
		s := newServer(t)
		a := s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"owner","finalizers":["example.com/hold"]}}`})
		s.must(t, 201, request{method: "POST", path: configMaps, body: fmt.Sprintf(`{"metadata":{"name":"child","ownerReferences":[
			{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":"%v"}]}}`, fieldOf(a.object(t), "metadata.uid"))})
		s.must(t, 200, request{method: "DELETE", path: configMaps + "/owner"})
		then := s.newestOf(t, "owner")
		patch(s, configMaps+"/owner", `{"metadata":{"finalizers":null}}`)
		s.must(t, 200, request{method: "DELETE", path: configMaps + "/child"})
		restore := `{"namespace":"default","restore":{"to":"` + then + `"}}`
		require.Len(t, s.planned(t, restore, false, nil).Status.Changes, 1)
		require.Empty(t, s.planned(t, restore, true, nil).Status.Changes)
	})
}

// TestRestoreOfWhatHasMovedOn: a claim that is made again is bound to its volume again, unless the volume now has
// another claim. A Pod or Job that has finished since the moment does not run again.
func TestRestoreOfWhatHasMovedOn(t *testing.T) {
	s := newServer(t)
	const claims, pods, volume = "/api/v1/namespaces/default/persistentvolumeclaims", "/api/v1/namespaces/default/pods", "/api/v1/persistentvolumes/v"
	claim := func(name string) string {
		return `{"metadata":{"name":"` + name + `"},"spec":{"accessModes":["ReadWriteOnce"],"volumeName":"v","storageClassName":"",` +
			`"resources":{"requests":{"storage":"1Gi"}}}}`
	}
	uidOf := func(path string) string {
		return fmt.Sprint(fieldOf(s.must(t, 200, request{method: "GET", path: path}).object(t), "metadata.uid"))
	}
	boundTo := func() string {
		return fmt.Sprint(fieldOf(s.must(t, 200, request{method: "GET", path: volume}).object(t), "spec.claimRef.uid"))
	}
	bind := func(name string) {
		s.must(t, 200, request{method: "PATCH", path: volume, contentType: "application/merge-patch+json",
			body: `{"spec":{"claimRef":{"namespace":"default","name":"` + name + `","uid":"` + uidOf(claims+"/"+name) + `"}}}`})
	}
	s.must(t, 201, request{method: "POST", path: "/api/v1/persistentvolumes", body: `{"metadata":{"name":"v"},"spec":{"capacity":{"storage":"1Gi"},` +
		`"accessModes":["ReadWriteOnce"],"hostPath":{"path":"/x"}}}`})
	s.must(t, 201, request{method: "POST", path: claims, body: claim("c")})
	bind("c")
	s.must(t, 201, request{method: "POST", path: pods, body: `{"metadata":{"name":"once"},"spec":{"restartPolicy":"Never","nodeName":"n",` +
		`"containers":[{"name":"c","image":"i"}]}}`})
	a := s.must(t, 201, request{method: "POST", path: configMaps, body: configMap("last", "1")})
	then := fmt.Sprint(fieldOf(a.object(t), "metadata.resourceVersion"))
	s.must(t, 200, request{method: "PATCH", path: pods + "/once/status", contentType: "application/merge-patch+json", body: `{"status":{"phase":"Succeeded"}}`})
	gone := func(path string) {
		s.must(t, 200, request{method: "DELETE", path: path, body: `{"gracePeriodSeconds":0}`})
		a := request{method: "PATCH", path: path, contentType: "application/merge-patch+json", body: `{"metadata":{"finalizers":null}}`}.do(t, s)
		require.Contains(t, []int{200, 404}, a.code)
	}
	gone(pods + "/once")
	for range 2 {
		gone(claims + "/c")
		done := s.planned(t, `{"namespace":"default","restore":{"to":"`+then+`"}}`, false, nil)
		require.Len(t, done.Status.Changes, 2)
		require.Equal(t, uidOf(claims+"/c"), boundTo())
		for _, c := range done.Status.Changes {
			require.Equal(t, c.Object.Resource == "pods", strings.Contains(c.Left, "would run again"), c)
		}
		s.must(t, 404, request{method: "GET", path: pods + "/once"})
	}
	// A Pod that a restore has made continues the work. When that Pod has finished, neither Pod runs again.
	begun := s.must(t, 201, request{method: "POST", path: pods, body: `{"metadata":{"name":"again"},"spec":{"restartPolicy":"Never","nodeName":"n",` +
		`"containers":[{"name":"c","image":"i"}]}}`})
	restoreAgain := `{"namespace":"default","restore":{"to":"` + fmt.Sprint(fieldOf(begun.object(t), "metadata.resourceVersion")) + `"}}`
	gone(pods + "/again")
	s.planned(t, restoreAgain, false, nil)
	s.must(t, 200, request{method: "PATCH", path: pods + "/again/status", contentType: "application/merge-patch+json", body: `{"status":{"phase":"Succeeded"}}`})
	gone(pods + "/again")
	s.planned(t, restoreAgain, false, nil)
	s.must(t, 404, request{method: "GET", path: pods + "/again"})

	// Another Pod may have finished the Job, so a restore leaves the Job's Pods to the Job.
	of := s.must(t, 201, request{method: "POST", path: pods, body: `{"metadata":{"name":"of-job","ownerReferences":[{"apiVersion":"batch/v1","kind":"Job","name":"j","uid":"u","controller":true}]},` +
		`"spec":{"restartPolicy":"Never","nodeName":"n","containers":[{"name":"c","image":"i"}]}}`})
	gone(pods + "/of-job")
	left := s.planned(t, `{"namespace":"default","restore":{"to":"`+fmt.Sprint(fieldOf(of.object(t), "metadata.resourceVersion"))+`"}}`, false, nil)
	require.True(t, slices.ContainsFunc(left.Status.Changes, func(c history.PlanChange) bool {
		return c.Object.Name == "of-job" && c.Left == "its Job makes its Pods"
	}), left)

	// A namespace that was being deleted is not the namespace of the same name that was made later.
	s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"going"}}`})
	s.must(t, 200, request{method: "DELETE", path: "/api/v1/namespaces/going"})
	going := s.must(t, 200, request{method: "GET", path: "/api/v1/namespaces/going"})
	a = s.must(t, 409, request{method: "POST", path: historyPath + "/plans", body: `{"apiVersion":"history.logplane.dev/v1","kind":"Plan","spec":{"namespace":"going",` +
		`"restore":{"to":"` + fmt.Sprint(fieldOf(going.object(t), "metadata.resourceVersion")) + `","prune":true}}}`})
	require.Contains(t, a.body, "was being deleted at that moment")
	gone(claims + "/c")
	s.must(t, 201, request{method: "POST", path: claims, body: claim("other")})
	bind("other")
	done := s.planned(t, `{"namespace":"default","undelete":{"object":"persistentvolumeclaims/c"}}`, false, nil)
	require.Contains(t, strings.Join(done.Status.Changes[0].Notes, "; "), "is bound to claim 'other'")
	require.Equal(t, uidOf(claims+"/other"), boundTo())

	// A claim does not get a volume that belonged to an earlier claim of the same name.
	s.must(t, 200, mergePatch(volume, `{"spec":{"claimRef":{"namespace":"default","name":"theirs","uid":"of-another"}}}`))
	s.must(t, 201, request{method: "POST", path: claims, body: claim("theirs")})
	gone(claims + "/theirs")
	done = s.planned(t, `{"namespace":"default","undelete":{"object":"persistentvolumeclaims/theirs"}}`, false, nil)
	require.Contains(t, strings.Join(done.Status.Changes[0].Notes, "; "), "this claim never was the one to which it is bound")
	require.Equal(t, "of-another", boundTo())
}

// TestRestoreOfAKindThatIsStoredElsewhere: if a definition's stored version has changed since the moment, an object
// that is gone is made again with all fields that both versions have, and the plan says so. An object that has changed
// since is left alone, because a field that only the new version has would be lost.
func TestRestoreOfAKindThatIsStoredElsewhere(t *testing.T) {
	s := newServer(t)
	const definition, v1, v2 = crdsPath + "/things.example.com", "/apis/example.com/v1/namespaces/default/things", "/apis/example.com/v2/namespaces/default/things"
	version := func(name, field string, stored bool) string {
		return fmt.Sprintf(`{"name":%q,"served":true,"storage":%t,"schema":{"openAPIV3Schema":{"type":"object","properties":{"both":{"type":"integer"},%q:{"type":"integer"}}}}}`,
			name, stored, field)
	}
	s.must(t, 201, request{method: "POST", path: crdsPath, body: `{"metadata":{"name":"things.example.com"},"spec":{"group":"example.com","scope":"Namespaced",
		"names":{"plural":"things","kind":"Thing"},"versions":[` + version("v1", "old", true) + `,` + version("v2", "new", false) + `]}}`})
	for _, name := range []string{"gone", "changed", "added", "same"} {
		s.must(t, 201, request{method: "POST", path: v1, body: `{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":"` + name + `"},"both":1,"old":2}`})
	}
	then := fmt.Sprint(fieldOf(s.must(t, 200, request{method: "GET", path: v1}).object(t), "metadata.resourceVersion"))
	earlier := fmt.Sprint(fieldOf(s.must(t, 200, mergePatch(v1+"/changed", `{"both":2}`)).object(t), "metadata.resourceVersion"))
	s.must(t, 200, mergePatch(definition, `{"spec":{"versions":[`+version("v1", "old", false)+`,`+version("v2", "new", true)+`]}}`))
	s.must(t, 200, request{method: "DELETE", path: v1 + "/gone"})
	s.must(t, 200, mergePatch(v2+"/changed", `{"both":3,"new":4}`))
	s.must(t, 200, mergePatch(v2+"/added", `{"new":4}`))
	done := s.planned(t, `{"namespace":"default","restore":{"to":"`+then+`"}}`, false, nil)
	require.Empty(t, done.Status.Failures)
	require.Len(t, done.Status.Changes, 3)
	for _, c := range done.Status.Changes {
		require.Equal(t, c.Object.Name != "gone", strings.Contains(c.Left, "stored in another version"), c)
		require.Equal(t, c.Object.Name == "gone", strings.Contains(strings.Join(c.Notes, ""), "stored in version v1"), c)
	}
	for name, want := range map[string]int{"gone": 1, "same": 1, "changed": 3} {
		require.EqualValues(t, want, fieldOf(s.must(t, 200, request{method: "GET", path: v1 + "/" + name}).object(t), "both"), name)
	}
	undone := s.planned(t, `{"namespace":"default","undo":{"object":"things.example.com/changed","revision":"`+earlier+`"}}`, false, nil)
	require.Contains(t, undone.Status.Changes[0].Left, "it was stored as v1 and then as v2")
	require.EqualValues(t, 4, fieldOf(s.must(t, 200, request{method: "GET", path: v2 + "/changed"}).object(t), "new"))
}

// TestUndoKnowsItsOwn: the changes of a client that uses an undo's user agent are undone like any other change.
func TestUndoKnowsItsOwn(t *testing.T) {
	s := newServer(t)
	s.must(t, 201, request{method: "POST", path: configMaps, body: configMap("a", "1")})
	since := s.newestOf(t, "a")
	change := mergePatch(configMaps+"/a?fieldManager=mallory", `{"data":{"v":"2"}}`).with("User-Agent", "logplane-undo")
	s.must(t, 200, change)
	undo := `{"namespace":"default","undo":{"manager":"mallory","since":"` + since + `"}}`
	require.Len(t, s.planned(t, undo, false, nil).Status.Changes, 1)
	require.NotContains(t, s.must(t, 200, request{method: "GET", path: configMaps + "/a"}).body, `"v":"2"`)
}

// TestUndoOfAToken: a token that was removed from a Secret does not become valid again by an undo.
func TestUndoOfAToken(t *testing.T) {
	const secrets = "/api/v1/namespaces/default/secrets"
	s, _, _ := twoServers(t, withAccounts(t, tokens.Config{Issuers: []string{issuer}, SigningKeyFile: writeKey(t, "key")}))
	require.NoError(t, s.Bootstrap(t.Context()))
	s.must(t, 201, request{method: "POST", path: accounts, body: `{"metadata":{"name":"builder"}}`}.as("root"))
	s.must(t, 201, request{method: "POST", path: secrets, body: secretOf("s", "builder", "")}.as("root"))
	secret := func() map[string]any {
		return s.must(t, 200, request{method: "GET", path: secrets + "/s"}.as("root")).object(t)
	}
	old := fieldOf(secret(), "data.token")
	changed := s.must(t, 200, mergePatch(secrets+"/s", `{"data":{"token":null},"metadata":{"labels":{"a":"b"}}}`).as("root")).object(t)
	is := fieldOf(secret(), "data.token")
	require.NotEqual(t, old, is)
	s.must(t, 201, request{method: "POST", path: historyPath + "/plans", body: `{"apiVersion":"history.logplane.dev/v1","kind":"Plan","spec":` +
		`{"namespace":"default","undo":{"object":"secrets/s","revision":"` + fieldOf(changed, "metadata.resourceVersion").(string) + `"}}}`}.as("root"))
	require.Nil(t, fieldOf(secret(), "metadata.labels"))
	require.Equal(t, is, fieldOf(secret(), "data.token"))
}
