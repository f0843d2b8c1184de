package apiserver

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/apiserver/services"
	"github.com/logplane/logplane/internal/kubestore/kubestoretest"
	"github.com/logplane/logplane/projection"
)

// recorded is a request and its answer at a revision.
type recorded struct {
	path, accept string
	code         int
	body         string
}

// age matches the only column of a Table that depends on when it is requested.
var age = regexp.MustCompile(`"([0-9]+(d|h|m|s|ms))+"|<invalid>`)

// randomPast writes objects of some kinds, and changes and deletes the definition of one of the kinds.
type randomPast struct {
	*rand.Rand
	t *testing.T
	s *Server
	n int
}

const (
	configMapsPath = "/api/v1/namespaces/default/configmaps"
	widgetsPath    = "/apis/example.com/v1/namespaces/default/widgets"
	definitionPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	deploymentPath = "/apis/apps/v1/namespaces/default/deployments"
)

// merging is a request that is a merge patch if its method is PATCH.
func merging(method, path, body string) request {
	q := request{method: method, path: path, body: body}
	if method == "PATCH" {
		q.contentType = "application/merge-patch+json"
	}
	return q
}

func (r *randomPast) send(method, path, body string) {
	a := merging(method, path, body).do(r.t, r.s)
	require.Contains(r.t, []int{200, 201, 403, 404, 409, 422}, a.code, a.body)
}

func pastDefinition(color string) string {
	return `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.com"},"spec":{
		"group":"example.com","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget"},
		"versions":[{"name":"v1","served":true,"storage":true,"additionalPrinterColumns":[{"name":"` + color + `","type":"string","jsonPath":".spec.` + color + `"}],
		"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"` + color + `":{"type":"string","default":"x"}}}}}}}]}}`
}

