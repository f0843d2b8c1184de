package apiserver

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/aggregation"
	"github.com/logplane/logplane/internal/kubestore/kubestoretest"
	"github.com/logplane/logplane/projection"
)

// bootstrapped serves a fresh cell with everything that Bootstrap writes.
func bootstrapped(t testing.TB, change ...func(*Config)) *Server {
	t.Helper()
	c := Config{Cell: kubestoretest.Cell(t, projection.Config{})}
	for _, f := range change {
		f(&c)
	}
	s, err := New(c)
	require.NoError(t, err)
	require.NoError(t, s.Bootstrap(t.Context()))
	return s
}

// TestBootstrapSaysWhoItIs: 'init' is the author of the objects that every cluster has.
func TestBootstrapSaysWhoItIs(t *testing.T) {
	s := bootstrapped(t)
	require.Equal(t, eventlog.Author{User: "system:logplane:init"}, s.lastEvent(t).Author)
}

// eventsOf counts the events of each resource in the log, without barriers.
func eventsOf(t testing.TB, s *Server) map[string]int {
	t.Helper()
	ctx := context.Background()
	bounds, err := s.config.Cell.Log.Head(ctx)
	require.NoError(t, err)
	count := map[string]int{}
	require.NoError(t, s.config.Cell.Log.Tail(ctx, bounds.First-1, bounds.Head, func(e eventlog.Event) error {
		if e.Op != eventlog.Barrier {
			count[e.Key.Resource]++
		}
		return nil
	}))
	return count
}

func TestBootstrapOneEventPerObject(t *testing.T) {
	s := bootstrapped(t)
	first := eventsOf(t, s)
	versions := aggregation.Builtin()
	require.Equal(t, map[string]int{
		"namespaces":          4,
		"serviceaccounts":     4,
		"clusterroles":        len(bootstrappolicy.ClusterRoles()) + 2 + len(bootstrappolicy.ControllerRoles()),
		"clusterrolebindings": len(bootstrappolicy.ClusterRoleBindings()) + 1 + len(bootstrappolicy.ControllerRoleBindings()),
		"roles":               first["roles"],
		"rolebindings":        first["rolebindings"],
		"priorityclasses":     2,
		"servicecidrs":        1,
		"services":            1,
		"ipaddresses":         1,
		"apiservices":         len(versions),
		"bootstraps":          1,
	}, first)
	require.Positive(t, first["roles"])
	require.NoError(t, s.Bootstrap(t.Context()))
	require.Equal(t, first, eventsOf(t, s), "a second call writes nothing")
}

func TestBootstrapAtOnce(t *testing.T) {
	cell := kubestoretest.Cell(t, projection.Config{})
	var running sync.WaitGroup
	for range 4 {
		s, err := New(Config{Cell: cell})
		require.NoError(t, err)
		running.Go(func() { require.NoError(t, s.Bootstrap(context.Background())) })
	}
	running.Wait()
	s, err := New(Config{Cell: cell})
	require.NoError(t, err)
	require.Equal(t, 4, eventsOf(t, s)["namespaces"], "each object is added once")
}

// TestBootstrapObjectsAreValid puts every object back unchanged, which must pass validation. Nothing is appended,
// because the registry encodes each object to the stored bytes.
func TestBootstrapObjectsAreValid(t *testing.T) {
	s := bootstrapped(t)
	before := eventsOf(t, s)
	for _, list := range []string{
		"/api/v1/namespaces", "/api/v1/serviceaccounts", "/api/v1/services",
		"/apis/rbac.authorization.k8s.io/v1/clusterroles", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
		"/apis/rbac.authorization.k8s.io/v1/roles", "/apis/rbac.authorization.k8s.io/v1/rolebindings",
		"/apis/scheduling.k8s.io/v1/priorityclasses",
		"/apis/networking.k8s.io/v1/servicecidrs", "/apis/networking.k8s.io/v1/ipaddresses",
		apiServices,
	} {
		putBackAll(t, s, list)
	}
	require.Equal(t, before, eventsOf(t, s))
}

func putBackAll(t *testing.T, s *Server, list string) {
	t.Helper()
	answer := request{method: "GET", path: list}.do(t, s)
	require.Equal(t, 200, answer.code, answer.body)
	items, _ := answer.object(t)["items"].([]any)
	require.NotEmpty(t, items, list)
	for _, item := range items {
		object := item.(map[string]any)
		path := list
		if namespace, ok := fieldOf(object, "metadata.namespace").(string); ok {
			path = list[:lastSlash(list)] + "/namespaces/" + namespace + list[lastSlash(list):]
		}
		path += "/" + fieldOf(object, "metadata.name").(string)
		got := request{method: "GET", path: path}.do(t, s)
		require.Equal(t, 200, got.code, path)
		put := request{method: "PUT", path: path, body: got.body}.do(t, s)
		require.Equal(t, 200, put.code, put.body)
	}
}

func lastSlash(s string) int {
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == '/' {
			return i
		}
	}
	return -1
}

