package past

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func TestCutCluster(t *testing.T) {
	for server, want := range map[string][2]string{
		"https://api":                                   {"https://api", "main"},
		"https://api/":                                  {"https://api", "main"},
		"https://api:6443/clusters/dev":                 {"https://api:6443", "dev"},
		"https://api:6443/clusters/dev/":                {"https://api:6443", "dev"},
		"https://proxy/cells/one/clusters/main":         {"https://proxy/cells/one", "main"},
		"https://api/clusters/dev/at/1":                 {"https://api/clusters/dev/at/1", "main"},
		"https://clusters/dev":                          {"https://clusters/dev", "main"},
		"https://clusters/clusters/dev":                 {"https://clusters", "dev"},
		"https://rancher/k8s/clusters/c-1/clusters/dev": {"https://rancher/k8s/clusters/c-1", "dev"},
		"127.0.0.1:8080/clusters/dev":                   {"127.0.0.1:8080", "dev"},
	} {
		rest, name := cutCluster(server)
		require.Equal(t, want, [2]string{rest, name}, server)
	}
}

// kubeconfigs writes two kubeconfigs, in two folders, that are used together: the first has the user ann and the
// current context, the second has the cluster to which that context leads.
func kubeconfigs(t *testing.T) (first, second string) {
	t.Helper()
	first, second = filepath.Join(t.TempDir(), "config"), filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(first, []byte(`{apiVersion: v1, kind: Config, current-context: cell,
users: [{name: ann, user: {token: secret}}],
contexts: [{name: cell, context: {cluster: cell, user: ann, namespace: shop}},
  {name: another, context: {cluster: cell, user: bob}},
  {name: taken, context: {cluster: elsewhere, user: ann}}],
clusters: [{name: elsewhere, cluster: {server: "https://elsewhere"}}]}`), 0o600))
	require.NoError(t, os.WriteFile(second, []byte(`{apiVersion: v1, kind: Config,
clusters: [{name: cell, cluster: {server: "https://api", certificate-authority: ca.crt}}]}`), 0o600))
	t.Setenv("KUBECONFIG", first+string(os.PathListSeparator)+second)
	return first, second
}

func read(t *testing.T, use *tool) *kubeconfig {
	t.Helper()
	k, err := use.readKubeconfig()
	require.NoError(t, err)
	return k
}

// TestContexts: a branch's context has the user, the authority and the namespace of the context that was used. The
// contexts that lead to a branch go with it, and no others.
func TestContexts(t *testing.T) {
	first, second := kubeconfigs(t)
	untouched, err := os.ReadFile(second)
	require.NoError(t, err)
	k := read(t, &tool{})
	require.ErrorContains(t, k.check("taken", "https://api/clusters/taken"), "kubectl config rename-context taken OTHER")
	require.NoError(t, k.check("dev", "https://api/clusters/dev"))
	written, err := k.add(t.Context(), "dev", "https://api/clusters/dev", "main", false)
	require.NoError(t, err)
	require.True(t, written)
	require.Equal(t, "kubectl --context dev", k.kubectl("dev", "https://api/clusters/dev", false))

	k = read(t, &tool{})
	require.Equal(t, "cell", k.config.CurrentContext)
	made := k.config.Contexts["dev"]
	require.Equal(t, []string{"cell/dev", "ann", "shop", first}, []string{made.Cluster, made.AuthInfo, made.Namespace, made.LocationOfOrigin})
	to := k.config.Clusters["cell/dev"]
	require.Equal(t, "https://api/clusters/dev", to.Server)
	require.Equal(t, filepath.Join(filepath.Dir(second), "ca.crt"), to.CertificateAuthority)
	require.NoError(t, k.check("dev", "https://api/clusters/dev"), "as after a ttl")

	// A branch of the branch is not below it, and with --context and --user these are used.
	on := &tool{overrides: clientcmd.ConfigOverrides{CurrentContext: "dev", Context: clientcmdapi.Context{AuthInfo: "bob"}}}
	k = read(t, on)
	written, err = k.add(t.Context(), "deeper", "https://api/clusters/deeper", "dev", true)
	require.NoError(t, err)
	require.True(t, written)
	require.Equal(t, "kubectl", k.kubectl("deeper", "https://api/clusters/deeper", true))
	k = read(t, &tool{})
	require.Equal(t, "deeper", k.config.CurrentContext)
	require.Equal(t, "cell/deeper", k.config.Contexts["deeper"].Cluster)
	require.Equal(t, "bob", k.config.Contexts["deeper"].AuthInfo)

	removed, current, err := k.remove(t.Context(), "https://api/clusters/deeper", "https://api")
	require.NoError(t, err)
	require.Equal(t, []string{"deeper"}, removed)
	require.Equal(t, "another", current, "it leads to main as the same user")
	k = read(t, &tool{})
	require.NoError(t, k.edit(t.Context(), func() error {
		k.config.Contexts["mine"] = &clientcmdapi.Context{Cluster: "cell/dev", AuthInfo: "ann"}
		return nil
	}))
	removed, current, err = k.remove(t.Context(), "https://api/clusters/dev", "https://api")
	require.NoError(t, err)
	require.Equal(t, []string{"dev", "mine"}, removed)
	require.Empty(t, current, "the current context stays")
	k = read(t, &tool{})
	require.Len(t, k.config.Contexts, 3)
	require.Len(t, k.config.Clusters, 2)
	require.Equal(t, "another", k.config.CurrentContext)
	after, err := os.ReadFile(second)
	require.NoError(t, err)
	require.Equal(t, string(untouched), string(after))
}

