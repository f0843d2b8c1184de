package subscribe

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestModuleGraph: the module graph of a subscriber has NATS's client and client-go, but nothing of Logplane or of
// Kubernetes's servers.
func TestModuleGraph(t *testing.T) {
	sums, err := os.ReadFile("../../subscribe/go.sum")
	require.NoError(t, err)
	require.Contains(t, string(sums), "k8s.io/client-go ")
	for _, module := range []string{"github.com/logplane/", "k8s.io/kubernetes ", "k8s.io/apiserver ", "github.com/nats-io/nats-server", "go.etcd.io/"} {
		require.NotContains(t, string(sums), module)
	}
}
