package apiserver

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/yaml"

	"github.com/logplane/logplane/internal/apiserver/description/spec"
)

const configMaps = "/api/v1/namespaces/default/configmaps"

// Row 49: an object can be sent and received in every representation, and stays the same.
func TestRepresentations(t *testing.T) {
	s := newServer(t)
	encode := func(mediaType, name string) string {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"a": "1"}}
		switch mediaType {
		case runtime.ContentTypeCBOR:
			unstructured, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
			require.NoError(t, err)
			unstructured["apiVersion"], unstructured["kind"] = "v1", "ConfigMap"
			body, err := direct.Marshal(unstructured)
			require.NoError(t, err)
			return string(body)
		default:
			info, ok := runtime.SerializerInfoForMediaType(legacyscheme.Codecs.SupportedMediaTypes(), mediaType)
			require.True(t, ok)
			body, err := runtime.Encode(legacyscheme.Codecs.EncoderForVersion(info.Serializer, schema.GroupVersion{Version: "v1"}), object)
			require.NoError(t, err)
			return string(body)
		}
	}
	for _, mediaType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeYAML, runtime.ContentTypeProtobuf, runtime.ContentTypeCBOR} {
		t.Run(mediaType, func(t *testing.T) {
			name := strings.ReplaceAll(mediaType[len("application/"):], "/", "-")
			created := request{method: "POST", path: configMaps, body: encode(mediaType, name), contentType: mediaType, accept: mediaType}.do(t, s)
			require.Equal(t, 201, created.code, created.body)
			require.Equal(t, mediaType, created.header.Get("Content-Type"))
			got := request{method: "GET", path: configMaps + "/" + name, accept: mediaType}.do(t, s)
			require.Equal(t, 200, got.code)
			var data map[string]string
			switch mediaType {
			case runtime.ContentTypeProtobuf:
				require.True(t, strings.HasPrefix(got.body, "k8s\x00"))
				object, err := runtime.Decode(legacyscheme.Codecs.UniversalDeserializer(), []byte(got.body))
				require.NoError(t, err)
				data = object.(*corev1.ConfigMap).Data
			case runtime.ContentTypeCBOR:
				require.True(t, strings.HasPrefix(got.body, "\xd9\xd9\xf7"))
				var object corev1.ConfigMap
				require.NoError(t, direct.Unmarshal([]byte(got.body), &object))
				data = object.Data
			case runtime.ContentTypeYAML:
				var object corev1.ConfigMap
				require.NoError(t, yaml.Unmarshal([]byte(got.body), &object))
				data = object.Data
			default:
				var object corev1.ConfigMap
				require.NoError(t, json.Unmarshal([]byte(got.body), &object))
				data = object.Data
			}
			require.Equal(t, map[string]string{"a": "1"}, data)
		})
	}
	require.Equal(t, 406, request{method: "GET", path: configMaps, accept: "image/png"}.do(t, s).code)
	require.Equal(t, 415, request{method: "POST", path: configMaps, body: "x", contentType: "image/png"}.do(t, s).code)
}

