package apiserver

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/emicklei/go-restful/v3"
	"github.com/stretchr/testify/require"
	crdserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubeversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/apiserver/pkg/util/openapi"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/schemaconv"
	"k8s.io/kube-openapi/pkg/schemamutation"
	"k8s.io/kube-openapi/pkg/spec3"
	openapiutil "k8s.io/kube-openapi/pkg/util"
	openapispec "k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	kuberoutes "k8s.io/kubernetes/pkg/routes"
	smdschema "sigs.k8s.io/structured-merge-diff/v6/schema"

	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/clusters"
	"github.com/logplane/logplane/internal/apiserver/description/spec"
	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore/kubestoretest"
	"github.com/logplane/logplane/projection"
)

var update = flag.Bool("update", false, "write what the test found instead of comparing with it")

// groupOrder is the order of groups in kube-apiserver's discovery: by priority, then by name.
var groupOrder = []string{
	"", "apiregistration.k8s.io", "apps", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io", "autoscaling", "batch",
	"certificates.k8s.io", "networking.k8s.io", "policy", "rbac.authorization.k8s.io", "storage.k8s.io", "admissionregistration.k8s.io",
	"apiextensions.k8s.io", "scheduling.k8s.io", "coordination.k8s.io", "node.k8s.io", "discovery.k8s.io", "resource.k8s.io",
	"flowcontrol.apiserver.k8s.io", "internal.apiserver.k8s.io", "storagemigration.k8s.io",
	clusters.GroupName, history.GroupName,
}

// unwatched can be watched, but discovery does not say so. If discovery says that a resource can be listed and watched,
// programs that mirror a cluster, such as Argo CD, list and watch it, and keep the objects. Changes are not objects:
// they are never deleted, and each write of such a program would make one more change.
var unwatched = schema.GroupResource{Group: history.GroupName, Resource: "changes"}

// TestSpecIsCurrent rebuilds discovery and OpenAPI of every built-in group from the registries that serve them (row 8).
func TestSpecIsCurrent(t *testing.T) {
	if testing.Short() {
		t.Skip("builds every group and its OpenAPI")
	}
	built := rebuildSpec(t)
	folder := filepath.Join("description", "spec", "data")
	if *update {
		require.NoError(t, os.RemoveAll(folder))
		require.NoError(t, os.MkdirAll(folder, 0o755))
		for name, content := range built {
			require.NoError(t, os.WriteFile(filepath.Join(folder, name), compressed(t, content), 0o644))
		}
		return
	}
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, entries, len(built), "files in %s: run 'go generate ./internal/apiserver'", folder)
	for name, content := range built {
		require.True(t, bytes.Equal(content, spec.File(name).Plain()), "%s is not what the registries say: run 'go generate ./internal/apiserver'", name)
	}
}

// rebuildSpec returns the content of every generated file by name.
func rebuildSpec(t *testing.T) map[string][]byte {
	groups, services := servedGroups(t)
	out := map[string][]byte{spec.FileDiscovery: toJSON(t, groups)}
	v2, v3 := rebuildOpenAPI(t, services)

	index := spec.Index{V2: etagOf(v2), V3: map[string]string{}}
	out[spec.FileV2(spec.JSON)] = v2
	var err error
	out[spec.FileV2(spec.Proto)], err = handler.ToProtoBinary(v2)
	require.NoError(t, err)
	for path, document := range v3 {
		index.V3[path] = etagOf(document)
		out[spec.FileV3(path, spec.JSON)] = document
		out[spec.FileV3(path, spec.Proto)], err = handler3.ToV3ProtoBinary(document)
		require.NoError(t, err)
	}
	out[spec.FileIndex] = toJSON(t, index)
	for kind, schemas := range rebuildSchemas(t) {
		out[spec.FileSchemas(kind)] = toJSON(t, schemas)
	}
	return out
}

// rebuildSchemas makes the schemas of every kind that clients may send, including the kinds of subresources. It leaves
// out the descriptions, which managed fields do not need.
func rebuildSchemas(t *testing.T) map[schema.GroupVersionKind]map[string]*openapispec.Schema {
	s, err := New(Config{Cell: kubestoretest.Cell(t, projection.Config{}), ExternalAddress: "localhost:443"})
	require.NoError(t, err)
	all := map[schema.GroupVersionKind]map[string]*openapispec.Schema{}
	for _, g := range s.groups {
		built, err := g.get()
		require.NoError(t, err)
		for version, storages := range built.info.VersionedResourcesStorageMap {
			for _, storage := range storages {
				kinds, _, err := built.info.Scheme.ObjectKinds(storage.New())
				require.NoError(t, err)
				kind := kinds[0].GroupKind().WithVersion(version)
				if of, ok := storage.(rest.GroupVersionKindProvider); ok {
					kind = of.GroupVersionKind(schema.GroupVersion{Group: g.name, Version: version})
				}
				if all[kind] == nil {
					if built.info.Scheme == history.Scheme {
						continue // the group's objects are not stored
					}
					schemas, err := buildSchemas(built.info.Scheme, kind)
					require.NoError(t, err, kind)
					all[kind] = withoutDescriptions(schemas)
					require.Equal(t, typesOf(t, schemas), typesOf(t, all[kind]))
				}
			}
		}
	}
	return all
}

