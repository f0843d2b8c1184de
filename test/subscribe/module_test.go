package subscribe

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// Who subscribes has NATS' client and client-go in his module graph, and nothing of Logplane or of Kubernetes' servers.
func TestModuleGraph(t *testing.T) {
	sums, err := os.ReadFile("../../subscribe/go.sum")
	require.NoError(t, err)
	require.Contains(t, string(sums), "k8s.io/client-go ")
	for _, module := range []string{"github.com/logplane/", "k8s.io/kubernetes ", "k8s.io/apiserver ", "github.com/nats-io/nats-server", "go.etcd.io/"} {
		require.NotContains(t, string(sums), module)
	}
}
