package localstack

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// TestBranchesStayInTheKubeconfig: dev starts again at another address, and the contexts that 'logplane branch' has
// made lead there, too. In another folder there are no such branches.
func TestBranchesStayInTheKubeconfig(t *testing.T) {
	folder := t.TempDir()
	path, err := writeKubeconfig(folder, "", &rest.Config{Host: "http://127.0.0.1:1"})
	require.NoError(t, err)
	config, err := clientcmd.LoadFromFile(path)
	require.NoError(t, err)
	branch := config.Clusters["logplane"].DeepCopy()
	branch.Server += "/clusters/dev"
	config.Clusters["logplane/dev"] = branch
	config.Contexts["dev"] = &clientcmdapi.Context{Cluster: "logplane/dev", AuthInfo: "logplane", Namespace: "shop"}
	config.CurrentContext = "dev"
	require.NoError(t, clientcmd.WriteToFile(*config, path))
	require.NoError(t, checkReplaceable(path))

	_, err = writeKubeconfig(folder, "", &rest.Config{Host: "http://127.0.0.1:2"})
	require.NoError(t, err)
	require.NoError(t, checkReplaceable(path))
	config, err = clientcmd.LoadFromFile(path)
	require.NoError(t, err)
	require.Equal(t, "http://127.0.0.1:2/clusters/dev", config.Clusters["logplane/dev"].Server)
	require.Equal(t, "shop", config.Contexts["dev"].Namespace)
	require.Equal(t, "dev", config.CurrentContext)
	t.Setenv("KUBECONFIG", path)
	found, err := FolderOf("")
	require.NoError(t, err)
	require.Equal(t, folder, found, "of a branch")

	config.Contexts["mine"] = &clientcmdapi.Context{Cluster: "logplane", AuthInfo: "logplane"}
	mine := filepath.Join(folder, "mine")
	require.NoError(t, clientcmd.WriteToFile(*config, mine))
	require.ErrorContains(t, checkReplaceable(mine), "which Logplane has not written")

	_, err = writeKubeconfig(t.TempDir(), path, &rest.Config{Host: "http://127.0.0.1:3"})
	require.NoError(t, err)
	config, err = clientcmd.LoadFromFile(path)
	require.NoError(t, err)
	require.Len(t, config.Clusters, 1)
	require.Equal(t, "logplane", config.CurrentContext)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}