// TestEditsLoseNothing: an edit waits for another one, and changes what that one has left. It does not wait for ever.
func TestEditsLoseNothing(t *testing.T) {
	first, second := kubeconfigs(t)
	k, other := read(t, &tool{}), read(t, &tool{})
	added := make(chan error, 1)
	require.NoError(t, other.edit(t.Context(), func() error {
		go func() {
			_, err := k.add(t.Context(), "dev", "https://api/clusters/dev", "main", false)
			added <- err
		}()
		other.config.Contexts["theirs"] = &clientcmdapi.Context{Cluster: "cell", AuthInfo: "ann"}
		other.config.CurrentContext = "theirs"
		return nil
	}))
	require.NoError(t, <-added)
	k = read(t, &tool{})
	require.Equal(t, "theirs", k.config.CurrentContext)
	require.Contains(t, k.config.Contexts, "theirs")
	require.Equal(t, "cell/dev", k.config.Contexts["dev"].Cluster)
	require.NoFileExists(t, first+".lock")
	require.NoFileExists(t, second+".lock")

	require.NoError(t, os.WriteFile(second+".lock", nil, 0o600))
	was := lockTime
	t.Cleanup(func() { lockTime = was })
	lockTime = time.Millisecond
	_, err := k.add(t.Context(), "late", "https://api/clusters/late", "main", false)
	require.ErrorContains(t, err, second+".lock' exists")
	require.NoFileExists(t, first+".lock")
	require.NotContains(t, read(t, &tool{}).config.Contexts, "late")
}

// TestPathsStayRelative: a kubeconfig can be moved with its files.
func TestPathsStayRelative(t *testing.T) {
	_, file := kubeconfigs(t)
	require.NoError(t, os.WriteFile(file, []byte(`{apiVersion: v1, kind: Config, current-context: cell,
contexts: [{name: cell, context: {cluster: cell, user: ann}}],
clusters: [{name: cell, cluster: {server: "https://api", certificate-authority: ca.crt}}]}`), 0o600))
	use := &tool{kubeconfig: file}
	k := read(t, use)
	_, err := k.add(t.Context(), "dev", "https://api/clusters/dev", "main", false)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("kubectl --kubeconfig %s --context dev", file), k.kubectl("dev", "https://api/clusters/dev", false))
	require.Equal(t, "ca.crt", read(t, use).config.Clusters["cell/dev"].CertificateAuthority)
}

// TestNoContext: who uses --server alone gets no context.
func TestNoContext(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	t.Setenv("KUBECONFIG", file)
	k := read(t, &tool{})
	written, err := k.add(t.Context(), "dev", "https://api/clusters/dev", "main", true)
	require.NoError(t, err)
	require.False(t, written)
	require.Equal(t, "kubectl --server https://api/clusters/dev", k.kubectl("dev", "https://api/clusters/dev", false))
	require.NoFileExists(t, file)
}
