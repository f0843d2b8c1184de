package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/util/cert"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

// TestAllowPrivileged: privileged containers are allowed unless the flag forbids them.
func TestAllowPrivileged(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	where := product.Init(t, eventlogtest.Run(t, t.TempDir()).ClientURL(), filepath.Join(folder, "bucket"))
	manifest := filepath.Join(folder, "agent.yaml")
	require.NoError(t, os.WriteFile(manifest, []byte(`
apiVersion: v1
kind: Pod
metadata: {name: agent, namespace: default}
spec:
  containers: [{name: agent, image: agent, securityContext: {privileged: true}}]
`), 0o600))
	for args, says := range map[string]string{
		"": "pod/agent created (server dry run)", "--allow-privileged=false": "spec.containers[0].securityContext.privileged: Forbidden: disallowed by cluster policy",
	} {
		for _, server := range []*product.Process{
			product.Serve(t, slices.Concat([]string{"api", "--listen", "127.0.0.1:0", "--authorization-mode", "AlwaysAllow"}, strings.Fields(args), where)...),
			product.Dev(t, t.TempDir(), append([]string{"--in-memory"}, strings.Fields(args)...)...),
		} {
			out, _ := exec.CommandContext(t.Context(), product.Binary(t, "KUBECTL", "kubectl"), "--server", server.URL(), "--cache-dir", folder, "create", "--dry-run=server", "-f", manifest).CombinedOutput()
			require.Contains(t, string(out), says)
		}
	}
}

// TestKubelet: kubectl logs, exec, attach, port-forward and proxies reach a node whose kubelet streams with upstream's
// own code. The streams end when the process that relays them stops.
func TestKubelet(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(folder, name)
		require.NoError(t, os.WriteFile(path, content, 0o600))
		return path
	}
	shown, key, err := cert.GenerateSelfSignedCertKey("kube-apiserver-kubelet-client", nil, nil)
	require.NoError(t, err)
	address, authorities := serveKubelet(t, shown)
	host, port, err := net.SplitHostPort(address)
	require.NoError(t, err)

	where := product.Init(t, eventlogtest.Run(t, t.TempDir()).ClientURL(), filepath.Join(folder, "bucket"))
	server := product.Serve(t, append([]string{"api", "--listen", "127.0.0.1:0", "--authorization-mode", "AlwaysAllow", "--max-watches-per-user", "2",
		"--kubelet-client-certificate", write("apiserver.crt", shown), "--kubelet-client-key", write("apiserver.key", key),
		"--kubelet-certificate-authority", write("kubelet-ca.crt", authorities)}, where...)...)
	start := func(stdin string, args ...string) *exec.Cmd {
		command := exec.CommandContext(t.Context(), product.Binary(t, "KUBECTL", "kubectl"), append([]string{"--server", server.URL(), "--cache-dir", folder}, args...)...)
		command.Stdin = strings.NewReader(stdin)
		return command
	}
	kubectl := func(stdin string, args ...string) string {
		t.Helper()
		out, err := start(stdin, args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	kubectl(fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: %[1]s}], daemonEndpoints: {kubeletEndpoint: {Port: %[2]s}}}