func (r *randomPast) step() {
	r.n++
	name := fmt.Sprint("n", r.IntN(6))
	color := []string{"color", "hue", "tint"}[r.IntN(3)]
	switch r.IntN(24) {
	default:
		r.other(name)
	case 0, 1, 2:
		r.send("POST", configMapsPath, fmt.Sprintf(`{"metadata":{"name":"%s","labels":{"odd":"%d"}},"data":{"n":"%d"}}`, name, r.n%2, r.n))
	case 3, 4:
		r.send("PATCH", configMapsPath+"/"+name, fmt.Sprintf(`{"metadata":{"labels":{"odd":"%d"}},"data":{"n":"%d"}}`, r.n%2, r.n))
	case 5:
		r.send("DELETE", configMapsPath+"/"+name, "")
	case 6, 7:
		r.send("POST", widgetsPath, fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"%s"},"spec":{"%s":"%d"}}`, name, color, r.n))
	case 8:
		r.send("DELETE", widgetsPath+"/"+name, "")
	case 9, 10:
		r.send("POST", deploymentPath, fmt.Sprintf(`{"metadata":{"name":"%s"},"spec":{"replicas":%d,"selector":{"matchLabels":{"a":"b"}},
			"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`, name, r.n))
	case 11:
		r.send("PATCH", deploymentPath+"/"+name+"/scale", fmt.Sprintf(`{"spec":{"replicas":%d}}`, r.n))
	case 12:
		r.send("POST", definitionPath, pastDefinition(color))
	case 14:
		role := "/apis/rbac.authorization.k8s.io/v1/clusterroles"
		if r.IntN(2) == 0 {
			r.send("POST", role, fmt.Sprintf(`{"metadata":{"name":"part%d","labels":{"part":"yes"}},"rules":[{"apiGroups":[""],"resources":["r%d"],"verbs":["get"]}]}`, r.IntN(3), r.n))
		} else {
			r.send("DELETE", fmt.Sprintf("%s/part%d", role, r.IntN(3)), "")
		}
	case 13:
		if r.IntN(3) > 0 {
			version := fmt.Sprintf(`{"spec":%s}`, pastDefinition(color)[strings.Index(pastDefinition(color), `"spec":`)+7:len(pastDefinition(color))-1])
			r.send("PATCH", definitionPath+"/widgets.example.com", version)
		} else {
			r.send("DELETE", definitionPath+"/widgets.example.com", "")
			r.send("PATCH", definitionPath+"/widgets.example.com", `{"metadata":{"finalizers":null}}`)
		}
	}
}

const table = "application/json;as=Table;g=meta.k8s.io;v=v1"

// otherKinds are kinds whose objects are created, relabelled and deleted.
var otherKinds = []struct{ path, body string }{
	{"/api/v1/namespaces/default/secrets", `"stringData":{"a":"b"}`},
	{"/api/v1/namespaces/default/services", `"spec":{"ports":[{"port":80}]}`},
	{"/api/v1/namespaces/default/pods", `"spec":{"containers":[{"name":"c","image":"i"}]}`},
	{"/api/v1/namespaces/default/persistentvolumeclaims", `"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}`},
	{"/api/v1/namespaces/default/serviceaccounts", `"secrets":[]`},
	{"/api/v1/namespaces/default/limitranges", `"spec":{"limits":[]}`},
	{"/api/v1/nodes", `"spec":{"podCIDR":"10.0.0.0/24"}`},
	{"/apis/apps/v1/namespaces/default/statefulsets", `"spec":{"serviceName":"s","selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}`},
	{"/apis/batch/v1/namespaces/default/cronjobs", `"spec":{"schedule":"* * * * *","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}}`},
	{"/apis/coordination.k8s.io/v1/namespaces/default/leases", `"spec":{"holderIdentity":"h"}`},
	{"/apis/networking.k8s.io/v1/namespaces/default/networkpolicies", `"spec":{"podSelector":{}}`},
	{"/apis/policy/v1/namespaces/default/poddisruptionbudgets", `"spec":{"minAvailable":1}`},
	{"/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles", `"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]`},
	{"/apis/rbac.authorization.k8s.io/v1/clusterroles", `"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"rbac.authorization.k8s.io/aggregate-to-view":"true"}},{"matchLabels":{"part":"yes"}}]}`},
	{"/apis/scheduling.k8s.io/v1/priorityclasses", `"value":7`},
	{"/apis/storage.k8s.io/v1/storageclasses", `"provisioner":"p"`},
	{"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", `"addressType":"IPv4","endpoints":[]`},
	{"/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", `"spec":{"maxReplicas":3,"scaleTargetRef":{"kind":"Deployment","name":"n1","apiVersion":"apps/v1"}}`},
}

// other writes an object of one of the other kinds.
func (r *randomPast) other(name string) {
	kind := otherKinds[r.IntN(len(otherKinds))]
	switch r.IntN(4) {
	case 0, 1:
		r.send("POST", kind.path, `{"metadata":{"name":"`+name+`"},`+kind.body+`}`)
	case 2:
		r.send("PATCH", kind.path+"/"+name, fmt.Sprintf(`{"metadata":{"labels":{"n":"%d"}}}`, r.n))
	case 3:
		r.send("DELETE", kind.path+"/"+name+"?gracePeriodSeconds=0", "")
	}
}

// questions are requests that a client may send.
func (r *randomPast) questions() []recorded {
	name := fmt.Sprint("n", r.n%6)
	other := otherKinds[r.n%len(otherKinds)].path
	return []recorded{
		{path: configMapsPath}, {path: configMapsPath, accept: table}, {path: configMapsPath + "?labelSelector=odd%3D1"},
		{path: configMapsPath + "?limit=2"}, {path: configMapsPath + "/" + name}, {path: configMapsPath, accept: "application/vnd.kubernetes.protobuf"},
		{path: configMapsPath + "?fieldSelector=metadata.name%3D" + name},
		{path: widgetsPath}, {path: widgetsPath, accept: table}, {path: widgetsPath + "/" + name}, {path: widgetsPath, accept: "application/cbor"},
		{path: deploymentPath, accept: "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}, {path: deploymentPath + "/" + name + "/scale"},
		{path: definitionPath}, {path: "/apis"}, {path: "/apis/example.com/v1"}, {path: "/apis", accept: "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"},
		{path: "/openapi/v3/apis/example.com/v1"}, {path: "/openapi/v3"}, {path: "/openapi/v2"}, {path: "/api/v1/namespaces"},
		{path: other}, {path: other + "/" + name}, {path: other, accept: table}, {path: other + "?limit=1"}, {path: other, accept: "application/yaml"},
	}
}

// record sends some of the questions. The answers belong to one revision only if nobody writes meanwhile.
func (r *randomPast) record() (all []recorded) {
	for _, q := range append(r.questions()[:1], r.some()...) {
		q.code, q.body = r.ask("", q)
		all = append(all, q)
	}
	return all
}

// some returns eight questions at a time, in turn.
func (r *randomPast) some() []recorded {
	all := r.questions()
	start := r.n * 8 % len(all)
	return append(all[start:], all[:start]...)[:8]
}

func (r *randomPast) ask(prefix string, q recorded) (int, string) {
	a := request{method: "GET", path: prefix + q.path, accept: q.accept}.do(r.t, r.s)
	if q.accept == table {
		a.body = age.ReplaceAllString(a.body, "AGE")
	}
	if strings.HasPrefix(a.header.Get("Content-Type"), "application/cbor") { // the encoder of CBOR does not sort keys
		var decoded any
		require.NoError(r.t, direct.Unmarshal([]byte(a.body), &decoded))
		a.body = fmt.Sprint(decoded)
	}
	if len(a.body) > 1<<15 { // thousands of answers are kept
		a.body = fmt.Sprintf("%x", sha256.Sum256([]byte(a.body)))
	}
	return a.code, a.body
}

// A client that repeats a request later under '/at' gets the same answer, byte for byte. The client may name the moment
// by revision or by time. The answer may come from the newest view, from checkpoints or from archived events, and uses
// definitions as they were at the moment.
func TestPastIsWhatWasAnswered(t *testing.T) {
	for _, name := range []string{"kept", "checkpoints", "archive"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := projection.Config{InlineBytes: 2000, History: time.Hour}
			switch name {
			case "checkpoints":
				config.Checkpoints = []projection.CheckpointRule{{Every: time.Millisecond, Keep: time.Hour}}
			case "archive":
				config.Checkpoints = []projection.CheckpointRule{{Every: 400 * time.Millisecond, Keep: time.Hour}}
			}
			cell := kubestoretest.Cell(t, config)
			p := cell.Projection
			s := newServer(t, func(c *Config) { c.Services, c.Cell = services.Ranges{CIDR: "10.0.0.0/16"}, cell })
			require.NoError(t, s.Bootstrap(t.Context()))
			r := &randomPast{Rand: rand.New(rand.NewPCG(7, 7)), t: t, s: s}
			answers := map[projection.Revision][]recorded{}
			pages := map[projection.Revision]string{}
			times := map[projection.Revision]time.Time{}
			steps := 300 / eventlogtest.Slowdown
			if long, err := strconv.Atoi(os.Getenv("LOGPLANE_PAST_STEPS")); err == nil {
				steps = long
			}
			for i := range steps {
				r.step()
				v, err := p.Latest(t.Context())
				require.NoError(t, err)
				at := v.Revision()
				if _, known := answers[at]; known { // nothing was written
					continue
				}
				answers[at] = r.record()
				pages[at] = r.pages("", configMapsPath+"?limit=1")
				times[at] = time.Now()
				if i%3 == 0 {
					_, err := p.Commit(t.Context())
					require.NoError(t, err)
				}
				if i%(20+steps/100) == 19 && name != "kept" {
					v, err := p.Latest(t.Context())
					require.NoError(t, err)
					require.NoError(t, p.Retain(t.Context(), v.Applied()-3, v.Applied()-3))
					_, err = p.Compact(t.Context())
					require.NoError(t, err)
				}
			}
			writing := make(chan struct{})
			var writer sync.WaitGroup
			writer.Go(func() { // the past does not change while others write
				for other := (&randomPast{Rand: rand.New(rand.NewPCG(8, 8)), t: t, s: s}); ; {
					select {
					case <-writing:
						return
					default:
						other.step()
					}
				}
			})
			defer writer.Wait()
			defer close(writing)
			moments := 0
			for at, all := range answers { // in random order
				if moments++; moments > 1000 {
					break
				}
				prefix := fmt.Sprintf("/at/%d", at)
				for _, q := range all {
					code, body := r.ask(prefix, q)
					require.Equal(t, q.code, code, "%s%s: %s", prefix, q.path, body)
					require.Equal(t, q.body, body, "%s%s as '%s'", prefix, q.path, q.accept)
				}
				require.Equal(t, pages[at], r.pages(prefix, configMapsPath+"?limit=1"), "pages at %d", at)
				moment := times[at].UTC().Format(time.RFC3339Nano)
				a := request{method: "GET", path: "/at/" + moment + configMapsPath}.do(t, s)
				require.Equal(t, fmt.Sprint(at), a.header.Get(revisionHeader), moment)
				require.Equal(t, all[0].body, a.body)
			}
		})
	}
}

