package apiserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/description/spec"
)

// definition is a CRD as it is stored.
func definition(plural, group string, versions ...string) *apiextensionsv1.CustomResourceDefinition {
	names := apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: "one", Kind: "One", ListKind: "OneList"}
	crd := &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group, UID: "u", Annotations: map[string]string{"api-approved.kubernetes.io": "https://example.com/pull/1"}},
		Spec:       apiextensionsv1.CustomResourceDefinitionSpec{Group: group, Names: names, Scope: apiextensionsv1.ClusterScoped},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{AcceptedNames: names, Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{
			{Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue}, {Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}},
	}
	free := true
	for i, name := range versions {
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Name: name, Served: true, Storage: i == 0,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &free}}})
		crd.Status.StoredVersions = versions[:1]
	}
	return crd
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	require.NoError(t, err)
	return string(b)
}

// store appends a row without any check, as an older version of Logplane could have done.
func (s *Server) store(t *testing.T, resource schema.GroupResource, prefix, name, contentType string, body []byte) {
	t.Helper()
	view, err := s.config.Cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	at, err := view.State(t.Context(), eventlog.Key{Cluster: "main", Group: resource.Group, Resource: resource.Resource, Prefix: prefix, Name: name})
	require.NoError(t, err)
	_, err = view.Append(t.Context(), uuid.NewString(), at.Put(contentType, body, 0))
	require.NoError(t, err)
}

// storeDefinition stores a CRD that a request could not create.
func (s *Server) storeDefinition(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	s.store(t, customresources.Resource, "/"+customresources.Prefix, crd.Name, runtime.ContentTypeProtobuf, encodeDefinition(t, crd))
}

// encodeDefinition returns the CRD as it is stored.
func encodeDefinition(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) []byte {
	t.Helper()
	codec := crdserver.Codecs.EncoderForVersion(protobuf.NewSerializer(crdserver.Scheme, crdserver.Scheme), apiextensionsv1.SchemeGroupVersion)
	body, err := runtime.Encode(codec, crd)
	require.NoError(t, err)
	return body
}

const crdsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

func TestReservedDefinitions(t *testing.T) {
	s := newServer(t)
	create := func(crd *apiextensionsv1.CustomResourceDefinition) answer {
		return request{method: "POST", path: crdsPath, body: asJSON(t, crd)}.do(t, s)
	}
	for _, c := range []struct {
		plural, group, version string
		why                    string // empty if the definition is allowed
	}{
		{"customresourcedefinitions", "apiextensions.k8s.io", "v2", "built in, in every version"},
		{"apiservices", "apiregistration.k8s.io", "v2", "built in, in every version"},
		{"ingresses", "networking.k8s.io", "v9", "built in, in every version"},
		{"things", "networking.k8s.io", "v1", "version v1 of group networking.k8s.io is built in"},
		{"nodeports", "logplane.dev", "v1", "reserved"},
		{"things", "deep.below.logplane.dev", "v1", "reserved"},
		{"things", "networking.k8s.io", "v9alpha1", ""},
		{"gateways", "gateway.networking.k8s.io", "v1", ""},
		{"volumesnapshots", "snapshot.storage.k8s.io", "v1", ""},
		{"services", "example.com", "v1", ""},
		{"nodeports", "notlogplane.dev", "v1", ""},
	} {
		crd := definition(c.plural, c.group, c.version)
		a := create(crd)
		path := "/apis/" + c.group + "/" + c.version + "/" + c.plural
		if c.why == "" {
			require.Equal(t, 201, a.code, a.body)
			s.must(t, 201, request{method: "POST", path: path, body: fmt.Sprintf(`{"apiVersion":"%s/%s","kind":"One","metadata":{"name":"x"}}`, c.group, c.version)})
			continue
		}
		require.Equal(t, 422, a.code, a.body)
		require.Contains(t, a.object(t)["message"], c.why)
	}
	// A built-in version may not be added either, but an already stored definition may be changed.
	crd := definition("things", "networking.k8s.io", "v9alpha1", "v1")
	a := request{method: "PATCH", path: crdsPath + "/" + crd.Name, contentType: "application/merge-patch+json", body: asJSON(t, map[string]any{"spec": crd.Spec})}.do(t, s)
	require.Equal(t, 422, a.code, a.body)
	s.storeDefinition(t, crd)
	s.must(t, 200, request{method: "PATCH", path: crdsPath + "/" + crd.Name, contentType: "application/merge-patch+json", body: `{"metadata":{"labels":{"a":"b"}}}`})
}

