package apiserver

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	openapispec "k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/logplane/logplane/internal/apiserver/spec"

	"google.golang.org/protobuf/proto"
)

const (
	protoV2 = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
	protoV3 = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"
)

func createWidgetCRD(t testing.TB, s *Server) {
	t.Helper()
	a := request{method: "POST", path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body: widgetCRD, contentType: "application/yaml"}.do(t, s)
	require.Equal(t, 201, a.code, a.body)
}

// Every OpenAPI document has an ETag that is honoured, both formats, and travels compressed (row 8).
func TestOpenAPIServing(t *testing.T) {
	if testing.Short() {
		t.Skip("decompresses large documents")
	}
	s := newServer(t)
	createWidgetCRD(t, s)
	for path, proto := range map[string]string{
		"/openapi/v2": protoV2, "/openapi/v3/apis/apps/v1": protoV3, "/openapi/v3/api/v1": protoV3, "/openapi/v3/version": protoV3,
		"/openapi/v3/apis/example.com/v1": protoV3,
	} {
		t.Run(path, func(t *testing.T) {
			plain := request{method: "GET", path: path}.do(t, s)
			require.Equal(t, 200, plain.code)
			require.Equal(t, "application/json", plain.header.Get("Content-Type"))
			require.True(t, json.Valid([]byte(plain.body)))
			etag := plain.header.Get("Etag")
			require.NotEmpty(t, etag)
			require.Contains(t, plain.header.Get("Vary"), "Accept")

			same := request{method: "GET", path: path, header: http.Header{"If-None-Match": {etag}}}.do(t, s)
			require.Equal(t, 304, same.code)
			require.Empty(t, same.body)

			zipped := request{method: "GET", path: path, header: http.Header{"Accept-Encoding": {"deflate, gzip"}}}.do(t, s)
			require.Equal(t, "gzip", zipped.header.Get("Content-Encoding"))
			unzip, err := gzip.NewReader(strings.NewReader(zipped.body))
			require.NoError(t, err)
			unzipped, err := io.ReadAll(unzip)
			require.NoError(t, err)
			require.True(t, bytes.Equal([]byte(plain.body), unzipped))

			encoded := request{method: "GET", path: path, accept: proto}.do(t, s)
			require.Equal(t, 200, encoded.code)
			require.Equal(t, strings.Replace(proto, "@", ".", 1), encoded.header.Get("Content-Type"))
			require.Equal(t, etag, encoded.header.Get("Etag"))

			head := request{method: "HEAD", path: path}.do(t, s)
			require.Equal(t, 200, head.code)
			require.Empty(t, head.body)
			require.Equal(t, etag, head.header.Get("Etag"))
			require.Equal(t, 406, request{method: "GET", path: path, accept: "text/html"}.do(t, s).code)
			require.Equal(t, 405, request{method: "POST", path: path, body: "{}"}.do(t, s).code)
		})
	}
	for _, path := range []string{"/openapi", "/openapi/", "/openapi/v1", "/openapi/v3/", "/openapi/v3/apis/nope/v1", "/openapi/v2/x", "/openapi/v3x"} {
		a := request{method: "GET", path: path}.do(t, s)
		if path == "/openapi/v3/" {
			require.Equal(t, 200, a.code)
			continue
		}
		require.Equal(t, 404, a.code, path)
		require.Equal(t, "Status", a.object(t)["kind"], path)
	}
}

// The index names each document with its hash; with the right one an answer holds for ever, with any other
// the client is sent to the right one.
func TestOpenAPIIndex(t *testing.T) {
	s := newServer(t)
	createWidgetCRD(t, s)
	root := request{method: "GET", path: "/openapi/v3"}.do(t, s)
	require.Equal(t, 304, request{method: "GET", path: "/openapi/v3", header: http.Header{"If-None-Match": {root.header.Get("Etag")}}}.do(t, s).code)
	var index handler3.OpenAPIV3Discovery
	require.NoError(t, json.Unmarshal([]byte(root.body), &index))
	require.Contains(t, index.Paths, "apis/example.com/v1")
	for path, document := range index.Paths {
		a := request{method: "GET", path: document.ServerRelativeURL, accept: protoV3}.do(t, s)
		require.Equal(t, 200, a.code, path)
		require.Contains(t, a.header.Get("Cache-Control"), "immutable")
		require.NotEmpty(t, a.header.Get("Expires"))
		require.NoError(t, proto.Unmarshal([]byte(a.body), &openapi_v3.Document{}), path)
		stale := request{method: "GET", path: "/openapi/v3/" + path + "?hash=OLD"}.do(t, s)
		require.Equal(t, 301, stale.code)
		require.Equal(t, document.ServerRelativeURL, stale.header.Get("Location"))
	}
}

