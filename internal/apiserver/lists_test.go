package apiserver

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/apiserver/lists"
	"github.com/logplane/logplane/internal/apiserver/requests"
	"github.com/logplane/logplane/internal/kubestore"
)

// bothWays makes two servers of one cell. The second encodes each list as a whole.
func bothWays(t testing.TB) (chunks, whole *Server) {
	chunks = newServer(t)
	cell := chunks.config.Cell
	cell.Objects = nil
	whole, err := New(Config{Cell: cell})
	require.NoError(t, err)
	whole.initialized.Store(true)
	return chunks, whole
}

const customs = "/apis/example.com/v1/namespaces/default/widgets"

// TestListsOfChunks: a list that is made of chunks equals, byte for byte, the list that upstream's handler encodes as a
// whole. This is true for every resource, selector and representation, and after any writes.
func TestListsOfChunks(t *testing.T) {
	chunks, whole := bothWays(t)
	chunks.must(t, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"other"}}`})
	const v2 = "  versions:\n  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}\n"
	chunks.must(t, 201, request{method: "POST", path: crdsPath, body: strings.Replace(widgetCRD, "  versions:\n", v2, 1), contentType: "application/yaml"})
	random := rand.New(rand.NewPCG(1, 2))
	write := func(n int) {
		namespace := []string{"default", "other"}[n%2]
		labels := fmt.Sprintf(`"labels":{"n":"%d"}`, n%3)
		values := []string{"", "<&>\u2028", strings.Repeat("é\\\"", 400), `"items":[]`}
		value, err := encodeJSON(values[random.IntN(len(values))])
		require.NoError(t, err)
		metadata := fmt.Sprintf(`"metadata":{"name":"o-%d",%s,"annotations":{"a":%s}}`, n, labels, value)
		for path, body := range map[string]string{
			"/api/v1/namespaces/" + namespace + "/configmaps":                            `{` + metadata + `,"data":{"v":` + value + `},"binaryData":{"b":"AAEC"}}`,
			"/api/v1/namespaces/" + namespace + "/pods":                                  `{` + metadata + `,"spec":{"nodeName":"` + []string{"", "n1", "n2"}[n%3] + `","containers":[{"name":"c","image":"i"}]}}`,
			"/api/v1/namespaces/" + namespace + "/services":                              `{` + metadata + `,"spec":{"clusterIP":"None"}}`,
			"/api/v1/namespaces":                                                         `{` + metadata + `}`,
			"/apis/autoscaling/v2/namespaces/" + namespace + "/horizontalpodautoscalers": `{` + metadata + `,"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"x"}}}`,
			strings.Replace(customs, "default", namespace, 1):                            `{"apiVersion":"example.com/v1","kind":"Widget",` + metadata + `,"spec":{"size":1}}`,
		} {
			created := request{method: "POST", path: path, body: body}.do(t, chunks)
			require.Contains(t, []int{201, 409}, created.code, created.body)
			if created.code == 201 {
				continue
			}
			changed := request{method: "DELETE", path: fmt.Sprintf("%s/o-%d", path, n)}
			if random.IntN(2) == 0 {
				changed.method, changed.contentType, changed.body = "PATCH", "application/merge-patch+json", `{`+metadata+`}`
			}
			chunks.must(t, 200, changed)
		}
	}
	compared, compressed := 0, 0
	compare := func(path, accept string, header http.Header) answer {
		made := request{method: "GET", path: path, accept: accept, header: header}.do(t, chunks)
		encoded := request{method: "GET", path: path, accept: accept, header: header}.do(t, whole)
		require.Equal(t, encoded.code, made.code, "%s as %s: %s", path, accept, made.body)
		for _, name := range []string{"Content-Type", "Content-Encoding", "Vary", "Cache-Control"} {
			require.Equal(t, encoded.header[name], made.header[name], "%s of %s as %s", name, path, accept)
		}
		if made.header.Get("Content-Type") == runtime.ContentTypeCBOR {
			require.Equal(t, fromCBOR(t, encoded), fromCBOR(t, made), "%s as %s", path, accept)
		} else {
			require.Equal(t, ageless(plainOf(t, encoded)), ageless(plainOf(t, made)), "%s as %s", path, accept)
		}
		compared++
		if made.header.Get("Content-Encoding") != "" {
			compressed++
		}
		return made
	}
	accepted := []string{
		"application/json", "application/vnd.kubernetes.protobuf,application/json", "application/cbor", "application/yaml", "application/yaml,application/json", "*/*",
		"application/json;pretty=1", "application/vnd.kubernetes.protobuf",
	}
	const as, metadata = ";g=meta.k8s.io;as=", "PartialObjectMetadataList;v=v1"
	for _, media := range []string{"application/json", "application/json;pretty=1", "application/yaml", "application/vnd.kubernetes.protobuf", "application/cbor"} {
		accepted = append(accepted, media+as+metadata, media+as+metadata+"beta1,application/json")
	}
	tables := []string{
		"application/json" + as + "Table;v=v1,application/json" + as + "Table;v=v1beta1,application/json", // kubectl's
		"application/json" + as + "Table;v=v1beta1", "application/json;pretty=1" + as + "Table;v=v1", "application/yaml" + as + "Table;v=v1",
		"application/vnd.kubernetes.protobuf" + as + "Table;v=v1,application/json", "application/cbor" + as + "Table;v=v1,application/yaml" + as + "Table;v=v1",
		"application/json" + as + "Table;v=v2", "application/json" + as + "PartialObjectMetadata;v=v1", "application/json" + as + "Other;v=v1,application/json",
	}
	logged := &bytes.Buffer{}
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(logged, nil)))
	for round := range 3 {
		for range 120 / min(eventlogtest.Slowdown, 2) {
			write(random.IntN(200 / min(eventlogtest.Slowdown, 2)))
		}
		if round == 0 {
			for _, path := range []string{"/api/v1/configmaps", "/api/v1/pods", "/apis/example.com/v1/widgets"} {
				for _, query := range []string{
					"labelSelector=n%3D1", "labelSelector=n!%3D2", "labelSelector=!none,n+in+(0,1)", "labelSelector=none", "fieldSelector=spec.nodeName%3D",
					"fieldSelector=spec.nodeName%3Dn1", "fieldSelector=spec.nodeName!%3Dn1,status.phase%3DPending&labelSelector=n%3D2",
				} {
					selects(t, chunks, path, query)
				}
			}
		}
		if round == 1 {
			_, err := chunks.config.Cell.Projection.Commit(t.Context())
			require.NoError(t, err)
			columns := `[{"op":"add","path":"/spec/versions/0/additionalPrinterColumns","value":[{"name":"N","type":"string","jsonPath":".metadata.labels.n","description":"\"rows\":[]\nrows: []\n"}]}]`
			chunks.must(t, 200, request{method: "PATCH", path: crdsPath + "/widgets.example.com", contentType: "application/json-patch+json", body: columns})
		}
		for _, path := range []string{
			"/api/v1/configmaps", "/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/none/configmaps", "/api/v1/pods", "/api/v1/services",
			"/api/v1/namespaces", "/apis/autoscaling/v1/horizontalpodautoscalers", "/apis/autoscaling/v2/horizontalpodautoscalers",
			"/apis/example.com/v1/widgets", "/apis/example.com/v2/widgets", customs, "/apis/rbac.authorization.k8s.io/v1/clusterroles", "/api/v1/events", "/apis/events.k8s.io/v1/events",
		} {
			for n, query := range []string{"", "?labelSelector=n%3D1", "?labelSelector=n%3D9", "?labelSelector=n!%3D2", "?labelSelector=!none,n+in+(0,1)", "?fieldSelector=spec.nodeName%3Dn1", "?fieldSelector=spec.nodeName!%3Dn1,status.phase%3DPending&labelSelector=n%3D2", "?fieldSelector=spec.nodeName%3D", "?fieldSelector=metadata.name%3Do-5", "?resourceVersion=0", "?pretty=1", "?limit=7&labelSelector=n%3D1"} {
				ways, tableWays := 3, 2
				if eventlogtest.Slowdown > 1 { // the race detector needs each list only once
					if (n+round)%3 != 0 {
						continue
					}
					ways, tableWays = 1, 1
				}
				for range ways {
					accept, encoding := accepted[random.IntN(len(accepted))], []string{"", "deflate, gzip", "br, gzip"}[random.IntN(3)]
					compare(path+query, accept, http.Header{"Accept-Encoding": {encoding}})
				}
				for range tableWays {
					accept, encoding := tables[random.IntN(len(tables))], []string{"", "gzip"}[random.IntN(2)]
					include := []string{"", "&includeObject=None", "&includeObject=Metadata", "&includeObject=Object", "&includeObject=Other", "&noHeaders=true"}[random.IntN(6)]
					compare(path+"?"+strings.TrimPrefix(query, "?")+include, accept, http.Header{"Accept-Encoding": {encoding}})
				}
			}
			revision := fieldOf(compare(path, "application/json", nil).object(t), "metadata.resourceVersion").(string)
			for _, accept := range slices.Concat(tables, accepted)[round*9:][:9] {
				compare(path+"?resourceVersionMatch=Exact&resourceVersion="+revision, accept, nil)
			}
			limit := "?limit=11"
			if eventlogtest.Slowdown > 1 {
				limit = "?limit=45"
			}
			for next := limit; next != ""; {
				page := compare(path+next, "application/json", nil).object(t)
				compare(path+next, accepted[random.IntN(len(accepted))], nil)
				compare(path+next, tables[random.IntN(len(tables))], nil)
				next = ""
				if token, _ := fieldOf(page, "metadata.continue").(string); token != "" {
					next = limit + "&continue=" + url.QueryEscape(token)
				}
			}
		}
	}
	found, made := lookedForChunks(t)
	t.Logf("%d answers compared, %d of them compressed; %.0f chunks found, and %.0f made", compared, compressed, found, made)
	require.NotContains(t, logged.String(), "could not be made of chunks")
	if eventlogtest.Slowdown == 1 {
		require.Positive(t, compressed)
	}
	require.Positive(t, made)
	require.Positive(t, found)
}