// pages returns all pages of a list.
func (r *randomPast) pages(prefix, path string) string {
	var all strings.Builder
	token := ""
	for {
		a := request{method: "GET", path: prefix + path + "&continue=" + token}.do(r.t, r.s)
		require.Equal(r.t, 200, a.code, a.body)
		all.WriteString(a.body)
		token, _ = fieldOf(a.object(r.t), "metadata.continue").(string)
		if token == "" {
			return all.String()
		}
	}
}

func TestPastRefusals(t *testing.T) {
	s := newServer(t)
	s.must(t, 201, request{method: "POST", path: configMapsPath, body: configMap("a", "1")})
	at := func(method, path string) answer { return request{method: method, path: path, body: "{}"}.do(t, s) }
	head := at("GET", configMapsPath).object(t)["metadata"].(map[string]any)["resourceVersion"].(string)
	for _, c := range []struct {
		method, path string
		code         int
		says         string
	}{
		{"POST", "/at/" + head + configMapsPath, 405, "the past can only be read"},
		{"DELETE", "/at/1h" + configMapsPath, 405, "the past can only be read"},
		{"GET", "/at/tomorrow" + configMapsPath, 400, "name a revision such as"},
		{"GET", "/at/yesterday" + configMapsPath, 410, "this cell is younger"},
		{"GET", "/at/-2h" + configMapsPath, 400, "is not a valid moment"},
		{"GET", "/at/0" + configMapsPath, 400, "name a later one"},
		{"GET", "/at/99999999" + configMapsPath, 400, "has not come yet"},
		{"GET", "/at/0001-01-01T00:00:00Z" + configMapsPath, 410, "this cell is younger"},
		{"GET", "/at/2999-01-01T00:00:00Z" + configMapsPath, 400, "has not come yet"},
		{"GET", "/at/1h" + configMapsPath, 410, "this cell is younger"},
		{"GET", "/at/1" + configMapsPath + "?resourceVersion=" + head + "&resourceVersionMatch=Exact", 400, "which the path names"},
		{"GET", "/at/1" + configMapsPath + "?resourceVersion=" + head + "&watch=true", 400, "which the path names"},
		{"GET", "/at/" + head + "/metrics", 404, ""},
		{"GET", "/at/" + head + "/healthz", 404, ""},
		{"GET", "/at/" + head + "/flagz", 404, ""},
		{"GET", "/at/" + head + "/at/" + head + "/api", 404, ""},
		{"GET", "/at/" + head + "/api/v1/namespaces/default/pods/x/log", 405, "has no past"},
		{"GET", "/at/" + head + "/apis/example.com/v1/widgets", 404, ""},
		{"GET", "/at/", 400, "is not a valid moment"},
		{"GET", "/at/1w" + configMapsPath, 410, "this cell is younger"},
		{"GET", "/at/@" + head + configMapsPath, 200, head},
		{"GET", "/at/" + head, 200, "/apis"},
		{"HEAD", "/at/" + head + "/api", 200, ""},
		{"GET", "/at/0d" + configMapsPath, 200, head},
	} {
		a := at(c.method, c.path)
		require.Equal(t, c.code, a.code, "%s %s: %s", c.method, c.path, a.body)
		require.Contains(t, a.body, c.says, "%s %s", c.method, c.path)
	}
	// When kubectl asks for discovery, it prints the answer's warnings and not the answer's body.
	for _, moment := range []string{"1h", "99999999", "tomorrow"} {
		a := at("GET", "/at/"+moment+"/api")
		require.GreaterOrEqual(t, a.code, 400, moment)
		require.Len(t, a.header.Values("Warning"), 1, moment)
		require.Contains(t, strings.ReplaceAll(a.header.Get("Warning"), `\"`, `"`), fieldOf(a.object(t), "message"), moment)
		require.Empty(t, at("GET", "/at/"+moment+configMapsPath).header.Values("Warning"), moment)
	}
}

