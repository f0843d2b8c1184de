package hostile

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/test/product"
)

// TestRightsAreNotEscalated: a user who may do everything in one namespace gains no rights elsewhere. This held on
// e14eff4 too.
func TestRightsAreNotEscalated(t *testing.T) {
	s := serve(t, "watcher")
	s.asOwner(owner)
	s.asOwner(tenant)
	s.must(owner, http.MethodPost, "/api/v1/namespaces/owner/secrets", `{"metadata":{"name":"theirs"},"stringData":{"a":"b"}}`)
	const rbac, ours = "/apis/rbac.authorization.k8s.io/v1", "/apis/rbac.authorization.k8s.io/v1/namespaces/tenant"
	s.must(tenant, http.MethodPost, ours+"/roles", `{"metadata":{"name":"mine"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["get"]}]}`)
	role := `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"mine"},"rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}]}`
	binding := func(kind, name string) string {
		return `{"metadata":{"name":"more"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"tenant"}],"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"` + kind + `","name":"` + name + `"}}`
	}
	for _, attempt := range []struct{ method, path, contentType, body string }{
		{http.MethodGet, "/api/v1/namespaces/owner/secrets/theirs", "", ""},
		{http.MethodGet, "/api/v1/namespaces/owner/secrets?watch=true", "", ""},
		{http.MethodGet, "/api/v1/watch/namespaces/owner/secrets", "", ""},
		{http.MethodGet, "/api/v1/secrets", "", ""},
		{http.MethodGet, "/api/v1/secrets?fieldSelector=metadata.namespace=tenant", "", ""},
		{http.MethodDelete, "/api/v1/namespaces/owner/secrets", "", ""},
		{http.MethodPost, rbac + "/clusterroles", "application/json", role},
		{http.MethodPost, rbac + "/clusterrolebindings", "application/json", binding("ClusterRole", "cluster-admin")},
		{http.MethodPost, ours + "/rolebindings", "application/json", binding("ClusterRole", "cluster-admin")},
		{http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/namespaces/owner/rolebindings", "application/json", binding("ClusterRole", "admin")},
		{http.MethodPut, ours + "/roles/mine", "application/json", role},
		{http.MethodPatch, ours + "/roles/mine", "application/merge-patch+json", role},
		{http.MethodPatch, ours + "/roles/mine?fieldManager=me&force=true", "application/apply-patch+yaml", role},
		{http.MethodPatch, ours + "/roles/mine", "application/json-patch+json", `[{"op":"add","path":"/rules/0/verbs/-","value":"*"},{"op":"replace","path":"/rules/0/resources/0","value":"*"}]`},
		{http.MethodPatch, rbac + "/clusterroles/view", "application/merge-patch+json", `{"metadata":{"labels":{"rbac.authorization.k8s.io/aggregate-to-admin":"true"}}}`},
		{http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", "application/json", `{"spec":{"user":"owner","resourceAttributes":{"verb":"get","resource":"secrets"}}}`},
		{http.MethodPost, "/apis/authentication.k8s.io/v1/tokenreviews", "application/json", `{"spec":{"token":"owner"}}`},
		{http.MethodPost, "/api/v1/namespaces", "application/json", `{"metadata":{"name":"more"}}`},
		{http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "application/json", `{}`},
		{http.MethodGet, "/metrics", "", ""},
	} {
		a := s.do(tenant, attempt.method, attempt.path, attempt.contentType, attempt.body)
		require.Equal(t, http.StatusForbidden, a.Code, "%s %s: %s", attempt.method, attempt.path, a.Body)
	}
	for header, value := range map[string]string{"Impersonate-User": "admin", "Impersonate-Group": "system:masters", "X-Remote-User": "admin", "X-Remote-Group": "system:masters"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+"/api/v1/namespaces/owner/secrets/theirs", nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+tenant)
		r.Header.Set(header, value)
		a, err := client.Do(r)
		require.NoError(t, err)
		require.NoError(t, a.Body.Close())
		require.GreaterOrEqual(t, a.StatusCode, http.StatusBadRequest, header)
	}
}

// TestAnOpenWatchOutlivesItsRights checks the statements of docs/security.md about open watches. This held on e14eff4
// too.
func TestAnOpenWatchOutlivesItsRights(t *testing.T) {
	s := serve(t, "watcher")
	s.asOwner(tenant)
	const configMaps = "/api/v1/namespaces/tenant/configmaps"
	var list metav1.PartialObjectMetadataList
	require.NoError(t, json.Unmarshal(s.must(tenant, http.MethodGet, configMaps, "").Body, &list))
	ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL()+configMaps+"?watch=true&resourceVersion="+list.ResourceVersion, nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+tenant)
	watch, err := http.DefaultTransport.RoundTrip(r)
	require.NoError(t, err)
	defer watch.Body.Close()
	require.Equal(t, http.StatusOK, watch.StatusCode)

	s.must(admin, http.MethodDelete, "/apis/rbac.authorization.k8s.io/v1/namespaces/tenant/rolebindings/owner", "")
	require.Equal(t, http.StatusForbidden, s.do(tenant, http.MethodGet, configMaps, "", "").Code)
	require.Equal(t, http.StatusForbidden, s.do(tenant, http.MethodGet, configMaps+"?watch=true", "", "").Code)
	s.must(admin, http.MethodPost, configMaps, `{"metadata":{"name":"later"}}`)
	var event struct{ Object metav1.PartialObjectMetadata }
	require.NoError(t, json.NewDecoder(watch.Body).Decode(&event))
	require.Equal(t, "later", event.Object.Name)
}

// TestInsidesAreNotServed: nobody, not even an administrator, can read the process's profiles and internals. Flags and
// status are shown only to users with the right to read them, and show no password.
func TestInsidesAreNotServed(t *testing.T) {
	s := serve(t, "api")
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile", "/debug/flags/v", "/debug/vars", "/logs/", "/configz"} {
		require.Equal(t, http.StatusNotFound, s.do(admin, http.MethodGet, path, "", "").Code, path)
	}
	for _, path := range []string{"/flagz", "/statusz"} {
		require.Equal(t, http.StatusForbidden, s.do(tenant, http.MethodGet, path, "", "").Code, path)
		require.Equal(t, http.StatusOK, s.do(admin, http.MethodGet, path, "", "").Code, path)
	}
	flags := string(s.do(admin, http.MethodGet, "/flagz", "", "").Body)
	require.Regexp(t, `(?m)^nats[:= ]+CLASSIFIED$`, flags)
	require.Regexp(t, `(?m)^token-auth-file[:= ]+.+$`, flags)
}

// TestFilesAreTheirOwnersAlone: other users of the machine cannot read any file that a process writes. This held on
// e14eff4 too.
func TestFilesAreTheirOwnersAlone(t *testing.T) {
	shared := t.TempDir()
	dev := &target{t, product.Dev(t, filepath.Join(shared, "data"))}
	dev.must(nobody, http.MethodPost, "/api/v1/namespaces/default/secrets", `{"metadata":{"name":"a"}}`)
	dev.Stop()
	c := newCell(t)
	c.where = append(c.where, "--block-cache-folder", filepath.Join(shared, "cache"))
	s := c.serve("api")
	s.must(admin, http.MethodGet, "/api/v1/secrets", "")
	for _, folder := range []string{filepath.Join(shared, "data"), filepath.Join(shared, "cache"), strings.TrimPrefix(c.where[slices.Index(c.where, "--bucket")+1], "file://")} {
		info, err := os.Stat(folder)
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, "%s is %s", folder, info.Mode())
	}
}
