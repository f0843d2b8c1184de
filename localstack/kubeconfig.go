package localstack

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/logplane/logplane/internal/trust"
)

// folderExtension is the extension of a kubeconfig that names the data folder of its 'logplane dev'. kubectl keeps
// extensions when it merges and changes kubeconfigs.
const folderExtension = "logplane.dev/data"

// writeKubeconfig writes a file that points kubectl at the API, and returns its absolute path. The file is in the data
// folder unless a path is given.
func writeKubeconfig(folder, path string, to *rest.Config) (string, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return "", fmt.Errorf("find the data folder: %w", err)
	}
	if path, err = filepath.Abs(cmp.Or(path, filepath.Join(folder, "kubeconfig"))); err != nil {
		return "", fmt.Errorf("find the kubeconfig: %w", err)
	}
	extension, err := json.Marshal(map[string]string{"folder": folder})
	if err != nil {
		return "", fmt.Errorf("write the kubeconfig: %w", err)
	}
	config := kubeconfigOf(to.Host, to.CAData, to.CertData, to.KeyData)
	config.Clusters[kubeconfigName].Extensions = map[string]runtime.Object{folderExtension: &runtime.Unknown{Raw: extension, ContentType: runtime.ContentTypeJSON}}
	written, err := clientcmd.Write(*config)
	if err != nil {
		return "", fmt.Errorf("write the kubeconfig: %w", err)
	}
	if err := trust.Replace(path, written); err != nil {
		return "", fmt.Errorf("write the kubeconfig: %w", err)
	}
	return path, nil
}

// checkReplaceable refuses a file that holds anything but a kubeconfig from writeKubeconfig.
func checkReplaceable(path string) error {
	if path == "" {
		return nil
	}
	if folder, err := os.Stat(filepath.Dir(path)); err != nil || !folder.IsDir() {
		return fmt.Errorf("--kubeconfig is '%s': the folder does not exist: make it, or name another", path)
	}
	at, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("--kubeconfig: %w", err)
	case !at.Mode().IsRegular():
		return fmt.Errorf("--kubeconfig is '%s', which is not a file: name a file", path)
	case at.Size() == 0 || isOurs(path): // mktemp makes an empty file
		return nil
	}
	return fmt.Errorf("--kubeconfig is '%s', which Logplane has not written and so does not replace: name another file", path)
}

// isOurs reports whether a file has the cluster of one 'logplane dev' and nothing else.
func isOurs(path string) bool {
	config, err := clientcmd.LoadFromFile(path)
	if err != nil || len(config.Clusters) != 1 || len(config.AuthInfos) != 1 || len(config.Contexts) != 1 {
		return false
	}
	cluster, found := config.Clusters[kubeconfigName]
	return found && cluster.Extensions[folderExtension] != nil
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

// FolderOf returns the data folder of the 'logplane dev' to which a kubeconfig's current context leads. The result is
// empty if the context leads elsewhere. Without a path, FolderOf uses the kubeconfig that kubectl would use.
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
