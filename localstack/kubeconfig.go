package localstack

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// folderExtension is the extension of a kubeconfig that names the data folder of its 'logplane dev'. kubectl keeps
// extensions when it merges and changes kubeconfigs.
const folderExtension = "logplane.dev/data"

// writeKubeconfig writes a file that points kubectl at the API, and returns its absolute path.
func writeKubeconfig(folder string, to *rest.Config) (string, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return "", fmt.Errorf("find the data folder: %w", err)
	}
	path := filepath.Join(folder, "kubeconfig")
	extension, err := json.Marshal(map[string]string{"folder": folder})
	if err != nil {
		return "", fmt.Errorf("write the kubeconfig: %w", err)
	}
	config := kubeconfigOf(to.Host, to.CAData, to.CertData, to.KeyData)
	config.Clusters[kubeconfigName].Extensions = map[string]runtime.Object{folderExtension: &runtime.Unknown{Raw: extension, ContentType: runtime.ContentTypeJSON}}
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return "", fmt.Errorf("write the kubeconfig: %w", err)
	}
	return path, nil
}

// kubeconfigName is the name of the cluster, the user and the context in our kubeconfigs.
const kubeconfigName = "logplane"

// kubeconfigOf returns a kubeconfig for a server and the owner of the certificate. A nil authority means the system's,
// and a nil certificate means that the client has none.
func kubeconfigOf(server string, authority, certificate, key []byte) *clientcmdapi.Config {
	config := clientcmdapi.NewConfig()
	config.Clusters[kubeconfigName] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: authority}
	config.AuthInfos[kubeconfigName] = &clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key}
	config.Contexts[kubeconfigName] = &clientcmdapi.Context{Cluster: kubeconfigName, AuthInfo: kubeconfigName, Namespace: "default"}
	config.CurrentContext = kubeconfigName
	return config
}

// FolderOf returns the data folder of the 'logplane dev' to which a kubeconfig's current context leads. It is empty if
// the context leads elsewhere. Without a path, FolderOf uses the kubeconfig that kubectl would use.
func FolderOf(kubeconfig string) (string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := rules.Load()
	if err != nil {
		return "", fmt.Errorf("read the kubeconfig: %w", err)
	}
	current, found := config.Contexts[config.CurrentContext]
	if !found {
		return "", nil
	}
	cluster, found := config.Clusters[current.Cluster]
	if !found {
		return "", nil
	}
	extension, found := cluster.Extensions[folderExtension].(*runtime.Unknown)
	if !found {
		return "", nil
	}
	var named struct {
		Folder string `json:"folder"`
	}
	if err := json.Unmarshal(extension.Raw, &named); err != nil {
		return "", fmt.Errorf("read the kubeconfig's extension '%s': %w", folderExtension, err)
	}
	return named.Folder, nil
}
