package localstack

import (
	"fmt"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// writeKubeconfig writes a file that points kubectl at the URL, and returns its absolute path.
func writeKubeconfig(folder, url string) (string, error) {
	path, err := filepath.Abs(filepath.Join(folder, "kubeconfig"))
	if err != nil {
		return "", fmt.Errorf("find the data folder: %w", err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["logplane"] = &clientcmdapi.Cluster{Server: url}
	config.AuthInfos["logplane"] = &clientcmdapi.AuthInfo{}
	config.Contexts["logplane"] = &clientcmdapi.Context{Cluster: "logplane", AuthInfo: "logplane", Namespace: "default"}
	config.CurrentContext = "logplane"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return "", fmt.Errorf("write the kubeconfig: %w", err)
	}
	return path, nil
}
