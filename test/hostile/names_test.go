package hostile

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// definitionOf returns a CRD of cluster-scoped objects that may have any fields.
func definitionOf(plural, group, version string) string {
	return fmt.Sprintf(`{"metadata":{"name":"%[1]s.%[2]s","annotations":{"api-approved.kubernetes.io":"https://example.com/pull/1"}},"spec":{"group":%[2]q,"scope":"Cluster",`+
		`"names":{"plural":%[1]q,"singular":"one","kind":"One","listKind":"OneList"},"versions":[{"name":%[3]q,"served":true,"storage":true,`+
		`"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`, plural, group, version)
}

// TestNamesThatAreTaken: rows of custom resources are stored under the CRD's group and plural name, so a CRD must not
// take a name that is in use. On e14eff4 a CRD of CRDs in version v2 is accepted, and after the creation of one object
// of that kind, discovery, OpenAPI and all requests for CRDs answer 500. An object of 'nodeports.logplane.dev' takes a
// node port. An object of 'ingresses.networking.k8s.io' shares subjects with Ingresses.
func TestNamesThatAreTaken(t *testing.T) {
	s := serve(t, "api")
	for _, d := range []struct{ plural, group, version string }{
		{"customresourcedefinitions", "apiextensions.k8s.io", "v2"}, {"apiservices", "apiregistration.k8s.io", "v2"}, {"ingresses", "networking.k8s.io", "v9"},
		{"nodeports", "logplane.dev", "v1"}, {"crdnames", "logplane.dev", "v1"}, {"things", "below.logplane.dev", "v1"}, {"things", "networking.k8s.io", "v1"},
	} {
		a := s.do(admin, http.MethodPost, crds, "application/json", definitionOf(d.plural, d.group, d.version))
		if a.Code == http.StatusCreated {
			s.do(admin, http.MethodPost, "/apis/"+d.group+"/"+d.version+"/"+d.plural, "application/json", fmt.Sprintf(`{"apiVersion":"%s/%s","kind":"One","metadata":{"name":"30000"}}`, d.group, d.version))
		}
		if a.Code != http.StatusUnprocessableEntity {
			t.Errorf("%s.%s of version %s: %d %.200s", d.plural, d.group, d.version, a.Code, a.Body)
		}
	}
	s.must(admin, http.MethodPost, crds, definitionOf("gateways", "gateway.networking.k8s.io", "v1"))
	s.must(admin, http.MethodPost, "/apis/gateway.networking.k8s.io/v1/gateways", `{"apiVersion":"gateway.networking.k8s.io/v1","kind":"One","metadata":{"name":"x"}}`)
	for _, path := range []string{"/apis", "/openapi/v2", "/openapi/v3", crds, "/apis/apiextensions.k8s.io/v1", "/apis/gateway.networking.k8s.io/v1/gateways/x"} {
		s.must(admin, http.MethodGet, path, "")
	}
	s.asOwner(tenant)
	a := s.must(admin, http.MethodPost, "/api/v1/namespaces/tenant/services", `{"metadata":{"name":"s"},"spec":{"type":"NodePort","ports":[{"port":80,"nodePort":30000}]}}`)
	require.Contains(t, string(a.Body), "30000")
}
