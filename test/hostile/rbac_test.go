package hostile

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOneTenantsBindingsCostNoOther: 4,300 RoleBindings in the owner's namespace.
// On e14eff4 every request in it decodes all of them, 10 MiB of garbage and 40 ms,
// and pushes everybody's objects out of one small cache, so that others pay, too.
func TestOneTenantsBindingsCostNoOther(t *testing.T) {
	s := serve(t, "api")
	s.asOwner(owner)
	s.asOwner(tenant)
	gets := func(user string) (bytesEach int) {
		const n = 20
		path := "/api/v1/namespaces/" + user + "/configmaps"
		s.must(user, http.MethodGet, path, "")
		before := s.allocated()
		for range n {
			s.must(user, http.MethodGet, path, "")
		}
		return int(s.allocated()-before) / n
	}
	quiet := max(gets(owner), gets(tenant))
	for i := range 4300 {
		s.must(admin, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/namespaces/owner/rolebindings", fmt.Sprintf(
			`{"metadata":{"name":"many-%d"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-%d"}],`+
				`"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"view"}}`, i, i))
	}
	for range 3 { // by turns: what one reads may push out what the other needs
		require.Less(t, gets(owner), 2*quiet+1<<20)
		require.Less(t, gets(tenant), 2*quiet+1<<20)
	}
}

// TestManyBindingsToOneRoleAreOne: who binds himself to 'admin' 500 times and asks what he may
// do is told once. On e14eff4 he is told 500 times, in 100 MiB if he does it 10,000 times.
func TestManyBindingsToOneRoleAreOne(t *testing.T) {
	s := serve(t, "api")
	s.asOwner(owner)
	for i := range 500 {
		s.must(owner, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/namespaces/owner/rolebindings", fmt.Sprintf(
			`{"metadata":{"name":"again-%d"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"owner"}],`+
				`"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"admin"}}`, i))
	}
	told := s.must(owner, http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", `{"spec":{"namespace":"owner"}}`)
	require.Contains(t, string(told.Body), `"configmaps"`)
	require.Less(t, len(told.Body), 1<<20)
}
