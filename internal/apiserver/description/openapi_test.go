package description

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-openapi/pkg/handler"
	openapispec "k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/description/spec"
)

// crdOf returns an established CRD. Its versions share three schemas.
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

// TestOpenAPIV2OfManyCRDs: the parts that are made for each CRD alone add up to the document that upstream makes of all
// CRDs, in both formats.
func TestOpenAPIV2OfManyCRDs(t *testing.T) {
	crds := definitions{crdOf("gadgets", 2), crdOf("things", 3), crdOf("widgets", 1)}
	d := newDescriber(slog.New(slog.DiscardHandler), crds)
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
	got, err := d.spliced(t.Context(), crds.summaries(), nil, spec.JSON)
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

	encoded, err := d.spliced(t.Context(), crds.summaries(), nil, spec.Proto)
	require.NoError(t, err)
	var document openapi_v2.Document
	require.NoError(t, proto.Unmarshal(encoded, &document))
	require.Len(t, document.Definitions.AdditionalProperties, len(whole.Definitions))
	require.Len(t, document.Parameters.AdditionalProperties, len(whole.Parameters))
	require.Len(t, document.Paths.Path, len(whole.Paths.Paths))
}

// TestOpenAPIV2IsMadePerCRD: after a change of one CRD, the additions of the other CRDs are still kept.
func TestOpenAPIV2IsMadePerCRD(t *testing.T) {
	crds := definitions{crdOf("gadgets", 1), crdOf("things", 1)}
	d := newDescriber(slog.New(slog.DiscardHandler), crds)
	splice := func() {
		_, err := d.spliced(t.Context(), crds.summaries(), nil, spec.JSON)
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

// TestOpenAPIV2IsBounded: OpenAPI v2 has only the newest versions of a CRD with very many versions. The process logs
// that some versions are left out.
func TestOpenAPIV2IsBounded(t *testing.T) {
	var log bytes.Buffer
	crds := definitions{crdOf("things", describedVersions+2)}
	d := newDescriber(slog.New(slog.NewTextHandler(&log, nil)), crds)
	got, err := d.spliced(t.Context(), crds.summaries(), nil, spec.JSON)
	require.NoError(t, err)
	require.NotContains(t, string(got), `"/apis/example.com/v1/`)
	require.NotContains(t, string(got), `"/apis/example.com/v2/`)
	require.Contains(t, string(got), `"/apis/example.com/v3/`)
	require.Contains(t, string(got), fmt.Sprintf(`"/apis/example.com/v%d/`, describedVersions+2))
	require.Equal(t, 1, strings.Count(log.String(), "describes only the newest versions"))
	require.Len(t, d.describedVersions(crdOf("things", describedVersions)), describedVersions)
}

// definitions is a set of CRDs that does not change. Its summaries are whole.
type definitions []*apiextensionsv1.CustomResourceDefinition

func (d definitions) summaries() (all []customresources.Summary) {
	for _, crd := range d {
		all = append(all, customresources.Summary{CustomResourceDefinition: crd})
	}
	return all
}

func (d definitions) AllFor(context.Context) (customresources.Set, error) {
	return customresources.Set{Definitions: d.summaries()}, nil
}

func (definitions) Full(_ context.Context, of customresources.Summary) (*apiextensionsv1.CustomResourceDefinition, error) {
	return of.CustomResourceDefinition, nil
}

// changing is a set of CRDs of which one changes again and again while documents are made.
type changing struct {
	definitions
	times int
}

func (c *changing) Full(_ context.Context, of customresources.Summary) (*apiextensionsv1.CustomResourceDefinition, error) {
	if c.times > 0 {
		c.times--
		return nil, customresources.Changed(of.Name)
	}
	return of.CustomResourceDefinition, nil
}

// TestOpenAPIOfChangingCRDs: a document that a change overtakes is begun anew. If that happens too often, the client is
// told to try again. No document lacks the CRD.
func TestOpenAPIOfChangingCRDs(t *testing.T) {
	for _, path := range []string{"/openapi/v2", "/openapi/v3/apis/example.com/v1"} {
		for times, want := range map[int]int{1: 200, changedRetries: 200, changedRetries + 1: 429} {
			h := NewOpenAPI(Config{Definitions: &changing{definitions{crdOf("widgets", 1)}, times}, Remotes: noRemotes{}, Serves: all, Logger: slog.Default()})
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
			require.Equal(t, want, w.Code, "%s after %d changes: %s", path, times, w.Body)
			require.Equal(t, want == 200, strings.Contains(w.Body.String(), `"/apis/example.com/v1/`))
		}
	}
}

// all says that the server serves every built-in group.
func all(string) bool { return true }

// noRemotes has no remote API servers.
type noRemotes struct{ Remotes }

func (noRemotes) All() ([]*apiregistrationv1.APIService, error) { return nil, nil }

// TestOpenAPIDoesNotWaitForV2: while an OpenAPI v2 document is made, other documents are served. A request that waits
// for the v2 document can end early.
func TestOpenAPIDoesNotWaitForV2(t *testing.T) {
	h := NewOpenAPI(Config{
		Definitions: definitions{crdOf("widgets", 1)}, Remotes: noRemotes{}, Serves: all, Logger: slog.Default(),
	})
	get := func(ctx context.Context, path, accept string) int {
		w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
		r.Header.Set("Accept", accept)
		h.ServeHTTP(w, r)
		return w.Code
	}
	const plain, protoV3 = "application/json", "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
	d := h.(*openAPI)
	d.splicing <- struct{}{} // as if a document were being made
	ctx, leave := context.WithCancel(t.Context())
	waiting := make(chan int)
	go func() { waiting <- get(ctx, "/openapi/v2", plain) }()
	require.Equal(t, 200, get(t.Context(), "/openapi/v3", plain))
	require.Equal(t, 200, get(t.Context(), "/openapi/v3/apis/apps/v1", plain))
	require.Equal(t, 200, get(t.Context(), "/openapi/v3/apis/example.com/v1", plain))
	require.Equal(t, 200, get(t.Context(), "/openapi/v3/apis/example.com/v1", protoV3))
	leave()
	require.Equal(t, 504, <-waiting)
	<-d.splicing
	require.Equal(t, 200, get(t.Context(), "/openapi/v2", plain))
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

func toJSON(t *testing.T, v any) []byte {
	b, err := json.Marshal(v)
	require.NoError(t, err)
	return b
}