// TestPastOfADay: a client that names a day or a time without a zone, in a path or a selector, is told how the server
// understands it. A client that asks for the meaning of a moment learns the moment's revision and the time at which
// that revision was written.
func TestPastOfADay(t *testing.T) {
	s := newServer(t)
	head := fieldOf(s.must(t, 201, request{method: "POST", path: configMaps, body: configMap("a", "1")}).object(t), "metadata.resourceVersion").(string)
	clock := time.Now().UTC().Add(10 * time.Second).Format("2006-01-02T15:04:05") // clocks may differ by this much
	const changes = historyPath + "/changes?fieldSelector=from%3D1,to%3D"
	for _, path := range []string{"/at/" + clock + configMaps, "/at/" + strings.Replace(clock, "T", "%20", 1) + configMaps + "/a", changes + clock} {
		a := s.must(t, 200, request{method: "GET", path: path})
		require.Len(t, a.header.Values("Warning"), 1, path)
		require.Contains(t, a.header.Get("Warning"), "is taken for "+clock+"Z, as a day and a time without a zone are in UTC here", path)
		require.Contains(t, a.body, head, path)
	}
	for _, path := range []string{"/at/@" + head + configMaps, "/at/" + clock + "Z" + configMaps, changes + "@" + head} {
		require.Empty(t, s.must(t, 200, request{method: "GET", path: path}).header.Values("Warning"), path)
	}
	a := s.must(t, 200, request{method: "GET", path: "/at/" + head + "/version"})
	require.Equal(t, head, a.header.Get("Logplane-Revision"))
	written, err := s.config.Cell.Projection.TimeOf(t.Context(), s.config.Cell.Projection.Current().Revision())
	require.NoError(t, err)
	require.Equal(t, written.UTC().Format(time.RFC3339Nano), a.header.Get("Logplane-Time"))
}