---
apiVersion: v1
kind: Node
metadata: {name: loopback}
status: {addresses: [{type: InternalIP, address: 127.0.0.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {nodeName: node-1, containers: [{name: c, image: i, stdin: true}]}
---
apiVersion: v1
kind: Service
metadata: {name: s}
spec: {ports: [{port: 80, targetPort: %[2]s}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s, labels: {kubernetes.io/service-name: s}}
addressType: IPv4
endpoints: [{addresses: [%[1]s], targetRef: {kind: Pod, namespace: default, name: p}}]
ports: [{name: "", port: %[2]s}]
`, host, port), "create", "-f", "-")
	kubectl("", "patch", "pod", "p", "--subresource=status", "-p",
		fmt.Sprintf(`{"status":{"phase":"Running","podIP":%q,"containerStatuses":[{"name":"c","image":"i","imageID":"i","state":{"running":{}}}]}}`, host))

	require.Equal(t, "the log of default/p/c\n", kubectl("", "logs", "p"))
	require.Equal(t, "from the standard input", kubectl("from the standard input", "exec", "-i", "p", "--", "cat"))
	out, err := start("", "exec", "p", "--", "sh", "-c", "echo failed >&2; exit 7").CombinedOutput()
	var failed *exec.ExitError
	require.ErrorAs(t, err, &failed, "%s", out)
	require.Equal(t, 7, failed.ExitCode(), "%s", out)
	require.Contains(t, string(out), "failed")
	require.Contains(t, kubectl("to the container", "attach", "-i", "p"), "to the container")

	for _, path := range []string{
		"/api/v1/nodes/node-1/proxy/healthz", "/api/v1/namespaces/default/pods/https:p:" + port + "/proxy/healthz",
		"/api/v1/namespaces/default/services/https:s:80/proxy/healthz",
	} {
		require.Equal(t, "healthy", kubectl("", "get", "--raw", path), path)
	}
	out, err = start("", "get", "--raw", "/api/v1/nodes/loopback/proxy/healthz").CombinedOutput()
	require.Error(t, err, "this machine's own ports are nobody's node")
	require.Contains(t, string(out), "not allowed")

	forward := start("", "port-forward", "pod/p", "0:80")
	lines := firstLine(t, forward)
	local := strings.Fields(lines)[2] // "Forwarding from 127.0.0.1:40000 -> 80"
	conn, err := net.DialTimeout("tcp", local, 10*time.Second)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	_, err = io.WriteString(conn, "to port 80")
	require.NoError(t, err)
	answer := make([]byte, len("80: to port 80"))
	_, err = io.ReadFull(conn, answer)
	require.NoError(t, err)
	require.Equal(t, "80: to port 80", string(answer))

	follow := start("", "logs", "-f", "p")
	require.Equal(t, "the log of default/p/c\n", firstLine(t, follow))
	refused, err := http.Get(server.URL() + "/api/v1/namespaces/default/pods/p/log")
	require.NoError(t, err)
	_ = refused.Body.Close()
	require.Equal(t, http.StatusTooManyRequests, refused.StatusCode, "two streams are open")
	server.Stop()
	_ = follow.Wait() // the command's stream has ended, so the command ends too
}

// firstLine starts a command and returns the first line that it prints. The command ends with the test.
func firstLine(t *testing.T, command *exec.Cmd) string {
	t.Helper()
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
	line := make([]byte, 0, 100)
	for one := make([]byte, 1); !bytes.HasSuffix(line, []byte("\n")); line = append(line, one...) {
		_, err := io.ReadFull(out, one)
		require.NoError(t, err, "%s", line)
	}
	return string(line)
}

// serveKubelet serves containers, which are processes of this machine, to clients that show the certificate. It returns
// the server's address and the authorities of the server's own certificate.
func serveKubelet(t *testing.T, client []byte) (address string, authorities []byte) {
	known, err := cert.ParseCertsPEM(client)
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "healthy") })
	mux.HandleFunc("/containerLogs/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "the log of %s/%s/%s\n", r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container"))
		if follow, _ := strconv.ParseBool(r.URL.Query().Get("follow")); follow {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	})
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		options, err := remotecommand.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		remotecommand.ServeExec(w, r, containers{}, r.PathValue("pod"), "", r.PathValue("container"), r.URL.Query()["command"], options,
			time.Minute, time.Minute, remotecommand.SupportedStreamingProtocols)
	})
	mux.HandleFunc("/attach/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		options, err := remotecommand.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		remotecommand.ServeAttach(w, r, containers{}, r.PathValue("pod"), "", r.PathValue("container"), options,
			time.Minute, time.Minute, remotecommand.SupportedStreamingProtocols)
	})
	mux.HandleFunc("/portForward/{namespace}/{pod}", func(w http.ResponseWriter, r *http.Request) {
		portforward.ServePortForward(w, r, containers{}, r.PathValue("pod"), "", nil, time.Minute, time.Minute, portforward.SupportedProtocols)
	})
	return product.ServeTLS(t, "node-1", tls.RequestClientCert, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proxied := r.URL.Path == "/healthz" // a program in a Pod does not check the API server's certificate
		if !proxied && (len(r.TLS.PeerCertificates) == 0 || !bytes.Equal(r.TLS.PeerCertificates[0].Raw, known[0].Raw)) {
			http.Error(w, "a stranger", http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	}))
}

// containers run commands on this machine. Their streams echo the input.
type containers struct{}

// ExecInContainer implements remotecommand.Executor.
func (containers) ExecInContainer(ctx context.Context, _, _, _ string, args []string, in io.Reader, out, failures io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	command := utilexec.New().CommandContext(ctx, args[0], args[1:]...)
	if in != nil {
		command.SetStdin(in)
	}
	command.SetStdout(out)
	command.SetStderr(failures)
	return command.Run()
}

// AttachContainer implements remotecommand.Attacher.
func (containers) AttachContainer(_ context.Context, _, _, _ string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	_, err := io.Copy(out, in)
	return err
}

// PortForward implements portforward.PortForwarder.
func (containers) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	if _, err := fmt.Fprintf(stream, "%d: ", port); err != nil {
		return err
	}
	_, err := io.Copy(stream, stream)
	return err
}