// ageless removes the ages from a Table, because they change with time.
func ageless(body string) string {
	return agesInYAML.ReplaceAllString(agesInJSON.ReplaceAllString(body, `"AGE"`), "- AGE\n")
}

var agesInJSON, agesInYAML = regexp.MustCompile(`"(\d+[smhd])+"`), regexp.MustCompile(`- (\d+[smhd])+\n`)

// selects checks that a list contains the objects that a query selects, and no others. It decodes the objects, while
// the server may select by their stored bytes.
func selects(t *testing.T, s *Server, path, query string) {
	t.Helper()
	asked, err := url.ParseQuery(query)
	require.NoError(t, err)
	byLabels, err := labels.Parse(asked.Get("labelSelector"))
	require.NoError(t, err)
	byFields, err := fields.ParseSelector(asked.Get("fieldSelector"))
	require.NoError(t, err)
	named := func(query string, selected func(labels.Set, fields.Set) bool) (names []string) {
		got := request{method: "GET", path: path + query}.do(t, s)
		if got.code == http.StatusBadRequest { // the kind does not have this field
			return nil
		}
		require.Equal(t, 200, got.code, got.body)
		var list struct {
			Items []struct {
				Metadata struct {
					Namespace, Name string
					Labels          labels.Set
				}
				Spec   struct{ NodeName string }
				Status struct{ Phase string }
			}
		}
		require.NoError(t, json.Unmarshal([]byte(got.body), &list))
		for _, i := range list.Items {
			if selected(i.Metadata.Labels, fields.Set{"spec.nodeName": i.Spec.NodeName, "status.phase": i.Status.Phase}) {
				names = append(names, i.Metadata.Namespace+"/"+i.Metadata.Name)
			}
		}
		return names
	}
	found := named("?"+query, func(labels.Set, fields.Set) bool { return true })
	expected := named("", func(l labels.Set, f fields.Set) bool { return byLabels.Matches(l) && byFields.Matches(f) })
	if asked.Has("fieldSelector") && !strings.HasSuffix(path, "/pods") {
		require.Empty(t, found, "%s?%s", path, query)
		return
	}
	require.Equal(t, expected, found, "%s?%s", path, query)
}

