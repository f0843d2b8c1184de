package hostile

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/test/product"
)

// TestADeletedSecretIsInThePast checks the statements of docs/security.md about history. A user who may list a
// namespace's Secrets reads a deleted Secret at a revision at which it existed. Other users cannot read it. Anybody who
// can read the log and the bucket can read the deleted Secret, too.
func TestADeletedSecretIsInThePast(t *testing.T) {
	c := newCell(t)
	s := c.serve("api")
	s.asOwner(tenant)
	const path = "/api/v1/namespaces/tenant/secrets"
	var made metav1.PartialObjectMetadata
	require.NoError(t, json.Unmarshal(s.must(tenant, http.MethodPost, path, `{"metadata":{"name":"gone"},"stringData":{"a":"b"}}`).Body, &made))
	s.must(tenant, http.MethodDelete, path+"/gone", "")
	require.NotContains(t, string(s.must(tenant, http.MethodGet, path, "").Body), `"gone"`)

	then := path + "?resourceVersionMatch=Exact&resourceVersion=" + made.ResourceVersion
	require.Contains(t, string(s.must(tenant, http.MethodGet, then, "").Body), `"a":"Yg=="`)
	require.Equal(t, http.StatusForbidden, s.do(stranger, http.MethodGet, then, "", "").Code)

	look := product.Run(t, c.with("inspect", "get", "/secrets/tenant/gone", "--at", made.ResourceVersion)...)
	<-look.Exited
	require.Contains(t, look.Output(), "a: Yg==")
}

// TestANamespaceThatIsMadeAgain: a namespace was deleted, and another namespace was made under its name. The owner of
// the new namespace sees nothing of the old namespace, neither through the API nor with the commands that read the
// past.
func TestANamespaceThatIsMadeAgain(t *testing.T) {
	c := newCell(t)
	s := c.serve("api", c.certificate()...)
	product.Run(t, c.with("lifecycle")...)
	const path = "/api/v1/namespaces/tenant"
	s.asOwner(tenant)
	var made metav1.PartialObjectMetadata
	require.NoError(t, json.Unmarshal(s.must(tenant, http.MethodPost, path+"/secrets", `{"metadata":{"name":"earlier"},"stringData":{"a":"b"}}`).Body, &made))
	at, then := "/at/"+made.ResourceVersion+path+"/secrets", path+"/secrets?resourceVersionMatch=Exact&resourceVersion="+made.ResourceVersion
	for _, old := range []string{at, then} {
		require.Contains(t, string(s.must(tenant, http.MethodGet, old, "").Body), `"a":"Yg=="`)
	}
	s.must(admin, http.MethodDelete, path, "")
	require.Eventually(t, func() bool { return s.do(admin, http.MethodGet, path, "", "").Code == http.StatusNotFound }, requestTimeout, 50*time.Millisecond)
	s.asOwner(tenant)
	for old, code := range map[string]int{at: http.StatusForbidden, then: http.StatusGone} {
		a := s.do(tenant, http.MethodGet, old, "", "")
		require.Equal(t, code, a.Code, string(a.Body))
		require.Contains(t, string(a.Body), "reaches back to revision")
		require.Contains(t, string(s.must(admin, http.MethodGet, old, "").Body), `"a":"Yg=="`)
	}
	for _, args := range [][]string{
		{"diff", made.ResourceVersion}, {"show", "secret/earlier", "--at", made.ResourceVersion}, {"history", "secret/earlier"}, {"changes", "--from", "1"},
		{"blame", "secret/earlier"}, {"undelete", "secret/earlier", "--yes"}, {"restore", "--to", made.ResourceVersion, "--yes"}, {"undo", "--by", tenant, "--since", "1", "--yes"},
	} {
		told := product.Run(t, append(args, "--server", s.URL(), "--insecure-skip-tls-verify", "--token", tenant, "--namespace", tenant)...)
		<-told.Exited
		require.NotRegexp(t, "Yg==|create.*earlier|kind: Secret|does not know you", told.Output(), "%s", args)
	}
	require.NotContains(t, string(s.must(tenant, http.MethodGet, path+"/secrets", "").Body), "earlier")
}
