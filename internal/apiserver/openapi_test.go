package apiserver

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	openapispec "k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/logplane/logplane/internal/apiserver/description/spec"
	"github.com/logplane/logplane/internal/apiserver/gate"
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

// Every OpenAPI document honours its ETag, comes in both formats and travels compressed (row 8).
func TestOpenAPIServing(t *testing.T) {
	if testing.Short() {
		t.Skip("decompresses large documents")
	}
	s := newServer(t)
	createWidgetCRD(t, s)
	for path, proto := range map[string]string{
		"/openapi/v2": protoV2, "/openapi/v3/apis/apps/v1": protoV3, "/openapi/v3/api/v1": protoV3, "/openapi/v3/version": protoV3,
		"/openapi/v3/.well-known/openid-configuration": protoV3, "/openapi/v3/openid/v1/jwks": protoV3,
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

			for _, tags := range []string{etag, "W/" + etag, `"other", ` + etag, "*"} {
				same := request{method: "GET", path: path, header: http.Header{"If-None-Match": {tags}}}.do(t, s)
				require.Equal(t, 304, same.code, tags)
				require.Empty(t, same.body)
				require.Empty(t, same.header.Get("Content-Type"))
			}
			for _, tags := range []string{`"other"`, strings.Trim(etag, `"`)} {
				require.Equal(t, 200, request{method: "GET", path: path, header: http.Header{"If-None-Match": {tags}}}.do(t, s).code, tags)
			}

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

// The index names each document with its hash. If the hash in a URL is right, the answer may be cached for ever.
// Otherwise the client is redirected to the URL with the right hash.
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
		require.Equal(t, "application/json", stale.header.Get("Content-Type"))
		require.Empty(t, stale.body)
		require.Equal(t, document.ServerRelativeURL, stale.header.Get("Location"))
	}
}

// Splicing CRDs into the generated document gives the same result as upstream's merge of whole documents.
func TestOpenAPIV2OfCRDs(t *testing.T) {
	if testing.Short() {
		t.Skip("builds large documents")
	}
	s := newServer(t)
	createWidgetCRD(t, s)
	var whole openapispec.Swagger
	require.NoError(t, json.Unmarshal(spec.V2(spec.JSON).Plain(), &whole))
	got := request{method: "GET", path: "/openapi/v2"}.do(t, s)
	crd, err := s.definitions.Get(t.Context(), "widgets.example.com") // in the view that the request has read
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

// TestOpenAPITakesHeavySeats: a request for an OpenAPI document waits for other heavy reads of its user. A client that
// only asks whether its document has changed does not wait, nor does a request for the index.
func TestOpenAPITakesHeavySeats(t *testing.T) {
	s := newServer(t, withTokens(t), func(c *Config) { c.Requests = gate.RequestLimits{Timeout: time.Second} })
	takeHeavySeats(t, s, "ann")
	for _, path := range []string{"/openapi/v2", "/openapi/v3/api/v1"} {
		read := request{method: "GET", path: path}
		var etag string
		for user, code := range map[string]int{"ann": 429, "bob": 200, "root": 200} {
			a := s.must(t, code, read.as(user))
			if code == 200 {
				etag = a.header.Get("Etag")
			} else {
				require.Empty(t, a.header.Get("Etag"))
			}
		}
		s.must(t, 304, read.as("ann").with("If-None-Match", etag))
	}
	s.must(t, 200, request{method: "GET", path: "/openapi/v3"}.as("ann"))
}
