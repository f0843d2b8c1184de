package e2e

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

// assets returns the folder that 'logplane envtest-assets' prints, below a cache of the test's own.
func assets(t *testing.T, cache string) string {
	t.Helper()
	out, err := assetsIn(t, cache).CombinedOutput()
	require.NoError(t, err, string(out))
	return strings.TrimSuffix(string(out), "\n")
}

// assetsIn returns a run of 'logplane envtest-assets'.
func assetsIn(t *testing.T, cache string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), product.Logplane(t), "envtest-assets")
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+cache, "PATH="+filepath.Dir(product.Binary(t, "KUBECTL", "kubectl")))
	return cmd
}

// TestEnvtestAssets: the folder has the names of the binaries, also if several processes make it at once.
func TestEnvtestAssets(t *testing.T) {
	cache := t.TempDir()
	var made errgroup.Group
	for range 4 {
		made.Go(assetsIn(t, cache).Run)
	}
	require.NoError(t, made.Wait())
	folder := assets(t, cache)
	require.Equal(t, filepath.Join(cache, "logplane/envtest"), folder)
	binary, err := filepath.EvalSymlinks(product.Logplane(t))
	require.NoError(t, err)
	for name, target := range map[string]string{"etcd": binary, "kube-apiserver": binary, "kubectl": product.Binary(t, "KUBECTL", "kubectl")} {
		is, err := os.Readlink(filepath.Join(folder, name))
		require.NoError(t, err)
		require.Equal(t, target, is)
	}
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, entries, 3)
	for name, says := range map[string]string{"etcd": "etcd Version: ", "kube-apiserver": "Kubernetes v1."} {
		out, err := exec.CommandContext(t.Context(), filepath.Join(folder, name), "--version").Output()
		require.NoError(t, err)
		require.Contains(t, string(out), says)
	}
}

// TestEnvtestRestart: the state survives a kill of 'etcd' and 'kube-apiserver', which start in any order. Two API
// servers on one 'etcd' see each other's writes. An 'etcd' whose data folder is removed ends. An API server ends when
// 'etcd' is started again without the state.
func TestEnvtestRestart(t *testing.T) {
	folder, home := assets(t, t.TempDir()), t.TempDir()
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(home, "key"), key, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(home, "tokens"), []byte("secret,admin,1,system:masters\n"), 0o600))
	etcdAddress, data := eventlogtest.FreeAddress(t), filepath.Join(home, "data")
	etcd := func() *product.Process { // as fabric8's framework starts it
		return product.RunCommand(t, exec.Command(filepath.Join(folder, "etcd"), "-data-dir", data, "-wal-dir", t.TempDir(), "--listen-client-urls", "http://"+etcdAddress,
			"--advertise-client-urls", "http://"+etcdAddress, "--listen-peer-urls", "http://localhost:0", "--initial-cluster", "default=http://localhost:0"))
	}
	apiServer := func(address string) *product.Process {
		_, port, err := net.SplitHostPort(address)
		require.NoError(t, err)
		return product.RunCommand(t, exec.Command(filepath.Join(folder, "kube-apiserver"), "--etcd-servers", "http://"+etcdAddress, "--secure-port", port, "--bind-address", "127.0.0.1",
			"--cert-dir", filepath.Join(home, "certs-"+port), "--token-auth-file", filepath.Join(home, "tokens"), "--authorization-mode", "RBAC",
			"--service-account-issuer", "https://localhost", "--service-account-signing-key-file", filepath.Join(home, "key"),
			"--service-account-key-file", filepath.Join(home, "key"), "--service-cluster-ip-range", "10.0.0.0/24", "--watch-cache=false", "--allow-privileged"))
	}
	client := func(address string) *kubernetes.Clientset {
		config := &rest.Config{Host: "https://" + address, BearerToken: "secret", TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
		ready, err := rest.HTTPClientFor(config)
		require.NoError(t, err)
		eventlogtest.Eventually(t, "the API server is ready", func() bool {
			answer, err := ready.Get(config.Host + "/readyz")
			if err != nil {
				return false
			}
			_ = answer.Body.Close()
			return answer.StatusCode == http.StatusOK
		})
		return kubernetes.NewForConfigOrDie(config)
	}

	first, second := eventlogtest.FreeAddress(t), eventlogtest.FreeAddress(t)
	server, store := apiServer(first), etcd()
	written, err := client(first).CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	service, err := client(first).CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "10.0.0.1", service.Spec.ClusterIP)
	require.Contains(t, server.Output(), "flags=--watch-cache\n")
	require.NotContains(t, server.Output(), "--allow-privileged")
	store.Kill()
	store = etcd()
	_, err = client(first).CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{})
	require.NoError(t, err)
	server.Kill()

	server, other := apiServer(first), apiServer(second)
	require.FileExists(t, filepath.Join(home, "certs-"+first[strings.Index(first, ":")+1:], "apiserver.crt"))
	kept, err := client(first).CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, written.UID, kept.UID)
	kept.Data = map[string]string{"a": "1"}
	_, err = client(second).CoreV1().ConfigMaps("default").Update(t.Context(), kept, metav1.UpdateOptions{})
	require.NoError(t, err)
	kept, err = client(first).CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "1", kept.Data["a"])
	other.Stop()
	require.NoError(t, os.RemoveAll(data))
	<-store.Exited
	require.Equal(t, 1, store.Cmd.ProcessState.ExitCode(), store.Output())
	require.Contains(t, store.Output(), "the data folder was removed")
	etcd()
	<-server.Exited
	require.Equal(t, 1, server.Cmd.ProcessState.ExitCode(), server.Output())
	require.Contains(t, server.Output(), "etcd was started again without the state")
}