// A watch of the past delivers the changes up to the moment and a bookmark, and ends, even if the process has no feed.
func TestPastWatch(t *testing.T) {
	s := newServer(t)
	send := func(method, path, body string) string {
		a := merging(method, path, body).do(t, s)
		require.Less(t, a.code, 300, a.body)
		revision, _ := fieldOf(a.object(t), "metadata.resourceVersion").(string)
		return revision
	}
	start := send("POST", configMapsPath, `{"metadata":{"name":"a","labels":{"x":"1"}}}`)
	send("POST", configMapsPath, `{"metadata":{"name":"b","labels":{"x":"1"}}}`)
	send("PUT", configMapsPath+"/a", `{"metadata":{"name":"a","labels":{"x":"2"}}}`)
	send("DELETE", configMapsPath+"/b", "")
	end := send("POST", configMapsPath, `{"metadata":{"name":"c","labels":{"x":"1"}}}`)
	send("DELETE", configMapsPath+"/a", "")
	for _, c := range []struct{ query, want string }{
		{"resourceVersion=" + start, "ADDED b MODIFIED a DELETED b ADDED c"},
		{"allowWatchBookmarks=true&resourceVersion=" + start, "ADDED b MODIFIED a DELETED b ADDED c BOOKMARK " + end},
		{"labelSelector=x%3D1&resourceVersion=" + start, "ADDED b DELETED a DELETED b ADDED c"},
		{"", "ADDED a ADDED c"},
		{"resourceVersion=" + end, ""},
	} {
		w := httptest.NewRecorder()
		w.Body = &bytes.Buffer{}
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/at/"+end+configMapsPath+"?watch=true&"+c.query, nil))
		require.Equal(t, 200, w.Code, w.Body)
		var got []string
		for _, line := range strings.Split(strings.TrimSpace(w.Body.String()), "\n") {
			if line == "" {
				continue
			}
			event := answer{body: line}.object(t)
			name, _ := fieldOf(event, "object.metadata.name").(string)
			if event["type"] == "BOOKMARK" {
				name = fieldOf(event, "object.metadata.resourceVersion").(string)
			}
			got = append(got, event["type"].(string), name)
		}
		require.Equal(t, c.want, strings.Join(got, " "), c.query)
	}
}