// buildSchemas makes the schemas of a kind of upstream's, or of ours.
func buildSchemas(scheme *runtime.Scheme, kind schema.GroupVersionKind) (map[string]*openapispec.Schema, error) {
	if scheme != clusters.Scheme {
		return resources.ConvertersOf(scheme).Build(kind)
	}
	example, err := scheme.New(kind)
	if err != nil {
		return nil, err
	}
	config := genericapiserver.DefaultOpenAPIV3Config(definitionsOfAll, openapinamer.NewDefinitionNamer(scheme))
	return builder3.BuildOpenAPIDefinitionsForResources(config, openapiutil.GetCanonicalTypeName(example))
}

// definitionsOfAll are the OpenAPI definitions of upstream's types and of ours.
func definitionsOfAll(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	all := generatedopenapi.GetOpenAPIDefinitions(ref)
	maps.Copy(all, ourDefinitions(ref))
	return all
}

// typesOf returns the part of the schemas that managed fields use.
func typesOf(t *testing.T, schemas map[string]*openapispec.Schema) map[string]any {
	converted, err := schemaconv.ToSchemaFromOpenAPI(schemas, false)
	require.NoError(t, err)
	types := map[string]any{}
	for _, named := range converted.Types {
		sortFields(named.Atom)
		types[named.Name] = named.Atom
	}
	return types
}

func sortFields(a smdschema.Atom) {
	if a.Map != nil {
		slices.SortFunc(a.Map.Fields, func(a, b smdschema.StructField) int { return strings.Compare(a.Name, b.Name) })
		for _, field := range a.Map.Fields {
			sortFields(field.Type.Inlined)
		}
		sortFields(a.Map.ElementType.Inlined)
	}
	if a.List != nil {
		sortFields(a.List.ElementType.Inlined)
	}
}

func withoutDescriptions(schemas map[string]*openapispec.Schema) map[string]*openapispec.Schema {
	walker := schemamutation.Walker{RefCallback: schemamutation.RefCallbackNoop, SchemaCallback: func(s *openapispec.Schema) *openapispec.Schema {
		plain := *s
		plain.Description = ""
		return &plain
	}}
	plain := map[string]*openapispec.Schema{}
	for name, s := range schemas {
		plain[name] = walker.WalkSchema(s)
	}
	return plain
}

// servedGroups builds every group. It returns the groups as discovery shows them, and their routes.
func servedGroups(t *testing.T) ([]spec.Group, []*restful.WebService) {
	s, err := New(Config{Cell: kubestoretest.Cell(t, projection.Config{}), ExternalAddress: "localhost:443"})
	require.NoError(t, err)
	codecs := answers.Codecs()
	anyone := discovery.DefaultAddresses{DefaultAddress: "localhost:443"}
	legacy := aggregated.WrapAggregatedDiscoveryToHandler(discovery.NewLegacyRootAPIHandler(anyone, codecs, "/api"), http.NotFoundHandler(), nil)
	root := aggregated.WrapAggregatedDiscoveryToHandler(discovery.NewRootAPIsHandler(anyone, codecs), http.NotFoundHandler(), nil)
	services := []*restful.WebService{
		legacy.GenerateWebService("/api", metav1.APIVersions{}),
		root.GenerateWebService("/apis", metav1.APIGroupList{}),
	}
	services = append(services, unversionedServices()...)
	for name := range s.groups {
		require.Contains(t, groupOrder, name)
	}
	var groups []spec.Group
	for _, name := range groupOrder {
		g, ok := s.groups[name]
		if !ok {
			continue
		}
		built, err := g.get()
		require.NoError(t, err)
		routes, err := s.route(&built.info, func(string) bool { return true })
		require.NoError(t, err)
		if len(routes.RegisteredWebServices()) == 0 {
			continue
		}
		if name != "" {
			services = append(services, discovery.NewAPIGroupHandler(codecs, metav1.APIGroup{Name: name}).WebService())
		}
		services = append(services, routes.RegisteredWebServices()...)
		groups = append(groups, discoveryOf(t, name, routes))
	}
	return groups, services
}