// TestEnvtestRefuses: mistakes are one line on stderr.
func TestEnvtestRefuses(t *testing.T) {
	folder := assets(t, t.TempDir())
	stranger := eventlogtest.FreeAddress(t)
	listener, err := net.Listen("tcp", stranger)
	require.NoError(t, err)
	defer listener.Close()
	go func() { _ = http.Serve(listener, http.NotFoundHandler()) }()
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	require.NoError(t, err)
	keyFile := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(keyFile, key, 0o600))
	_, port, err := net.SplitHostPort(eventlogtest.FreeAddress(t))
	require.NoError(t, err)
	serving := []string{"--etcd-servers", "http://" + stranger, "--secure-port", port, "--bind-address", "127.0.0.1", "--cert-dir", t.TempDir(),
		"--service-account-issuer", "https://localhost", "--service-account-signing-key-file", keyFile, "--service-account-key-file", keyFile}
	for _, one := range []struct {
		name string
		args []string
		says string
	}{
		{"kube-apiserver", []string{"--no-such-flag"}, "kube-apiserver: unknown flag: --no-such-flag\n"},
		{"kube-apiserver", []string{"--cert-dir", t.TempDir()}, "--etcd-servers must be specified"},
		{"kube-apiserver", append(serving[:len(serving):len(serving)], "--feature-gates=NoSuchGate=true"), "unrecognized feature gate: NoSuchGate"},
		{"kube-apiserver", serving, "start the 'etcd' of 'logplane envtest-assets'"},
		{"etcd", []string{"--no-such-flag"}, "etcd: unknown flag: --no-such-flag\n"},
		{"etcd", []string{"--data-dir", t.TempDir(), "--listen-client-urls", "https://127.0.0.1:0"}, "it must be an 'http://' URL"},
		{"etcd", []string{"--data-dir", t.TempDir(), "--listen-client-urls", "http://" + stranger}, "address already in use"},
	} {
		p := product.RunCommand(t, exec.Command(filepath.Join(folder, one.name), one.args...))
		<-p.Exited
		require.Equal(t, 1, p.Cmd.ProcessState.ExitCode(), "%v: %s", one.args, p.Output())
		lines := strings.Split(strings.TrimSuffix(p.Output(), "\n"), "\n")
		require.Contains(t, lines[len(lines)-1]+"\n", one.says)
	}
}