// What is spliced into the generated document is what upstream makes by merging whole documents.
func TestOpenAPIV2OfCRDs(t *testing.T) {
	if testing.Short() {
		t.Skip("builds large documents")
	}
	s := newServer(t)
	createWidgetCRD(t, s)
	shipped, err := spec.V2(spec.JSON)
	require.NoError(t, err)
	plain, err := shipped.Plain()
	require.NoError(t, err)
	var whole openapispec.Swagger
	require.NoError(t, json.Unmarshal(plain, &whole))
	got := request{method: "GET", path: "/openapi/v2"}.do(t, s)
	crd, err := s.definitions.Get("widgets.example.com") // in the view that the request has read
	require.NoError(t, err)
	require.IsType(t, &apiextensionsv1.CustomResourceDefinition{}, crd)
	widget, err := builder.BuildOpenAPIV2(crd, "v1", builder.Options{V2: true, IncludeSelectableFields: true})
	require.NoError(t, err)
	widget.Definitions = handler.PruneDefaults(widget.Definitions)
	merged, err := builder.MergeSpecs(&whole, widget)
	require.NoError(t, err)
	want := toJSON(t, merged)

	require.JSONEq(t, string(want), got.body)

	var document openapi_v2.Document
	require.NoError(t, proto.Unmarshal([]byte(request{method: "GET", path: "/openapi/v2", accept: protoV2}.do(t, s).body), &document))
	definitions, paths := map[string]bool{}, map[string]bool{}
	for _, d := range document.Definitions.AdditionalProperties {
		require.False(t, definitions[d.Name], "%s is defined twice", d.Name)
		definitions[d.Name] = true
	}
	for _, p := range document.Paths.Path {
		require.False(t, paths[p.Name], "%s is there twice", p.Name)
		paths[p.Name] = true
	}
	require.Len(t, definitions, len(merged.Definitions))
	require.Len(t, paths, len(merged.Paths.Paths))
	require.Equal(t, "2.0", document.Swagger)
}

// crdOf is established; its versions are of three schemas.
func crdOf(plural string, versions int) *apiextensionsv1.CustomResourceDefinition {
	kind := strings.ToUpper(plural[:1]) + plural[1:]
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: plural + ".example.com", UID: types.UID(plural), ResourceVersion: "1"}}
	crd.Spec.Group, crd.Spec.Scope = "example.com", apiextensionsv1.NamespaceScoped
	crd.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: plural, Kind: kind, ListKind: kind + "List"}
	for i := range versions {
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{
			Name: fmt.Sprintf("v%d", i+1), Served: true, Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{fmt.Sprintf("p%d", i%3): {Type: "string"}},
			}},
		})
	}
	crd.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}
	return crd
}