// Rows 50 and 51.
func TestTablesAndMetadata(t *testing.T) {
	s := newServer(t)
	require.Equal(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"},"data":{"a":"1"}}`}.do(t, s).code)
	table := request{method: "GET", path: configMaps, accept: "application/json;as=Table;v=v1;g=meta.k8s.io"}.do(t, s)
	require.Equal(t, 200, table.code, table.body)
	require.Equal(t, "Table", fieldOf(table.object(t), "kind"))
	require.Contains(t, table.body, `"name":"Data"`)
	partial := request{method: "GET", path: configMaps + "/x", accept: "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}.do(t, s)
	require.Equal(t, "PartialObjectMetadata", fieldOf(partial.object(t), "kind"))
	require.Nil(t, fieldOf(partial.object(t), "data"))
	list := request{method: "GET", path: configMaps, accept: "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}.do(t, s)
	require.Equal(t, "PartialObjectMetadataList", fieldOf(list.object(t), "kind"))
}

// Row 38.
func TestPatches(t *testing.T) {
	s := newServer(t)
	pods := "/api/v1/namespaces/default/pods"
	created := request{method: "POST", path: pods, body: `{"metadata":{"name":"x"},"spec":{"containers":[{"name":"c","image":"one"},{"name":"d","image":"one"}]}}`}.do(t, s)
	require.Equal(t, 201, created.code, created.body)
	for _, c := range []struct {
		name, contentType, body string
		code                    int
		want                    string
	}{
		{"json", "application/json-patch+json", `[{"op":"test","path":"/spec/containers/0/image","value":"one"},{"op":"replace","path":"/spec/containers/0/image","value":"two"}]`, 200, `"image":"two"`},
		{"json, failed test", "application/json-patch+json", `[{"op":"test","path":"/spec/containers/0/image","value":"no"}]`, 422, ""},
		{"merge", "application/merge-patch+json", `{"metadata":{"labels":{"a":"b"}}}`, 200, `"labels":{"a":"b"}`},
		{"strategic", "application/strategic-merge-patch+json", `{"spec":{"containers":[{"name":"d","image":"three"}]}}`, 200, `"image":"three"`},
		{"apply", "application/apply-patch+yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: x, annotations: {c: d}}\n", 200, `"c":"d"`},
		{"unknown", "application/x-patch", `{}`, 415, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := request{method: "PATCH", path: pods + "/x?fieldManager=test", body: c.body, contentType: c.contentType}.do(t, s)
			require.Equal(t, c.code, got.code, got.body)
			require.Contains(t, got.body, c.want)
		})
	}
	require.Contains(t, request{method: "GET", path: pods + "/x"}.do(t, s).body, `"image":"two"`, "a strategic merge by name keeps the other container")
}

// Row 41: a dry run does everything except the write.
func TestDryRun(t *testing.T) {
	s := newServer(t)
	require.Equal(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`}.do(t, s).code)
	head := func() any {
		return fieldOf(request{method: "GET", path: configMaps}.do(t, s).object(t), "metadata.resourceVersion")
	}
	before := head()
	for _, r := range []request{
		{method: "POST", path: configMaps + "?dryRun=All", body: `{"metadata":{"name":"y"}}`},
		{method: "PUT", path: configMaps + "/x?dryRun=All", body: `{"metadata":{"name":"x"},"data":{"a":"b"}}`},
		{method: "PATCH", path: configMaps + "/x?dryRun=All", body: `{"data":{"a":"b"}}`, contentType: "application/merge-patch+json"},
		{method: "DELETE", path: configMaps + "/x?dryRun=All"},
		{method: "DELETE", path: configMaps + "?dryRun=All"},
	} {
		got := r.do(t, s)
		require.Less(t, got.code, 300, got.body)
	}
	require.Equal(t, before, head(), "nothing was appended")
	require.Equal(t, 422, request{method: "POST", path: configMaps + "?dryRun=Some", body: `{"metadata":{"name":"y"}}`}.do(t, s).code)
}

// Rows 43 and 44.
func TestDeletion(t *testing.T) {
	s := newServer(t)
	require.Equal(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x","finalizers":["example.com/f"]}}`}.do(t, s).code)
	require.Equal(t, 200, request{method: "DELETE", path: configMaps + "/x"}.do(t, s).code)
	held := request{method: "GET", path: configMaps + "/x"}.do(t, s)
	require.NotNil(t, fieldOf(held.object(t), "metadata.deletionTimestamp"), held.body)
	released := request{method: "PATCH", path: configMaps + "/x", body: `{"metadata":{"finalizers":null}}`, contentType: "application/merge-patch+json"}.do(t, s)
	require.Equal(t, 200, released.code, released.body)
	require.Equal(t, 404, request{method: "GET", path: configMaps + "/x"}.do(t, s).code)

	for i := range 5 {
		body := fmt.Sprintf(`{"metadata":{"name":"x%d","labels":{"odd":"%d"}}}`, i, i%2)
		require.Equal(t, 201, request{method: "POST", path: configMaps, body: body}.do(t, s).code)
	}
	require.Equal(t, 200, request{method: "DELETE", path: configMaps + "?labelSelector=odd%3D1"}.do(t, s).code)
	left := request{method: "GET", path: configMaps}.do(t, s).object(t)
	require.Len(t, left["items"], 3)
	wrong := request{method: "DELETE", path: configMaps + "/x0", body: `{"preconditions":{"uid":"no"}}`}.do(t, s)
	require.Equal(t, 409, wrong.code, wrong.body)
}

// Rows 42 and 47.
func TestFieldValidation(t *testing.T) {
	s := newServer(t)
	post := func(level, body string) answer {
		return request{method: "POST", path: configMaps + "?fieldValidation=" + level, body: body}.do(t, s)
	}
	require.Equal(t, 400, post("Strict", `{"metadata":{"name":"a"},"unknown":1}`).code)
	warned := post("Warn", `{"metadata":{"name":"b"},"unknown":1}`)
	require.Equal(t, 201, warned.code)
	require.Contains(t, warned.header.Get("Warning"), "unknown")
	require.Equal(t, 201, post("Ignore", `{"metadata":{"name":"c"},"unknown":1}`).code)
	invalid := post("Ignore", `{"metadata":{"name":"Not A Name"}}`)
	require.Equal(t, 422, invalid.code)
	require.Equal(t, "Invalid", fieldOf(invalid.object(t), "reason"))
	require.NotNil(t, fieldOf(invalid.object(t), "details.causes"))
}

// Row 55: every bad request is answered with a Status and the right code, and nothing is written.
func TestRefusals(t *testing.T) {
	s := newServer(t)
	large := `{"metadata":{"name":"x"},"data":{"a":"` + strings.Repeat("x", 3<<20) + `"}}`
	for _, c := range []struct {
		request
		code int
	}{
		{request{method: "POST", path: configMaps, body: `{`}, 400},
		{request{method: "POST", path: configMaps, body: ``, contentType: "application/json"}, 400},
		{request{method: "POST", path: configMaps, body: `{"metadata":{"name":5}}`}, 400},
		{request{method: "POST", path: configMaps, body: `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"}}`}, 400},
		{request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x","namespace":"other"}}`}, 400},
		{request{method: "POST", path: configMaps, body: `{"metadata":{}}`}, 422},
		{request{method: "POST", path: configMaps, body: large}, 413},
		{request{method: "POST", path: "/api/v1/namespaces/missing/configmaps", body: `{"metadata":{"name":"x"}}`}, 404},
		{request{method: "PUT", path: configMaps + "/x", body: `{"metadata":{"name":"y"}}`}, 400},
		{request{method: "PUT", path: configMaps + "/x", body: `{"metadata":{"name":"x","resourceVersion":"abc"}}`}, 404},
		{request{method: "PATCH", path: configMaps + "/x", body: `[`, contentType: "application/json-patch+json"}, 400},
		{request{method: "GET", path: configMaps + "/missing"}, 404},
		{request{method: "GET", path: "/api/v1/namespaces/default/nothings"}, 404},
		{request{method: "GET", path: "/apis/apps/v9/deployments"}, 404},
		{request{method: "GET", path: "/apis/no.such.group/v1/things"}, 404},
		{request{method: "GET", path: "/nothing"}, 404},
		{request{method: "GET", path: configMaps + "?resourceVersion=abc"}, 400},
		{request{method: "GET", path: configMaps + "?resourceVersion=-1"}, 400},
		{request{method: "GET", path: configMaps + "?continue=forged"}, 400},
		{request{method: "GET", path: configMaps + "?limit=1&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIuLi94In0"}, 400},
		{request{method: "GET", path: configMaps + "?labelSelector=%3D%3D"}, 400},
		{request{method: "GET", path: configMaps + "?fieldSelector=spec.x%3D1"}, 400},
		{request{method: "GET", path: configMaps + "?resourceVersionMatch=Exact"}, 422},
		{request{method: "POST", path: configMaps + "/x", body: `{}`}, 405},
		{request{method: "PUT", path: configMaps, body: `{}`}, 405},
		{request{method: "PATCH", path: "/api/v1", body: `{}`}, 405},
		{request{method: "GET", path: configMaps + "?watch=true"}, 405},
		{request{method: "GET", path: "/api/v1/watch/namespaces/default/configmaps"}, 405},
		{request{method: "GET", path: "/api/v1/namespaces/default/pods/x/log"}, 405},
		{request{method: "POST", path: "/api/v1/namespaces/default/pods/x/exec"}, 405},
		{request{method: "GET", path: "/api/v1/nodes/x/proxy/metrics"}, 405},
		{request{method: "POST", path: "/api/v1/namespaces/default/serviceaccounts/x/token", body: `{}`}, 405},
		{request{method: "GET", path: configMaps + "?timeout=soon"}, 400},
		{request{method: "GET", path: "/api/v1/proxy"}, 400},
	} {
		t.Run(fmt.Sprintf("%s %.80s %d", c.method, c.path, c.code), func(t *testing.T) {
			got := c.do(t, s)
			require.Equal(t, c.code, got.code, "%.500s", got.body)
			status := got.object(t)
			require.Equal(t, "Status", status["kind"], got.body)
			require.EqualValues(t, c.code, status["code"], got.body)
			require.NotEmpty(t, status["reason"], got.body)
		})
	}
	require.Len(t, request{method: "GET", path: configMaps}.do(t, s).object(t)["items"], 0, "nothing was written")
}

// elsewhere redirects live watches, as a function does.
func elsewhere(c *Config) {
	c.LiveWatches = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://watcher.example"+r.URL.RequestURI(), http.StatusTemporaryRedirect)
	})
}

