package apiserver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/apiserver/access"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/kubestore/kubestoretest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// twoServers makes two processes of one cell with little room in the root, and a projector's projection of the cell.
func twoServers(t testing.TB, change ...func(*Config)) (one, other *Server, projector *projection.Projection) {
	t.Helper()
	log, bucket := eventlogtest.Log(t), memory.New()
	process := func() kubestore.Cell {
		return kubestoretest.Cell(t, projection.Config{Log: log, Bucket: bucket, InlineBytes: 3000})
	}
	server := func() *Server {
		c := Config{Cell: process()}
		for _, f := range change {
			f(&c)
		}
		s, err := New(c)
		require.NoError(t, err)
		return s
	}
	return server(), server(), process().Projection
}

// TestRevokedIsRefused: many requests run on two processes. A right applies to every request that begins after the
// right's grant was acknowledged, and to no request that begins after the revocation was acknowledged.
func TestRevokedIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.csv")
	require.NoError(t, os.WriteFile(path, []byte("root-token,root,1,system:masters\nann-token,ann,2\n"), 0o600))
	one, other, projector := twoServers(t, func(c *Config) {
		c.Authentication, c.Authorization = access.Authentication{TokenFile: path}, access.Authorization{Mode: "RBAC"}
	})
	one.must(t, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"default"}}`}.as("root"))
	one.must(t, 201, request{method: "POST", path: rbacPath + "/clusterroles", body: `{"metadata":{"name":"reader"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["list"]}]}`}.as("root"))
	list := request{method: "GET", path: configMaps}.as("ann")
	ctx, stop := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	for i := range 6 {
		asking.Go(func() {
			for ctx.Err() == nil {
				code := list.do(t, []*Server{one, other}[i%2]).code
				if code != 200 && code != 403 {
					t.Errorf("code %d", code)
				}
			}
		})
	}
	defer asking.Wait()
	defer stop()
	const binding = `{"metadata":{"name":"ann"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"reader"},"subjects":[{"kind":"User","name":"ann","apiGroup":"rbac.authorization.k8s.io"}]}`
	for n := range 40 {
		kind := []string{"/namespaces/default/rolebindings", "/clusterrolebindings"}[n%2]
		one.must(t, 201, request{method: "POST", path: rbacPath + kind, body: binding}.as("root"))
		other.must(t, 200, list)
		one.must(t, 200, list)
		if n%5 == 0 {
			_, err := projector.Commit(t.Context())
			require.NoError(t, err)
		}
		other.must(t, 200, request{method: "DELETE", path: rbacPath + kind + "/ann"}.as("root"))
		one.must(t, 403, list)
		other.must(t, 403, list)
	}
}

// TestUnreadableRulesAreNoRefusal: while the bucket does not answer, a request is answered 503. Once the bucket
// answers, users have their rights.
func TestUnreadableRulesAreNoRefusal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.csv")
	require.NoError(t, os.WriteFile(path, []byte("root-token,root,1,system:masters\nann-token,ann,2\n"), 0o600))
	guarded := func(c *Config) {
		c.Authentication, c.Authorization = access.Authentication{TokenFile: path}, access.Authorization{Mode: "RBAC"}
	}
	log, bucket := eventlogtest.Log(t), memory.Strict(t)
	process := func() *Server {
		p, err := projection.Open(projection.Config{Log: log, Bucket: bucket, InlineBytes: 1})
		require.NoError(t, err)
		c := Config{Cell: kubestore.Cell{Log: log, Projection: p, Cluster: "main"}}
		guarded(&c)
		s, err := New(c)
		require.NoError(t, err)
		return s
	}
	s := process()
	require.NoError(t, s.Bootstrap(t.Context()))
	s.must(t, 201, request{method: "POST", path: rbacPath + "/namespaces/default/rolebindings", body: `{"metadata":{"name":"ann"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"edit"},"subjects":[{"kind":"User","name":"ann","apiGroup":"rbac.authorization.k8s.io"}]}`}.as("root"))
	_, err := s.config.Cell.Projection.Commit(t.Context())
	require.NoError(t, err)

	cold := process()
	_, err = cold.config.Cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	bucket.Inject(func(op memory.Op, _ string) memory.Fault { return memory.Fails })
	failed := cold.must(t, 503, request{method: "GET", path: configMaps}.as("ann"))
	require.Equal(t, "1", failed.header.Get("Retry-After"))
	bucket.Inject(nil)
	cold.must(t, 200, request{method: "GET", path: configMaps}.as("ann"))
}

// TestUndecodableRulesHarmNobody: a binding and a role that cannot be decoded grant nothing, and other rules still
// grant.
func TestUndecodableRulesHarmNobody(t *testing.T) {
	s := newGuarded(t)
	require.NoError(t, s.Bootstrap(t.Context()))
	bind := func(name, role string) request {
		return request{method: "POST", path: rbacPath + "/clusterrolebindings", body: `{"metadata":{"name":"` + name + `"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"` + role + `"},"subjects":[{"kind":"User","name":"ann","apiGroup":"rbac.authorization.k8s.io"}]}`}.as("root")
	}
	s.must(t, 201, bind("first", "broken"))
	spoil := func(resource, name string) {
		s.store(t, schema.GroupResource{Group: rbacv1.GroupName, Resource: resource}, "/"+resource, name, "application/vnd.kubernetes.protobuf", []byte("junk"))
	}
	list := request{method: "GET", path: configMaps}.as("ann")
	spoil("clusterroles", "broken")
	spoil("clusterrolebindings", "before")
	require.Contains(t, s.must(t, 403, list).body, "clusterroles/broken")
	s.must(t, 201, bind("second", "view"))
	spoil("clusterrolebindings", "zz")
	s.must(t, 200, list)
}

// TestManyBindingsToOneRole: if a user binds themselves to one role a thousand times, the rules of the role count once.
func TestManyBindingsToOneRole(t *testing.T) {
	s := newGuarded(t)
	require.NoError(t, s.Bootstrap(t.Context()))
	bind := func(name, role string) {
		s.must(t, 201, request{method: "POST", path: rbacPath + "/namespaces/default/rolebindings", body: `{"metadata":{"name":"` + name + `"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"` + role + `"},"subjects":[{"kind":"User","name":"ann","apiGroup":"rbac.authorization.k8s.io"}]}`}.as("root"))
	}
	bind("last", "edit")
	rules := func() int {
		got := s.must(t, 201, request{method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body: `{"spec":{"namespace":"default"}}`}.as("ann"))
		return len(fieldOf(got.object(t), "status.resourceRules").([]any))
	}
	once := rules()
	for n := range 100 {
		bind(fmt.Sprint("many-", n), "view")
	}
	view, err := s.rules.Resolver().GetRoleReferenceRules(t.Context(), rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"}, "")
	require.NoError(t, err)
	require.Equal(t, once+len(view), rules())
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`}.as("ann"))
}