// lookedForChunks is how many chunks this process has found and how many it has made, in all tests so far.
func lookedForChunks(t testing.TB) (found, made float64) {
	return measured(t, "logplane_list_chunk_hits_total").GetCounter().GetValue(), measured(t, "logplane_list_chunk_misses_total").GetCounter().GetValue()
}

// measured is a metric of this process for all tests so far.
func measured(t testing.TB, name string) *dto.Metric {
	registry := prometheus.NewRegistry()
	registry.MustRegister(kubestore.Collectors()...)
	all, err := registry.Gather()
	require.NoError(t, err)
	for _, metric := range all {
		if metric.GetName() == name {
			return metric.GetMetric()[0]
		}
	}
	require.Fail(t, "no such metric", name)
	return nil
}

// TestLargeSelectedListOfCustomResources: several goroutines make the list's chunks from maps, while the answer's
// metadata are written.
func TestLargeSelectedListOfCustomResources(t *testing.T) {
	s := newServer(t)
	s.must(t, 201, request{method: "POST", path: crdsPath, body: widgetCRD, contentType: "application/yaml"})
	const n = 100
	for i := range n {
		s.must(t, 201, request{method: "POST", path: customs, body: fmt.Sprintf(
			`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w-%03d","labels":{"a":"b"},"annotations":{"v":%q}}}`, i, strings.Repeat("x", 120<<10))})
	}
	for range 5 {
		s.Shrink() // empties the cache
		got := request{method: "GET", path: customs + "?labelSelector=a%3Db", accept: "application/json"}.do(t, s)
		require.Equal(t, 200, got.code)
		items := got.object(t)["items"].([]any)
		require.Len(t, items, n)
		for i, item := range items {
			require.Equal(t, fmt.Sprintf("w-%03d", i), fieldOf(item.(map[string]any), "metadata.name"))
		}
	}
}

