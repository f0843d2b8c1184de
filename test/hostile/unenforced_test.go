package hostile

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestWhatIsNotEnforcedSaysSo: each create, update or patch of a flow schema or a priority level returns a warning,
// which says that the object has no effect in Logplane. If the type has conditions, a condition says the same. On
// e14eff4 all such writes are accepted without a warning.
func TestWhatIsNotEnforcedSaysSo(t *testing.T) {
	s := serve(t, "api")
	const flows = "/apis/flowcontrol.apiserver.k8s.io/v1/"
	for _, object := range []struct{ path, rest, warning string }{
		{flows + "flowschemas", `,"spec":{"priorityLevelConfiguration":{"name":"a"},"matchingPrecedence":1000}`, "does not apply"},
		{flows + "prioritylevelconfigurations", `,"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":1,"limitResponse":{"type":"Reject"}}}`, "does not apply"},
	} {
		body := `{"metadata":{"name":"a"}` + object.rest + `}`
		one := object.path + "/a"
		applied := `{"apiVersion":"` + strings.TrimPrefix(strings.TrimPrefix(strings.Split(object.path, "/v1")[0]+"/v1", "/apis/"), "/api/") + `","kind":"` + kindOf(t, s, object.path) + `","metadata":{"name":"b"}` + object.rest + `}`
		for _, write := range []struct{ method, path, contentType, body string }{
			{http.MethodPost, object.path + "?dryRun=All", "application/json", body},
			{http.MethodPost, object.path, "application/json", body},
			{http.MethodPut, one, "application/json", ""},
			{http.MethodPatch, one, "application/merge-patch+json", `{"metadata":{"labels":{"a":"b"}}}`},
			{http.MethodPatch, object.path + "/b?fieldManager=me", "application/apply-patch+yaml", applied},
		} {
			if write.method == http.MethodPut { // the object exists now
				write.body = string(s.must(admin, http.MethodGet, one, "").Body)
			}
			a := s.do(admin, write.method, write.path, write.contentType, write.body)
			require.Less(t, a.Code, 300, "%s %s: %s", write.method, write.path, a.Body)
			require.Len(t, a.Header.Values("Warning"), 1, "%s %s", write.method, write.path)
			require.Contains(t, a.Header.Get("Warning"), object.warning)
		}
		require.Empty(t, s.must(admin, http.MethodGet, one, "").Header.Values("Warning"), "who reads is not warned")
	}
	s.must(admin, http.MethodPost, "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"as-if-there-were-none"}}`)

	for _, path := range []string{flows + "flowschemas/", flows + "prioritylevelconfigurations/"} {
		for _, name := range []string{"a", "b"} {
			var object, after struct {
				Metadata metav1.ObjectMeta
				Status   struct{ Conditions []metav1.Condition }
			}
			found := s.must(admin, http.MethodGet, path+name, "")
			require.NoError(t, json.Unmarshal(found.Body, &object))
			condition := meta.FindStatusCondition(object.Status.Conditions, "Enforced")
			require.NotNil(t, condition, path)
			require.Equal(t, metav1.ConditionFalse, condition.Status)
			// An update with the same content writes nothing.
			require.NoError(t, json.Unmarshal(s.must(admin, http.MethodPut, path+name, string(found.Body)).Body, &after))
			require.Equal(t, object.Metadata.ResourceVersion, after.Metadata.ResourceVersion)
		}
	}
}

// kindOf reads the kind from discovery.
func kindOf(t *testing.T, s *target, path string) string {
	t.Helper()
	version, resource, _ := strings.Cut(path, "/v1/")
	resource = resource[strings.LastIndexByte(resource, '/')+1:]
	var list metav1.APIResourceList
	require.NoError(t, json.Unmarshal(s.must(admin, http.MethodGet, version+"/v1", "").Body, &list))
	for _, r := range list.APIResources {
		if r.Name == resource {
			return r.Kind
		}
	}
	t.Fatalf("no resource %s", resource)
	return ""
}

// TestPodSecurityIsEnforced: a namespace's labels make the server refuse Pods, or warn about them. On e14eff4 the
// labels do nothing.
func TestPodSecurityIsEnforced(t *testing.T) {
	s := serve(t, "api")
	namespace := func(name, label string) {
		s.must(admin, http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"`+name+`","labels":{"pod-security.kubernetes.io/`+label+`":"baseline"}}}`)
	}
	namespace("strict", "enforce")
	namespace("warned", "warn")
	unsafe := `{"metadata":{"name":"p"},"spec":{"hostNetwork":true,"containers":[{"name":"c","image":"i"}]}}`
	refused := s.do(admin, http.MethodPost, "/api/v1/namespaces/strict/pods", "application/json", unsafe)
	require.Equal(t, http.StatusForbidden, refused.Code, string(refused.Body))
	require.Contains(t, refused.status(t).Message, `violates PodSecurity "baseline:latest"`)
	s.must(admin, http.MethodPost, "/api/v1/namespaces/strict/pods", `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
	require.Contains(t, s.must(admin, http.MethodPost, "/api/v1/namespaces/warned/pods", unsafe).Header.Get("Warning"), "would violate PodSecurity")
	late := s.do(admin, http.MethodPatch, "/api/v1/namespaces/warned", "application/merge-patch+json", `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"baseline"}}}`)
	require.Equal(t, http.StatusOK, late.Code, string(late.Body))
	require.Contains(t, strings.Join(late.Header.Values("Warning"), " "), "existing pods in namespace", "the Pod that is there already")
}
