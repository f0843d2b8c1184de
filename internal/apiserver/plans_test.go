package apiserver

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/logplane/logplane/internal/apiserver/history"
)

// planned sends a plan. Dry says that nothing may be written, and agreed is what an answer before it said.
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

// newestOf is the newest revision of a ConfigMap, 0 if there is none.
func (s *Server) newestOf(t *testing.T, name string) string {
	t.Helper()
	a := request{method: "GET", path: configMaps + "/" + name}.do(t, s)
	if a.code == 404 {
		return ""
	}
	return fieldOf(a.object(t), "metadata.resourceVersion").(string)
}

// TestPlan: a dry run writes nothing and says what would change; what is done is done in one append; and what has come
// since the dry run is left alone.
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
	patch("b", "3") // another change of those that are taken back
	patch("d", "2") // an object of which the plan said nothing
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
}

// TestPlanWithARefusal: what is refused is named, and the rest is written.
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

// TestPlanWritesAsItsUser: what a plan writes is written by who sends it, and what is made again belongs to the
// managers who had it.
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