// Row 57.
func TestRedirectsAndOptions(t *testing.T) {
	s := newServer(t, elsewhere)
	for _, path := range []string{configMaps + "?watch=1&resourceVersion=5", "/api/v1/watch/namespaces/default/configmaps", "/apis/no.such.group/v1/things?watch=true"} {
		got := request{method: "GET", path: path}.do(t, s)
		require.Equal(t, 307, got.code, got.body)
		require.Equal(t, "https://watcher.example"+path, got.header.Get("Location"))
	}
	options := request{method: "OPTIONS", path: configMaps}.do(t, s)
	require.Equal(t, 204, options.code)
	require.Empty(t, options.body)
}

func TestProcessEndpoints(t *testing.T) {
	s := newServer(t)
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		got := request{method: "GET", path: path}.do(t, s)
		require.Equal(t, 200, got.code)
		require.Equal(t, "ok", got.body)
	}
	require.Contains(t, request{method: "GET", path: "/readyz?verbose"}.do(t, s).body, "[+]view ok")
	version := request{method: "GET", path: "/version"}.do(t, s).object(t)
	require.True(t, strings.HasPrefix(version["gitVersion"].(string), spec.KubernetesVersion), version)
	require.Equal(t, 200, request{method: "GET", path: configMaps}.do(t, s).code)
	metrics := request{method: "GET", path: "/metrics", accept: "text/plain"}.do(t, s)
	require.Equal(t, 200, metrics.code)
	require.Contains(t, metrics.body, `apiserver_request_duration_seconds_count{`)
	require.True(t, bytes.Contains([]byte(metrics.body), []byte(`resource="configmaps"`)))
}