// TestBootstrapAgain: an object that a user deleted stays deleted within one version, and comes back with the next
// version.
func TestBootstrapAgain(t *testing.T) {
	s := bootstrapped(t)
	roles := s.client.RbacV1().ClusterRoles()
	require.NoError(t, roles.Delete(t.Context(), "system:heapster", metav1.DeleteOptions{}))
	edit, err := roles.Get(t.Context(), "system:basic-user", metav1.GetOptions{})
	require.NoError(t, err)
	edit.Rules = nil
	_, err = roles.Update(t.Context(), edit, metav1.UpdateOptions{})
	require.NoError(t, err)

	require.NoError(t, s.Bootstrap(t.Context()))
	_, err = roles.Get(t.Context(), "system:heapster", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), err)

	forgetBootstrap(t, s)
	require.NoError(t, s.Bootstrap(t.Context()))
	_, err = roles.Get(t.Context(), "system:heapster", metav1.GetOptions{})
	require.NoError(t, err)
	edit, err = roles.Get(t.Context(), "system:basic-user", metav1.GetOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, edit.Rules, "a role gets back what it misses")
}

// forgetBootstrap changes the version in the marker that Bootstrap leaves.
func forgetBootstrap(t *testing.T, s *Server) {
	t.Helper()
	s.store(t, schema.GroupResource{Group: "logplane.dev", Resource: "bootstraps"}, "/logplane.dev/bootstraps", "kubernetes", "text/plain", []byte("an older version"))
}

// TestBootstrapManagedFields: the objects that Bootstrap writes have the managed fields that kube-apiserver would
// write.
func TestBootstrapManagedFields(t *testing.T) {
	s := bootstrapped(t)
	managers := func(path string) (all []string) {
		a := request{method: "GET", path: path}.do(t, s)
		require.Equal(t, 200, a.code, path)
		var object metav1.PartialObjectMetadata
		require.NoError(t, json.Unmarshal([]byte(a.body), &object))
		for _, f := range object.ManagedFields {
			require.NotNil(t, f.Time)
			all = append(all, strings.Join([]string{f.Manager, string(f.Operation), f.APIVersion, f.Subresource, f.FieldsV1.GetRawString()}, " "))
		}
		return all
	}
	const class = `kube-apiserver Update scheduling.k8s.io/v1  {"f:description":{},"f:preemptionPolicy":{},"f:value":{}}`
	for path, want := range map[string][]string{
		"/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical":    {class},
		"/apis/scheduling.k8s.io/v1/priorityclasses/system-cluster-critical": {class},
		"/apis/networking.k8s.io/v1/servicecidrs/kubernetes": {
			`kubernetes-service-cidr-controller Apply networking.k8s.io/v1 status {"f:status":{"f:conditions":{"k:{\"type\":\"Ready\"}":{".":{},"f:lastTransitionTime":{},"f:message":{},"f:status":{},"f:type":{}}}}}`,
			`kube-apiserver Update networking.k8s.io/v1  {"f:spec":{"f:cidrs":{}}}`,
		},
		// Nobody manages fields that the registry allocates. Bootstrap sets the address; the registry allocates its
		// family.
		"/api/v1/namespaces/default/services/kubernetes": {`kube-apiserver Update v1  {"f:metadata":{"f:labels":{".":{},"f:component":{},"f:provider":{}}},"f:spec":{"f:clusterIP":{},"f:internalTrafficPolicy":{},"f:ipFamilyPolicy":{},"f:ports":{".":{},"k:{\"port\":443,\"protocol\":\"TCP\"}":{".":{},"f:name":{},"f:port":{},"f:protocol":{},"f:targetPort":{}}},"f:sessionAffinity":{},"f:type":{}}}`},
		"/api/v1/namespaces/kube-system":                 {`kube-apiserver Update v1  {"f:metadata":{"f:labels":{".":{},"f:kubernetes.io/metadata.name":{}}}}`},
	} {
		require.Equal(t, want, managers(path), path)
	}
}

// TestBootstrapAggregates: the three user-facing roles have the rules of the roles that they aggregate.
func TestBootstrapAggregates(t *testing.T) {
	s := bootstrapped(t)
	for _, name := range []string{"admin", "edit", "view"} {
		role, err := s.client.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		require.NotEmpty(t, role.Rules, name)
		require.True(t, slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "versions") }), name)
	}
}

func BenchmarkBootstrap(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		s, err := New(Config{Cell: kubestoretest.Cell(b, projection.Config{})})
		require.NoError(b, err)
		b.StartTimer()
		require.NoError(b, s.Bootstrap(b.Context()))
	}
}

// TestACellThatNobodyMade: a cell that was never initialized is noticed by the readiness check and by the first write.
func TestACellThatNobodyMade(t *testing.T) {
	cell := kubestoretest.Cell(t, projection.Config{})
	s, err := New(Config{Cell: cell})
	require.NoError(t, err)
	const what = "the cell has not been initialized: run 'logplane init' with the same connection flags"
	require.ErrorContains(t, s.checkCluster(t.Context()), what)
	require.Equal(t, 500, request{method: "GET", path: "/readyz"}.do(t, s).code)
	got := request{method: "POST", path: configMaps, body: `{"metadata":{"name":"a"}}`}.do(t, s)
	require.Equal(t, 404, got.code)
	require.Contains(t, got.body, `namespaces \"default\" not found: `+what)

	require.NoError(t, s.Bootstrap(t.Context()))
	require.NoError(t, s.checkCluster(t.Context()))
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"a"}}`})
}
