package hostile

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCopiesOfAJSONPatchAreBounded: each 'copy' of the whole object doubles the object, so a patch of 2 KB makes an
// object 2^40 times as large. On e14eff4 the process runs out of memory and dies.
func TestCopiesOfAJSONPatchAreBounded(t *testing.T) {
	s := serve(t, "api")
	s.asOwner(tenant)
	path := "/api/v1/namespaces/tenant/configmaps"
	s.must(tenant, http.MethodPost, path, `{"metadata":{"name":"victim"},"data":{"a":"b"}}`)
	a := s.do(tenant, http.MethodPatch, path+"/victim", "application/json-patch+json", copies(40))
	require.Equal(t, http.StatusUnprocessableEntity, a.Code, string(a.Body))
	s.must(admin, http.MethodGet, "/api/v1/namespaces/tenant/configmaps/victim", "")
}
