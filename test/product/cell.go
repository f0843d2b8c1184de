package product

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// Cell is a cell as operators run it: each part is a separate process, and the cell uses HTTPS and RBAC.
type Cell struct {
	// Authority is the file with the certificate that signs the server's certificate. SigningKey is the file with the
	// key for tokens of service accounts.
	Authority, SigningKey string

	t            testing.TB
	api, watcher *Process
	certificate  []string // flags
	processes    []*Process
}

// Init makes a cell on the log at a URL, in a bucket, and returns the flags with which other commands find it. A bucket
// without a scheme is a folder. The given flags are only for 'init'.
func Init(t testing.TB, url, bucket string, flags ...string) (where []string) {
	t.Helper()
	if !strings.Contains(bucket, "://") {
		bucket = "file://" + bucket
	}
	where = []string{"--nats", url, "--bucket", bucket}
	made := Run(t, slices.Concat([]string{"init"}, flags, where)...)
	<-made.Exited
	require.Zero(t, made.Cmd.ProcessState.ExitCode(), made.Output())
	return where
}

// RunCell makes a cell, and runs a watcher, an api, a projector and a lifecycle. The token file of these processes has
// the given lines, and the token 'admin', which may do everything. The flags say what the cell keeps from its first
// root on.
func RunCell(t testing.TB, tokens string, flags ...string) *Cell {
	t.Helper()
	folder := t.TempDir()
	file := func(name string) string { return filepath.Join(folder, name) }
	c := &Cell{t: t, Authority: file("ca.crt"), SigningKey: file("service-account.key")}
	plain := Init(t, eventlogtest.Run(t, t.TempDir()).ClientURL(), file("bucket"), append([]string{"--credentials", folder}, flags...)...)
	require.NoError(t, os.WriteFile(file("tokens.csv"), []byte("admin,admin,0,system:masters\n"+tokens), 0o600))
	where := slices.Concat(plain, []string{"--root-ca-file", c.Authority})
	c.certificate = []string{"--listen", "127.0.0.1:0", "--tls-cert-file", file("tls.crt"), "--tls-private-key-file", file("tls.key")}
	serving := slices.Concat(c.certificate, []string{"--client-ca-file", c.Authority, "--token-auth-file", file("tokens.csv"), "--service-account-issuer", "https://logplane.test", "--service-account-signing-key-file", c.SigningKey}, where)
	c.watcher = Serve(t, slices.Concat([]string{"watcher"}, serving)...)
	c.api = Serve(t, slices.Concat([]string{"api", "--watcher-url", c.watcher.URL()}, serving)...)
	c.processes = []*Process{c.watcher, c.api, Run(t, slices.Concat([]string{"projector"}, plain, flags)...), Run(t, slices.Concat([]string{"lifecycle"}, where)...)}
	return c
}

// Front puts a front before the cell. It returns the front, and the watcher that gets the front's watches. Clients that
// are made after the call reach the cell only through the front.
func (c *Cell) Front() (front, watcher *Process) {
	c.t.Helper()
	c.api = Serve(c.t, slices.Concat([]string{"front", "--api", c.api.URL(), "--watcher", c.watcher.URL(), "--api-ca-file", c.Authority}, c.certificate)...)
	c.processes = append(c.processes, c.api)
	return c.api, c.watcher
}

// Kubeconfig writes a kubeconfig for a token, and returns its path.
func (c *Cell) Kubeconfig(token string) string {
	c.t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: c.api.URL(), CertificateAuthority: c.Authority}
	config.AuthInfos["c"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "c"}
	config.CurrentContext = "c"
	path := filepath.Join(c.t.TempDir(), "kubeconfig")
	require.NoError(c.t, clientcmd.WriteToFile(*config, path))
	return path
}

// Admin returns the configuration of a client that may do everything.
func (c *Cell) Admin() *rest.Config {
	c.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig("admin"))
	require.NoError(c.t, err)
	config.QPS = -1
	return config
}

// Start runs another program alongside the cell until the test ends. Its output is shown if the test fails.
func (c *Cell) Start(command *exec.Cmd) {
	c.t.Helper()
	var said bytes.Buffer
	command.Stdout, command.Stderr, command.Dir = &said, &said, c.t.TempDir()
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(c.t, command.Start())
	c.t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if c.t.Failed() {
			c.t.Logf("%s:\n%s", command.Path, said.String()[max(0, said.Len()-8000):])
		}
	})
}

// NoErrors requires that no process of the cell has logged an error.
func (c *Cell) NoErrors() {
	c.t.Helper()
	for _, p := range c.processes {
		require.NotContains(c.t, p.Output(), "level=ERROR")
	}
}