// TestListsHaveChunks: each of these lists consists of one chunk, which is made once and found afterwards. Lists in the
// form of Tables have no chunks.
func TestListsHaveChunks(t *testing.T) {
	s := newServer(t)
	s.must(t, 201, request{method: "POST", path: crdsPath, body: widgetCRD, contentType: "application/yaml"})
	s.must(t, 201, request{method: "POST", path: customs, body: `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"}}`})
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"a"}}`})
	const metadata, table = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", ";as=Table;g=meta.k8s.io;v=v1"
	for _, path := range []string{customs, configMaps} {
		for accept, chunks := range map[string]float64{
			"application/json": 1, "application/json;pretty=1": 1, "application/yaml,application/json": 1, "application/cbor": 1,
			"application/json" + metadata: 1, "application/json" + metadata + "beta1": 1, "application/cbor" + metadata: 1,
			"application/vnd.kubernetes.protobuf" + metadata: 1, "application/json" + table: 0, "application/yaml" + table: 0,
		} {
			found, made := lookedForChunks(t)
			for _, want := range [][]float64{{0, chunks}, {chunks, chunks}} {
				list := s.must(t, 200, request{method: "GET", path: path, accept: accept})
				media, _, _ := strings.Cut(strings.Split(accept, ",")[0], ";")
				require.Equal(t, media, list.header.Get("Content-Type"))
				foundThen, madeThen := lookedForChunks(t)
				require.Equal(t, want, []float64{foundThen - found, madeThen - made}, "%s as %s", path, accept)
			}
		}
	}
}

// TestListsAreDecorated: upstream's stores add fields to objects of older versions as they are read. A list of chunks
// has these fields, too.
func TestListsAreDecorated(t *testing.T) {
	chunks, whole := bothWays(t)
	stored := protobuf.NewSerializer(legacyscheme.Scheme, legacyscheme.Scheme)
	named := metav1.ObjectMeta{Name: "old", Namespace: "default"}
	source := &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "x"}
	for resource, old := range map[string]struct {
		object runtime.Object
		added  string
	}{
		"services": {&corev1.Service{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: named, Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.9"},
		}, "ipFamilies"},
		"persistentvolumeclaims": {&corev1.PersistentVolumeClaim{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"}, ObjectMeta: named, Spec: corev1.PersistentVolumeClaimSpec{DataSource: source},
		}, "dataSourceRef"},
	} {
		body, err := runtime.Encode(stored, old.object)
		require.NoError(t, err)
		of := schema.GroupResource{Resource: resource}
		chunks.store(t, of, "/"+chunks.stores.Prefix(of)+"/default", "old", runtime.ContentTypeProtobuf, body)
		for _, accept := range []string{
			"application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "application/json;as=Table;g=meta.k8s.io;v=v1",
			"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
		} {
			for range 2 {
				list := request{method: "GET", path: "/api/v1/" + resource + "?includeObject=Object", accept: accept}
				want, got := list.do(t, whole), list.do(t, chunks)
				require.Equal(t, ageless(want.body), ageless(got.body), "%s as %s", resource, accept)
				require.Equal(t, !strings.Contains(accept, "Metadata") && !strings.Contains(accept, "protobuf"), strings.Contains(got.body, old.added), got.body)
			}
		}
	}
}

// TestListsOfAggregatedRoles: a list shows the rules that a ClusterRole gets from others now, even if the ClusterRole
// itself has not changed.
func TestListsOfAggregatedRoles(t *testing.T) {
	s := newServer(t)
	const roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
	part := func(name string) {
		body := fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"part":"yes"}},"rules":[{"apiGroups":["example.com"],"resources":[%q],"verbs":["get"]}]}`, name, name)
		s.must(t, 201, request{method: "POST", path: roles, body: body})
	}
	s.must(t, 201, request{method: "POST", path: roles, body: `{"metadata":{"name":"whole"},"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"part":"yes"}}]},"rules":[]}`})
	for _, name := range []string{"first", "second"} {
		part(name)
		list := s.must(t, 200, request{method: "GET", path: roles + "?labelSelector=!part"})
		require.Contains(t, list.body, `"resources":["`+name+`"]`)
	}
}

