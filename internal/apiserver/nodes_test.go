package apiserver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// withNodes gives tokens to two nodes and an administrator, and grants nodes the rights that they need.
func withNodes(t testing.TB) func(*Config) {
	path := filepath.Join(t.TempDir(), "tokens.csv")
	require.NoError(t, os.WriteFile(path, []byte("root-token,root,1,system:masters\nn1-token,system:node:n1,2,system:nodes\nn2-token,system:node:n2,3,system:nodes\nann-token,ann,4\n"), 0o600))
	return func(c *Config) {
		c.Authentication.TokenFile = path
		c.Authorization.Mode = "Node,RBAC"
	}
}

// TestNodesReadWhatTheirPodsUse: another process binds a Pod that uses a Secret to a node. The node may read the Secret
// from the next request on, until the Pod is gone.
func TestNodesReadWhatTheirPodsUse(t *testing.T) {
	one, other, _ := twoServers(t, withNodes(t))
	require.NoError(t, one.Bootstrap(t.Context()))
	one.must(t, 201, request{method: "POST", path: "/api/v1/namespaces/default/secrets", body: `{"metadata":{"name":"a"}}`}.as("root"))
	secret := request{method: "GET", path: "/api/v1/namespaces/default/secrets/a"}
	using := func(name, node string) request {
		return request{method: "POST", path: pods, body: `{"metadata":{"name":"` + name + `"},"spec":{"nodeName":"` + node + `","volumes":[{"name":"v","secret":{"secretName":"a"}}],"containers":[{"name":"c","image":"i"}]}}`}.as("root")
	}
	for range 3 {
		other.must(t, 403, secret.as("n1"))
		one.must(t, 201, using("x", "n1"))
		other.must(t, 200, secret.as("n1"))
		other.must(t, 403, secret.as("n2"))
		one.must(t, 201, using("y", "n1"))
		one.must(t, 200, request{method: "DELETE", path: pods + "/x?gracePeriodSeconds=0"}.as("root"))
		other.must(t, 200, secret.as("n1"))
		other.Shrink()
		one.must(t, 200, request{method: "DELETE", path: pods + "/y?gracePeriodSeconds=0"}.as("root"))
		one.must(t, 201, using("y", "")) // a Pod of the same name that is not bound
		other.must(t, 403, secret.as("n1"))
		one.must(t, 200, request{method: "DELETE", path: pods + "/y?gracePeriodSeconds=0"}.as("root"))
	}
	one.must(t, 201, request{method: "POST", path: "/api/v1/persistentvolumes", body: `{"metadata":{"name":"pv"},"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"claimRef":{"namespace":"default","name":"claim"},` +
		`"csi":{"driver":"d.example","volumeHandle":"h","nodePublishSecretRef":{"namespace":"default","name":"a"}}}}`}.as("root"))
	one.must(t, 201, request{method: "POST", path: "/api/v1/namespaces/default/persistentvolumeclaims", body: `{"metadata":{"name":"claim"},"spec":{"volumeName":"pv","accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`}.as("root"))
	other.must(t, 403, secret.as("n2"))
	one.must(t, 201, request{method: "POST", path: pods, body: `{"metadata":{"name":"z"},"spec":{"nodeName":"n2","volumes":[{"name":"v","persistentVolumeClaim":{"claimName":"claim"}}],"containers":[{"name":"c","image":"i"}]}}`}.as("root"))
	other.must(t, 200, request{method: "GET", path: "/api/v1/persistentvolumes/pv"}.as("n2"))
	other.must(t, 200, secret.as("n2"))
	one.must(t, 200, request{method: "DELETE", path: "/api/v1/persistentvolumes/pv?gracePeriodSeconds=0"}.as("root"))
	other.must(t, 403, request{method: "GET", path: "/api/v1/namespaces/default/secrets"}.as("n2"))
	other.must(t, 403, secret.as("ann"))
}

// TestNodesAreRestricted: a node may change itself and its own Pods, but not other nodes and Pods.
func TestNodesAreRestricted(t *testing.T) {
	s := newServer(t, withNodes(t))
	require.NoError(t, s.Bootstrap(t.Context()))
	node := func(name string) request {
		return request{method: "POST", path: "/api/v1/nodes", body: `{"metadata":{"name":"` + name + `"}}`}
	}
	s.must(t, 201, node("n1").as("n1"))
	s.must(t, 403, node("n2").as("n1"))
	s.must(t, 201, node("n2").as("root"))
	status := func(name string) request {
		return request{method: "PATCH", path: "/api/v1/nodes/" + name + "/status", body: `{"status":{"phase":"Running"}}`, contentType: "application/merge-patch+json"}
	}
	s.must(t, 200, status("n1").as("n1"))
	s.must(t, 403, status("n2").as("n1"))
	s.must(t, 403, request{method: "GET", path: "/api/v1/nodes/n2"}.as("n1"))
	s.must(t, 201, pod("x", `,"nodeName":"n2"`).as("root"))
	phase := request{method: "PATCH", path: pods + "/x/status", body: `{"status":{"phase":"Running"}}`, contentType: "application/merge-patch+json"}
	s.must(t, 403, phase.as("n1"))
	s.must(t, 200, phase.as("n2"))
	s.must(t, 403, pod("y", `,"nodeName":"n1"`).as("n1")) // this Pod is not a mirror Pod of the node
}