// In every kind of request of the past, an aggregated ClusterRole has the rules that it had then.
func TestPastRoles(t *testing.T) {
	s := newServer(t)
	const roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
	part := func(name string) {
		s.must(t, 201, request{method: "POST", path: roles, body: `{"metadata":{"name":"` + name + `","labels":{"part":"yes"}},"rules":[{"apiGroups":[""],"resources":["` + name + `"],"verbs":["get"]}]}`})
	}
	part("first")
	whole := s.must(t, 201, request{method: "POST", path: roles, body: `{"metadata":{"name":"whole"},"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"part":"yes"}}]}}`})
	at := "/at/" + fieldOf(whole.object(t), "metadata.resourceVersion").(string)
	part("second")
	require.Contains(t, s.must(t, 200, request{method: "GET", path: roles + "/whole"}).body, "second")
	for _, path := range []string{"/whole", "?labelSelector=!part", "?watch=true&labelSelector=!part", "?watch=true&resourceVersion=1&labelSelector=!part"} {
		got := s.must(t, 200, request{method: "GET", path: at + roles + path}).body
		require.Contains(t, got, "first", path)
		require.NotContains(t, got, "second", path)
	}
}

// A request below '/at' for a kind whose past a history rule has dropped is answered 410, with the reason. All other
// kinds of that moment can be read.
func TestPastOfRules(t *testing.T) {
	cell := kubestoretest.Cell(t, projection.Config{InlineBytes: 1, History: time.Hour,
		Checkpoints: []projection.CheckpointRule{{Every: time.Nanosecond, Keep: time.Hour}}, HistoryRules: []projection.HistoryRule{{Prefix: "/secrets"}}})
	p := cell.Projection
	s := newServer(t, func(c *Config) { c.Cell = cell })
	require.NoError(t, s.Bootstrap(t.Context()))
	const secretsPath = "/api/v1/namespaces/default/secrets"
	send := func(method, path, body string) answer {
		a := merging(method, path, body).do(t, s)
		require.Less(t, a.code, 300, a.body)
		_, err := p.Commit(t.Context())
		require.NoError(t, err)
		return a
	}
	send("POST", secretsPath, `{"metadata":{"name":"s"},"stringData":{"a":"first"}}`)
	old := send("POST", configMapsPath, `{"metadata":{"name":"c"},"data":{"a":"first"}}`).object(t)["metadata"].(map[string]any)["resourceVersion"].(string)
	send("PATCH", secretsPath+"/s", `{"stringData":{"a":"second"}}`)
	send("PATCH", configMapsPath+"/c", `{"data":{"a":"second"}}`)
	v, err := p.Latest(t.Context())
	require.NoError(t, err)
	require.NoError(t, p.Retain(t.Context(), v.Applied(), v.Applied()))
	trimmed, err := p.Trim(t.Context())
	require.NoError(t, err)
	require.True(t, trimmed)
	get := func(path string) answer { return request{method: "GET", path: path}.do(t, s) }
	for _, path := range []string{secretsPath, secretsPath + "/s", "/api/v1/secrets?limit=1", secretsPath + "?watch=true&resourceVersion=1"} {
		a := get("/at/" + old + path)
		require.Contains(t, a.body, "the past of '/secrets' begins with revision "+fmt.Sprint(v.Applied()), path)
		require.Contains(t, a.body, `"code":410`, path)
	}
	require.Contains(t, get("/at/"+old+configMapsPath).body, "first")
	require.Equal(t, 200, get("/at/0s"+secretsPath).code)
	require.Equal(t, 200, get(secretsPath).code)
	versions := get("/apis/history.logplane.dev/v1/namespaces/default/versions?fieldSelector=object%3Dsecrets/s")
	require.Equal(t, 200, versions.code)
	require.Len(t, versions.object(t)["items"], 1)
	changes := get("/apis/history.logplane.dev/v1/namespaces/default/changes?fieldSelector=from%3D1,resource%3Dconfigmaps")
	require.Len(t, changes.object(t)["items"], 2)
	require.Empty(t, changes.header.Get("Warning"))
	changes = get("/apis/history.logplane.dev/v1/namespaces/default/changes?fieldSelector=from%3D1")
	require.Contains(t, changes.header.Get("Warning"), "the past of '/secrets' begins with revision")
}