// TestAllListsHaveChunks: only the kinds that this test names are encoded as a whole, which takes memory in proportion
// to the list's size.
func TestAllListsHaveChunks(t *testing.T) {
	s := newServer(t)
	described := 0
	for name, g := range s.groups {
		built, err := g.get()
		require.NoError(t, err)
		for version, resources := range built.info.VersionedResourcesStorageMap {
			for resource, registry := range resources {
				if _, lists := registry.(rest.Lister); !lists || name == history.GroupName || resource == "componentstatuses" { // these objects are not stored
					continue
				}
				if resource == "clusterroles" { // ClusterRoles get the rules of other ClusterRoles
					continue
				}
				kind := lists.Kind{Resource: schema.GroupResource{Group: name, Resource: resource}, Version: schema.GroupVersion{Group: name, Version: version}}
				g.describe(&kind)
				require.NotNil(t, kind.Serializer, "%s of %s/%s", resource, name, version)
				described++
			}
		}
	}
	require.Greater(t, described, 50)
}

// TestLargeLists: if a list is larger than the part of it that a process keeps, the list is made while it is sent. If
// an object cannot be read, the answer breaks off if it has begun, and is an error otherwise.
func TestLargeLists(t *testing.T) {
	chunks, whole := bothWays(t)
	noise, text := rand.NewChaCha8([32]byte{}), make([]byte, 480_000)
	for n := range 24 {
		// The text is random: compressible text would be kept short, and a list of such text is complete before its
		// answer begins.
		_, _ = noise.Read(text)
		body := fmt.Sprintf(`{"metadata":{"name":"large-%02d"},"data":{"v":"%s"}}`, n, base64.StdEncoding.EncodeToString(text))
		chunks.must(t, 201, request{method: "POST", path: configMaps, body: body})
	}
	chunks.must(t, 201, request{method: "POST", path: crdsPath, body: widgetCRD, contentType: "application/yaml"})
	for n := range 24 {
		body := fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"large-%02d","annotations":{"v":"%s"}}}`, n, strings.Repeat(fmt.Sprintf("%07d ", n), 30_000))
		chunks.must(t, 201, request{method: "POST", path: customs, body: body})
		chunks.must(t, 201, request{method: "POST", path: customs, body: strings.Replace(body, "large-", "large-too-", 1)})
	}
	listener := httptest.NewServer(chunks)
	defer listener.Close()
	forwarded := []string{"127.0.0.1"}
	get := func(path, accept, encoding string) (answer, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, listener.URL+path, nil)
		require.NoError(t, err)
		r.Host = "localhost:7373"
		r.Header = http.Header{"Accept": {accept}, "Accept-Encoding": {encoding}, "X-Forwarded-For": forwarded}
		got, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer got.Body.Close()
		body, err := io.ReadAll(got.Body)
		return answer{got.StatusCode, got.Header, string(body)}, err
	}
	list := func(from, accept, encoding string) (answer, error) { return get(configMaps+from, accept, encoding) }
	const table, metadata = "application/json;as=Table;g=meta.k8s.io;v=v1", ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	const withObjects = "?includeObject=Object"
	for i, of := range []struct{ path, accept string }{
		{configMaps, "application/json"}, {configMaps, "application/vnd.kubernetes.protobuf"}, {configMaps + "?limit=22", "application/json"},
		{configMaps + "?limit=22&labelSelector=!none", "application/vnd.kubernetes.protobuf"}, {customs, "application/cbor"},
		{configMaps, "application/yaml"}, {configMaps, "application/json;pretty=1"}, {configMaps + withObjects, table}, {configMaps + withObjects + "&limit=22", table},
		{customs + withObjects, table}, {customs, table}, {customs, "application/json" + metadata}, {customs, "application/vnd.kubernetes.protobuf" + metadata},
	} {
		if eventlogtest.Slowdown > 1 && i%4 != 0 {
			continue
		}
		want := request{method: "GET", path: of.path, accept: of.accept}.do(t, whole)
		require.Greater(t, len(want.body), 10<<20)
		for _, encoding := range []string{"identity", "gzip"} {
			got, err := get(of.path, of.accept, encoding)
			require.NoError(t, err)
			require.Equal(t, strings.TrimPrefix(encoding, "identity"), got.header.Get("Content-Encoding"))
			if of.accept == "application/cbor" {
				require.True(t, reflect.DeepEqual(fromCBOR(t, want), fromCBOR(t, got)), encoding)
			} else {
				require.True(t, ageless(want.body) == ageless(plainOf(t, got)), "%s, %s, %s", of.path, of.accept, encoding)
			}
		}
	}
	forwarded = nil
	here, err := list("", "application/json", "gzip")
	require.NoError(t, err)
	require.Empty(t, here.header.Get("Content-Encoding"), "nothing is compressed for a client on this machine")
	forwarded = []string{"127.0.0.1"}
	chunks.store(t, schema.GroupResource{Resource: "configmaps"}, "/configmaps/default", "zzz", runtime.ContentTypeProtobuf, []byte("k8s\x00garbage"))
	for _, of := range []struct{ from, accept string }{
		{"", "application/json"}, {"", "application/json;pretty=1"}, {"", "application/yaml"}, {withObjects, table}, {withObjects, strings.Replace(table, "json", "yaml", 1)},
	} {
		broken, err := list(of.from, of.accept, "identity")
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%v %d %d %.300s", of, broken.code, len(broken.body), broken.body)
		require.Equal(t, http.StatusOK, broken.code)
		require.Greater(t, len(broken.body), 8<<20)
	}
	for _, part := range []struct{ from, accept string }{{"", "application/vnd.kubernetes.protobuf"}, {"", "text/csv"}, {"?fieldSelector=metadata.name%3Dzzz", "application/json"}, {"?fieldSelector=metadata.name%3Dzzz", table}} {
		refused, err := list(part.from, part.accept, "identity")
		require.NoError(t, err)
		require.Equal(t, http.StatusInternalServerError, refused.code, part)
		require.Contains(t, refused.body, "zzz")
	}
}

// TestListsThatAreNoChunks: a list is encoded as a whole if its encoding is not the encoding that this server
// negotiated.
func TestListsThatAreNoChunks(t *testing.T) {
	s := newServer(t)
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`})
	r := httptest.NewRequest(http.MethodGet, configMaps, nil)
	r.Header.Set("Accept", "application/vnd.kubernetes.protobuf,application/json")
	info, err := requests.Infos.NewRequestInfo(r)
	require.NoError(t, err)
	r = r.WithContext(kubestore.WithView(apirequest.WithRequestInfo(r.Context(), info), nil))
	kind := lists.Kind{Resource: schema.GroupResource{Resource: "configmaps"}, Version: schema.GroupVersion{Version: "v1"}, Serializer: onlyJSON{answers.Codecs()}}
	out := httptest.NewRecorder()
	lists.Serve(out, r, kind, s.resource(info), answers.Fail)
	require.Equal(t, http.StatusOK, out.Code)
	require.Equal(t, request{method: "GET", path: configMaps, accept: r.Header.Get("Accept")}.do(t, s).body, out.Body.String())
}

type onlyJSON struct{ runtime.NegotiatedSerializer }

func (o onlyJSON) SupportedMediaTypes() []runtime.SerializerInfo {
	return o.NegotiatedSerializer.SupportedMediaTypes()[:1]
}

// fromCBOR decodes a body, since the keys of CBOR maps have no order.
func fromCBOR(t testing.TB, a answer) (value any) {
	require.NoError(t, cbor.Unmarshal([]byte(plainOf(t, a)), &value))
	return value
}

// plainOf is the body after decompression.
func plainOf(t testing.TB, a answer) string {
	if a.header.Get("Content-Encoding") == "" {
		return a.body
	}
	r, err := gzip.NewReader(bytes.NewReader([]byte(a.body)))
	require.NoError(t, err)
	r.Multistream(false)
	plain, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(plain)
}

func encodeJSON(value string) (string, error) {
	encoded, err := json.Marshal(value)
	return string(encoded), err
}
