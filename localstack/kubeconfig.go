package localstack

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/logplane/logplane/internal/apiserver/requests"
	"github.com/logplane/logplane/internal/trust"
)

// folderExtension is the extension of a kubeconfig that names the data folder of its 'logplane dev'. kubectl keeps
// extensions when it merges and changes kubeconfigs.
const folderExtension = "logplane.dev/data"

// writeKubeconfig writes a file that points kubectl at the API, and returns its absolute path. The file is in the data
// folder unless a path is given. What the replaced file has for branches of the same folder stays.
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
	keepBranches(config, path)
	written, err := clientcmd.Write(*config)
	if err != nil {
		return "", fmt.Errorf("write the kubeconfig: %w", err)
	}
	if err := trust.Replace(path, written); err != nil {
		return "", fmt.Errorf("write the kubeconfig: %w", err)
	}
	return path, nil
}

// keepBranches adds the contexts of branches that the replaced file has ('logplane branch'). They lead to the server of
// the new file, whose address may be another one.
func keepBranches(config *clientcmdapi.Config, path string) {
	replaced, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return // no branches of ours
	}
	to := config.Clusters[kubeconfigName]
	for name, context := range replaced.Contexts {
		entry := replaced.Clusters[context.Cluster]
		if !isBranch(context.Cluster, entry) || !bytes.Equal(folderIn(entry), folderIn(to)) || config.AuthInfos[context.AuthInfo] == nil {
			continue
		}
		_, cluster, _ := strings.Cut(entry.Server, requests.ClusterPrefix)
		branch := to.DeepCopy()
		branch.Server += requests.ClusterPrefix + cluster
		config.Clusters[context.Cluster], config.Contexts[name] = branch, context
		if replaced.CurrentContext == name {
			config.CurrentContext = name
		}
	}
}

// isBranch says whether 'logplane branch' has made an entry of our own entry.
func isBranch(name string, entry *clientcmdapi.Cluster) bool {
	return strings.HasPrefix(name, kubeconfigName+"/") && folderIn(entry) != nil && strings.Contains(entry.Server, requests.ClusterPrefix)
}

// folderIn returns an entry's extension that names a data folder, or nil.
func folderIn(entry *clientcmdapi.Cluster) []byte {
	if entry == nil {
		return nil
	}
	extension, found := entry.Extensions[folderExtension].(*runtime.Unknown)
	if !found {
		return nil
	}
	return extension.Raw
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

// isOurs reports whether a file has the cluster of one 'logplane dev', the cluster's branches, and nothing else.
func isOurs(path string) bool {
	config, err := clientcmd.LoadFromFile(path)
	if err != nil || len(config.AuthInfos) != 1 || folderIn(config.Clusters[kubeconfigName]) == nil {
		return false
	}
	for name, entry := range config.Clusters {
		if name != kubeconfigName && !isBranch(name, entry) {
			return false
		}
	}
	for name, context := range config.Contexts {
		if name != kubeconfigName && !isBranch(context.Cluster, config.Clusters[context.Cluster]) {
			return false
		}
	}
	return true
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
	extension := folderIn(cluster)
	if extension == nil {
		return "", nil
	}
	var named struct {
		Folder string `json:"folder"`
	}
	if err := json.Unmarshal(extension, &named); err != nil {
		return "", fmt.Errorf("read the kubeconfig's extension '%s': %w", folderExtension, err)
	}
	return named.Folder, nil
}