// What is made for each CRD alone is together what upstream makes of all of them, in both formats.
func TestOpenAPIV2OfManyCRDs(t *testing.T) {
	d, err := newDescriber(slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	crds := []*apiextensionsv1.CustomResourceDefinition{crdOf("gadgets", 2), crdOf("things", 3), crdOf("widgets", 1)}
	g, err := decodeGeneratedV2()
	require.NoError(t, err)
	var specs []*openapispec.Swagger
	for _, crd := range crds {
		for _, v := range crd.Spec.Versions {
			s, err := builder.BuildOpenAPIV2(crd, v.Name, builder.Options{V2: true, IncludeSelectableFields: true})
			require.NoError(t, err)
			s.Definitions = handler.PruneDefaults(s.Definitions)
			specs = append(specs, s)
		}
	}
	shared, err := g.shared(specs)
	require.NoError(t, err)
	merged, err := builder.MergeSpecs(shared, specs...)
	require.NoError(t, err)
	got, err := d.spliced(t.Context(), crds, spec.JSON)
	require.NoError(t, err)
	var whole openapispec.Swagger
	require.NoError(t, json.Unmarshal(got, &whole))
	for name, definition := range merged.Definitions {
		require.JSONEq(t, string(toJSON(t, definition)), string(toJSON(t, whole.Definitions[name])), name)
	}
	for name, parameter := range merged.Parameters {
		require.JSONEq(t, string(toJSON(t, parameter)), string(toJSON(t, whole.Parameters[name])), name)
	}
	for name, path := range merged.Paths.Paths {
		require.JSONEq(t, string(toJSON(t, path)), string(toJSON(t, whole.Paths.Paths[name])), name)
	}

	encoded, err := d.spliced(t.Context(), crds, spec.Proto)
	require.NoError(t, err)
	var document openapi_v2.Document
	require.NoError(t, proto.Unmarshal(encoded, &document))
	require.Len(t, document.Definitions.AdditionalProperties, len(whole.Definitions))
	require.Len(t, document.Parameters.AdditionalProperties, len(whole.Parameters))
	require.Len(t, document.Paths.Path, len(whole.Paths.Paths))
}

// A change of one CRD leaves what was made of the others.
func TestOpenAPIV2IsMadePerCRD(t *testing.T) {
	d, err := newDescriber(slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	crds := []*apiextensionsv1.CustomResourceDefinition{crdOf("gadgets", 1), crdOf("things", 1)}
	splice := func() {
		_, err := d.spliced(t.Context(), crds, spec.JSON)
		require.NoError(t, err)
	}
	splice()
	require.Equal(t, 2, d.additions.kept.Len())
	crds[1].ResourceVersion = "2"
	splice()
	require.Equal(t, 3, d.additions.kept.Len())
	keys := d.additions.kept.Keys()
	require.Contains(t, keys, additionKey{"gadgets", "1", spec.JSON})
	require.Contains(t, keys, additionKey{"things", "2", spec.JSON})
}

// Of very many versions OpenAPI v2 has the newest, and says in the log that it leaves some out.
func TestOpenAPIV2IsBounded(t *testing.T) {
	var log bytes.Buffer
	d, err := newDescriber(slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	crd := crdOf("things", describedVersions+2)
	got, err := d.spliced(t.Context(), []*apiextensionsv1.CustomResourceDefinition{crd}, spec.JSON)
	require.NoError(t, err)
	require.NotContains(t, string(got), `"/apis/example.com/v1/`)
	require.NotContains(t, string(got), `"/apis/example.com/v2/`)
	require.Contains(t, string(got), `"/apis/example.com/v3/`)
	require.Contains(t, string(got), fmt.Sprintf(`"/apis/example.com/v%d/`, describedVersions+2))
	require.Equal(t, 1, strings.Count(log.String(), "describes only the newest versions"))
	require.Len(t, d.describedVersions(crdOf("things", describedVersions)), describedVersions)
}

// While an OpenAPI v2 document is made, the others are served, and who waits for it ends with his request.
func TestOpenAPIDoesNotWaitForV2(t *testing.T) {
	s := newServer(t)
	createWidgetCRD(t, s)
	require.Equal(t, 200, request{method: "GET", path: "/openapi/v3"}.do(t, s).code) // the view has the CRD now
	d := s.openapi.(*apiDescription)
	d.splicing <- struct{}{} // as if one were made
	ctx, leave := context.WithCancel(t.Context())
	waiting := make(chan int)
	go func() {
		w := httptest.NewRecorder()
		d.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/openapi/v2", nil))
		waiting <- w.Code
	}()
	require.Equal(t, 200, request{method: "GET", path: "/openapi/v3"}.do(t, s).code)
	require.Equal(t, 200, request{method: "GET", path: "/openapi/v3/apis/apps/v1"}.do(t, s).code)
	require.Equal(t, 200, request{method: "GET", path: "/openapi/v3/apis/example.com/v1"}.do(t, s).code)
	require.Equal(t, 200, request{method: "GET", path: "/openapi/v3/apis/example.com/v1", accept: protoV3}.do(t, s).code)
	leave()
	require.Equal(t, 504, <-waiting)
	<-d.splicing
	require.Equal(t, 200, request{method: "GET", path: "/openapi/v2"}.do(t, s).code)
}

func FuzzAcceptsGzip(f *testing.F) {
	f.Add("gzip")
	f.Add("deflate, gzip;q=1.0, *;q=0.5")
	f.Add("gzip;q=0")
	f.Fuzz(func(t *testing.T, header string) {
		acceptsGzip(header)
		for _, path := range []string{"v2", "v3/apis/apps/v1"} {
			if format, ok := negotiate(header, path); ok {
				require.NotEmpty(t, contentType(format, path))
			}
		}
	})
}
