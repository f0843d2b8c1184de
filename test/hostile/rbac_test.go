package hostile

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOneTenantsBindingsCostNoOther: the owner's namespace has 4,300 RoleBindings. On e14eff4 every request in that
// namespace decodes all RoleBindings: this takes 40 ms and makes 10 MiB of garbage. Each request also evicts all users'
// objects from one small cache, so other users pay, too.
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
	for range 3 { // in turn, because one user's requests may evict objects that the other user's requests need
		require.Less(t, gets(owner), 2*quiet+1<<20)
		require.Less(t, gets(tenant), 2*quiet+1<<20)
	}
}

// TestManyBindingsToOneRoleAreOne: a user who is bound to 'admin' 500 times sees the role's rules once in the list of
// the user's rights. On e14eff4 the list has them 500 times, and after 10,000 bindings the list takes 100 MiB.
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
