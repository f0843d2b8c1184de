package products

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
)

// shipped returns the path of a file that 'make products' makes. If the file is missing, the test is skipped.
func shipped(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../bin/products", path))
	require.NoError(t, err)
	if _, err := os.Stat(path); err != nil {
		t.Skip("no products: 'make products' builds them")
	}
	return path
}

// run runs the process of an installed Deployment, with a token of its service account. The arguments are those of the
// Deployment, followed by 'more'.
func (h *host) run(binary, namespace, deployment string, more ...string) {
	h.Helper()
	d, err := h.client.AppsV1().Deployments(namespace).Get(h.Context(), deployment, metav1.GetOptions{})
	require.NoError(h, err)
	issued, err := h.client.CoreV1().ServiceAccounts(namespace).CreateToken(h.Context(), d.Spec.Template.Spec.ServiceAccountName, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(h, err)
	container := d.Spec.Template.Spec.Containers[0]
	kubeconfig := h.cell.Kubeconfig(issued.Status.Token)
	variables := []string{"$(POD_NAMESPACE)", namespace, "$(KUBECONFIG)", kubeconfig}
	for _, v := range container.Env {
		if v.ValueFrom == nil {
			variables = append(variables, "$("+v.Name+")", v.Value)
		}
	}
	var args []string
	for _, arg := range container.Args {
		args = append(args, strings.NewReplacer(variables...).Replace(arg))
	}
	command := exec.Command(binary, append(args, more...)...)
	command.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	h.cell.Start(command)
}

// apply applies YAML as kubectl's server-side apply does. It stops at the first object that the server refuses.
func (h *host) apply(text string) error {
	h.Helper()
	objects := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	groups, err := restmapper.GetAPIGroupResources(h.client.Discovery())
	require.NoError(h, err)
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	for {
		var u unstructured.Unstructured
		if err := objects.Decode(&u); errors.Is(err, io.EOF) {
			return nil
		} else {
			require.NoError(h, err)
		}
		mapping, err := mapper.RESTMapping(u.GroupVersionKind().GroupKind(), u.GroupVersionKind().Version)
		require.NoError(h, err)
		var client dynamic.ResourceInterface = h.dynamic.Resource(mapping.Resource)
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			namespace := u.GetNamespace()
			if namespace == "" {
				namespace = metav1.NamespaceDefault
			}
			client = h.dynamic.Resource(mapping.Resource).Namespace(namespace)
		}
		if _, err := client.Apply(h.Context(), u.GetName(), &u, metav1.ApplyOptions{FieldManager: "test"}); err != nil {
			return err
		}
	}
}

// freePort returns a port of this machine that is not in use.
func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}