// Events expire by themselves. Their time to live is stored with them.
func TestEventTTL(t *testing.T) {
	s := newServer(t)
	body := `{"metadata":{"name":"x"},"involvedObject":{"kind":"Pod","namespace":"default"}}`
	require.Equal(t, 201, request{method: "POST", path: "/api/v1/namespaces/default/events", body: body}.do(t, s).code)
	view, err := s.config.Cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	row, ok, err := view.Get(t.Context(), "main/events/default/x", view.Revision())
	require.NoError(t, err)
	require.True(t, ok)
	require.EqualValues(t, 3600, row.TTL)
	other := request{method: "GET", path: "/apis/events.k8s.io/v1/namespaces/default/events/x"}.do(t, s)
	require.Equal(t, 200, other.code, "both groups serve the one object: "+other.body)
}

// Row 52: the columns and rows of a Table as comma-separated values.
func TestCSV(t *testing.T) {
	s := newServer(t, withFeed(t))
	s.must(t, 201, request{method: "POST", path: crdsPath, body: widgetCRD, contentType: "application/yaml"})
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"a"},"data":{"x":"1","y":"2"}}`})
	for i := range 300 {
		s.must(t, 201, request{method: "POST", path: customs, body: fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w%03d"},"spec":{"size":%d}}`, i, i%10)})
	}
	read := func(path, accept string) (answer, [][]string) {
		got := s.must(t, 200, request{method: "GET", path: path, accept: accept, header: http.Header{"Accept-Encoding": {"gzip"}}})
		require.Equal(t, "text/csv;charset=utf-8", got.header.Get("Content-Type"))
		rows, err := csv.NewReader(strings.NewReader(got.body)).ReadAll()
		require.NoError(t, err)
		return got, rows
	}
	got, rows := read(configMaps+"/a", "text/csv")
	require.True(t, strings.HasPrefix(got.body, "Name,Data,Age\r\na,2,"), got.body)
	require.Len(t, rows, 2)
	_, rows = read(customs, "image/png,text/csv,application/json;q=0.9")
	require.Len(t, rows, 301)
	require.Equal(t, []string{"Name", "Size", "Color"}, rows[0])
	require.Equal(t, []string{"w299", "9", ""}, rows[300])
	_, rows = read(customs+"?limit=7&labelSelector=a%3Db", "text/csv")
	require.Equal(t, [][]string{{"Name", "Size", "Color"}}, rows)
	_, rows = read("/at/0s"+customs+"?limit=7", "text/csv")
	require.Len(t, rows, 8)

	require.Equal(t, "NotFound", s.must(t, 404, request{method: "GET", path: configMaps + "/none", accept: "text/csv"}).object(t)["reason"])
	s.must(t, 400, request{method: "GET", path: configMaps + "?labelSelector=(", accept: "text/csv"})
	s.must(t, 406, request{method: "GET", path: configMaps + "?watch=1", accept: "text/csv"})
	require.Contains(t, s.must(t, 200, request{method: "GET", path: configMaps, accept: "application/json,text/csv"}).body, `"kind":"ConfigMapList"`)
}
