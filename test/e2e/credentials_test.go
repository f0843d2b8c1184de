package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

// TestInitMakesCredentials: a cell serves with the flags that 'init --credentials' prints. The printed kubeconfig is an
// administrator's, the authority signs client certificates, and the key signs tokens of service accounts.
func TestInitMakesCredentials(t *testing.T) {
	if testing.Short() {
		t.Skip("several processes")
	}
	t.Parallel()
	folder, address := filepath.Join(t.TempDir(), "credentials"), eventlogtest.FreeAddress(t)
	where := []string{"--nats", eventlogtest.Run(t, t.TempDir()).ClientURL(), "--bucket", "file://" + filepath.Join(t.TempDir(), "bucket")}
	initialize := func() (flags string) {
		made := product.Run(t, append([]string{"init", "--credentials", folder, "--external-address", address}, where...)...)
		<-made.Exited
		require.Zero(t, made.Cmd.ProcessState.ExitCode(), made.Output())
		_, flags, found := strings.Cut(made.Output(), "give 'api' and 'watcher'\n")
		require.True(t, found, made.Output())
		flags, _, _ = strings.Cut(flags, "and 'lifecycle'")
		return flags
	}
	flags := initialize()
	require.Equal(t, flags, initialize(), "it may be run again")
	product.Serve(t, slices.Concat([]string{"watcher", "--listen", address}, strings.Fields(strings.ReplaceAll(flags, "\\\n", "")), where)...)

	admin := filepath.Join(folder, "admin.kubeconfig")
	client := func(kubeconfig string) *kubernetes.Clientset {
		to, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		require.NoError(t, err)
		made, err := kubernetes.NewForConfig(to)
		require.NoError(t, err)
		return made
	}
	_, err := client(admin).CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
	require.NoError(t, err)
	trusted, err := client(admin).CoreV1().ConfigMaps("default").Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
	require.NoError(t, err)
	authority, err := os.ReadFile(filepath.Join(folder, "ca.crt"))
	require.NoError(t, err)
	require.Equal(t, string(authority), trusted.Data["ca.crt"])
	token, err := client(admin).CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, token.Status.Token)

	ann := exec.Command(product.Logplane(t), "kubeconfig", "--kubeconfig", admin, "--user", "ann",
		"--client-ca-file", filepath.Join(folder, "ca.crt"), "--client-ca-key-file", filepath.Join(folder, "ca.key"))
	text, err := ann.Output()
	require.NoError(t, err)
	hers := filepath.Join(t.TempDir(), "ann")
	require.NoError(t, os.WriteFile(hers, text, 0o600))
	_, err = client(hers).CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
}