// A cell may contain definitions of reserved groups and their objects, from the time before such definitions were
// refused. Everything else is served.
func TestReservedDefinitionsFromBefore(t *testing.T) {
	s := newServer(t)
	createWidgetCRD(t, s)
	over := definition("customresourcedefinitions", "apiextensions.k8s.io", "v2")
	ports := definition("nodeports", "logplane.dev", "v1")
	s.storeDefinition(t, over)
	s.storeDefinition(t, ports)
	instance := func(version, name string) []byte {
		b, err := direct.Marshal(map[string]any{"apiVersion": version, "kind": "One", "metadata": map[string]any{"name": name}})
		require.NoError(t, err)
		return append([]byte("\xd9\xd9\xf7"), b...)
	}
	s.store(t, customresources.Resource, "/"+customresources.Prefix, "x", runtime.ContentTypeCBOR, instance("apiextensions.k8s.io/v2", "x"))
	s.store(t, schema.GroupResource{Group: "logplane.dev", Resource: "nodeports"}, "/logplane.dev/nodeports", "x", runtime.ContentTypeCBOR, instance("logplane.dev/v1", "x"))

	for _, path := range []string{"/api", "/apis", "/apis/apiextensions.k8s.io/v1", "/apis/example.com/v1", "/openapi/v2", "/openapi/v3", "/openapi/v3/apis/example.com/v1",
		"/apis/example.com/v1/widgets", crdsPath + "/widgets.example.com"} {
		s.must(t, 200, request{method: "GET", path: path})
	}
	require.Len(t, fieldOf(s.must(t, 200, request{method: "GET", path: crdsPath}).object(t), "items"), 3, "the definitions, and nothing else")
	require.Len(t, fieldOf(s.must(t, 200, request{method: "GET", path: crdsPath + "?limit=1"}).object(t), "items"), 1)
	s.must(t, 404, request{method: "GET", path: crdsPath + "/x"})
	for _, path := range []string{"/apis/apiextensions.k8s.io/v2/customresourcedefinitions", "/apis/apiextensions.k8s.io/v2", "/apis/logplane.dev/v1/nodeports", "/apis/logplane.dev/v1", "/apis/logplane.dev"} {
		s.must(t, 404, request{method: "GET", path: path})
	}
	s.must(t, 201, request{method: "POST", path: crdsPath, body: asJSON(t, definition("more", "example.com", "v1"))})
	s.must(t, 200, request{method: "DELETE", path: crdsPath + "/" + over.Name})
	s.must(t, 200, request{method: "DELETE", path: crdsPath + "/" + ports.Name})
}

// A row that cannot be decoded removes only the rights that the row would grant. A CRD that cannot be decoded does not
// affect the other CRDs.
func TestOneBadRow(t *testing.T) {
	s := newGuarded(t)
	root := func(path, body string) { s.must(t, 201, request{method: "POST", path: path, body: body}.as("root")) }
	s.must(t, 201, request{method: "POST", path: crdsPath, body: widgetCRD, contentType: "application/yaml"}.as("root"))
	root(rbacPath+"/clusterroles", `{"metadata":{"name":"reader"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["list"]}]}`)
	root(rbacPath+"/namespaces/default/rolebindings", `{"metadata":{"name":"a"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"reader"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"ann"}]}`)
	rbac := func(resource string) schema.GroupResource {
		return schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: resource}
	}
	s.store(t, rbac("clusterrolebindings"), "/clusterrolebindings", "bad", runtime.ContentTypeProtobuf, []byte("k8s\x00garbage"))
	s.store(t, rbac("clusterroles"), "/clusterroles", "bad", runtime.ContentTypeProtobuf, []byte("k8s\x00garbage"))
	s.store(t, customresources.Resource, "/"+customresources.Prefix, "bad.example.com", runtime.ContentTypeProtobuf, []byte("k8s\x00garbage"))
	// The rest of this CRD can be decoded, but its schema cannot.
	damaged := definition("damaged", "example.com", "v1")
	damaged.Spec.Versions[0].Schema.OpenAPIV3Schema.Description = "the schema"
	whole := encodeDefinition(t, damaged)
	broken := bytes.Replace(whole, []byte("\x22\x0athe schema"), []byte("\x20\x0athe schema"), 1) // another wire type
	require.NotEqual(t, whole, broken)
	s.store(t, customresources.Resource, "/"+customresources.Prefix, damaged.Name, runtime.ContentTypeProtobuf, broken)
	s.must(t, 200, request{method: "GET", path: configMaps}.as("ann"))
	s.must(t, 403, request{method: "GET", path: "/api/v1/namespaces/default/secrets"}.as("ann"))
	for _, path := range []string{"/apis", "/openapi/v2", "/openapi/v3", "/openapi/v3/apis/example.com/v1", "/apis/example.com/v1/widgets"} {
		s.must(t, 200, request{method: "GET", path: path}.as("root"))
	}
}

// No built-in resource shares a prefix with a custom resource. Either the first part of the prefix is not a domain, or
// a CRD of that name is refused.
func TestPrefixesAreApart(t *testing.T) {
	s := newServer(t)
	groups := spec.Groups()
	for _, g := range groups {
		for _, v := range g.Versions {
			for _, r := range v.Resources {
				if strings.Contains(r.Name, "/") {
					continue
				}
				prefix := s.stores.Prefix(schema.GroupResource{Group: g.Name, Resource: r.Name})
				require.False(t, strings.Contains(strings.Split(prefix, "/")[0], ".") && !customresources.Reserved(g.Name, r.Name), prefix)
			}
		}
	}
}