// unversionedServices are described by every process, as in kube-apiserver, even by a process without an issuer of
// tokens: a client may keep one process's document and send requests to another process.
func unversionedServices() []*restful.WebService {
	c := restful.NewContainer()
	routes.Version{Version: &kubeversion.Info{}}.Install(c)
	kuberoutes.NewOpenIDMetadataServer(nil).Install(c)
	return c.RegisteredWebServices()
}

func discoveryOf(t *testing.T, name string, c *restful.Container) spec.Group {
	g := spec.Group{Name: name}
	for _, service := range c.RegisteredWebServices() {
		w := httptest.NewRecorder()
		c.Dispatch(w, httptest.NewRequest(http.MethodGet, service.RootPath()+"/", nil))
		require.Equal(t, http.StatusOK, w.Code, service.RootPath())
		var list metav1.APIResourceList
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &list))
		_, version, _ := strings.Cut(strings.TrimPrefix(service.RootPath(), "/api"), "/"+name+"/")
		if name == "" {
			version = strings.TrimPrefix(service.RootPath(), "/api/")
		}
		for i, r := range list.APIResources {
			if (schema.GroupResource{Group: name, Resource: r.Name}) == unwatched {
				list.APIResources[i].Verbs = slices.DeleteFunc(r.Verbs, func(verb string) bool { return verb == "watch" })
			}
		}
		g.Versions = append(g.Versions, spec.Version{Name: version, Resources: list.APIResources})
	}
	sort.Slice(g.Versions, func(i, j int) bool {
		return kubeversion.CompareKubeAwareVersionStrings(g.Versions[i].Name, g.Versions[j].Name) > 0
	})
	return g
}

// rebuildOpenAPI builds the documents of the routes of all groups like upstream's routes.OpenAPI.
func rebuildOpenAPI(t *testing.T, services []*restful.WebService) (v2 []byte, v3 map[string][]byte) {
	definitions := openapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(definitionsOfAll)
	namer := openapinamer.NewDefinitionNamer(legacyscheme.Scheme, crdserver.Scheme, aggregatorscheme.Scheme, history.Scheme, clusters.Scheme)
	config2, config3 := genericapiserver.DefaultOpenAPIConfig(definitions, namer), genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	for _, info := range []*struct{ Title, Version *string }{
		{&config2.Info.Title, &config2.Info.Version}, {&config3.Info.Title, &config3.Info.Version},
	} {
		*info.Title, *info.Version = "Kubernetes", compatibility.DefaultBuildEffectiveVersion().EmulationVersion().String()
	}
	// The documents are as in kube-apiserver with token authentication.
	const token, refused = "BearerToken", "Unauthorized"
	scheme := openapispec.SecuritySchemeProps{Type: "apiKey", Name: "authorization", In: "header", Description: "Bearer Token authentication"}
	config2.SecurityDefinitions = &openapispec.SecurityDefinitions{token: &openapispec.SecurityScheme{SecuritySchemeProps: scheme}}
	config3.SecuritySchemes = spec3.SecuritySchemes{token: &spec3.SecurityScheme{SecuritySchemeProps: spec3.SecuritySchemeProps{
		Type: scheme.Type, Name: scheme.Name, In: scheme.In, Description: scheme.Description,
	}}}
	config2.DefaultSecurity = []map[string][]string{{token: {}}}
	config3.DefaultSecurity = config2.DefaultSecurity
	config2.CommonResponses = map[int]openapispec.Response{http.StatusUnauthorized: {ResponseProps: openapispec.ResponseProps{Description: refused}}}
	config3.CommonResponses = map[int]*spec3.Response{http.StatusUnauthorized: {ResponseProps: spec3.ResponseProps{Description: refused}}}
	swagger, err := builder.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices(services), config2)
	require.NoError(t, err)
	swagger.Definitions = handler.PruneDefaults(swagger.Definitions)

	all := restful.NewContainer()
	for _, service := range services {
		all.Add(service)
	}
	paths := mux.NewPathRecorderMux("spec")
	routes.OpenAPI{V3Config: config3}.InstallV3(all, paths)
	var root handler3.OpenAPIV3Discovery
	require.NoError(t, json.Unmarshal(get(t, paths, "/openapi/v3"), &root))
	v3 = map[string][]byte{}
	for path := range root.Paths {
		v3[path] = get(t, paths, "/openapi/v3/"+path)
	}
	return toJSON(t, swagger), v3
}

func get(t *testing.T, h http.Handler, path string) []byte {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	require.Equal(t, http.StatusOK, w.Code, path)
	return slices.Clone(w.Body.Bytes())
}

func toJSON(t *testing.T, v any) []byte {
	b, err := json.Marshal(v)
	require.NoError(t, err)
	return b
}

func etagOf(b []byte) string { return fmt.Sprintf("%X", sha512.Sum512(b)) }

func compressed(t *testing.T, b []byte) []byte {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	require.NoError(t, err)
	_, err = w.Write(b)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.Bytes()
}
