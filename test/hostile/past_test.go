package hostile

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/test/product"
)

// TestADeletedSecretIsInThePast: docs/security.md is right about history. A user
// who may list a namespace's Secrets reads a deleted one at a revision at which it
// existed. Other users do not. Whoever has the log and the bucket reads it as well.
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
