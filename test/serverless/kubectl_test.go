package serverless

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
	"github.com/logplane/logplane/test/serverless/emulator"
)

// fronts are the fronts that forward requests.
var fronts = map[string]emulator.Front{
	"function URL": {Shape: emulator.FunctionURL}, "buffered function URL": {Shape: emulator.BufferedURL},
	"HTTP API": {Shape: emulator.HTTPAPI, Stage: "prod"}, "REST API": {Shape: emulator.RESTAPI},
}

// behind gives the front a new function on the cell, and returns the front and its URL.
func behind(t testing.TB, f emulator.Front, c *cell, most int) (emulator.Front, string) {
	environment := c.environment
	if f.Shape == emulator.BufferedURL {
		environment = append(environment[:len(environment):len(environment)], "LOGPLANE_FUNCTION_URL_INVOKE_MODE=BUFFERED")
	}
	f.Function = newFunction(t, "api", most, environment...)
	return f, serve(t, f)
}

// TestFronts: kubectl works through every front that forwards requests.
func TestFronts(t *testing.T) {
	for name, f := range fronts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCell(t)
			f, url := behind(t, f, c, 4)
			kubectl := func(stdin string, args ...string) string {
				t.Helper()
				out, err := c.kubectl(url, stdin, args...)
				require.NoError(t, err, out)
				return out
			}
			kubectl("", "create", "configmap", "greeting", "--from-literal=text=hello")
			require.Equal(t, "hello", kubectl("", "get", "configmap", "greeting", "-o", "jsonpath={.data.text}"))
			out, err := c.kubectl(url, "", "create", "configmap", "greeting")
			require.Error(t, err)
			require.Contains(t, out, "already exists")
			old := kubectl("", "get", "configmap", "greeting", "-o", "yaml")
			kubectl("", "patch", "configmap", "greeting", "--type=merge", "-p", `{"data":{"text":"hello again"}}`)
			out, err = c.kubectl(url, old, "replace", "-f", "-")
			require.Error(t, err)
			require.Contains(t, out, "the object has been modified")
			kubectl(definition, "apply", "-f", "-")
			kubectl(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w"},"spec":{"size":1}}`, "apply", "-f", "-")
			require.Contains(t, kubectl("", "get", "widgets"), "w")
			require.Contains(t, kubectl("", "get", "configmaps", "-l", "none=1,app in (a,b)"), "No resources")
			out = kubectl("", "auth", "whoami", "--as", "jane", "--as-group", "one", "--as-group", "two")
			require.Contains(t, out, "one")
			require.Contains(t, out, "two")
			require.NotContains(t, out, "one,")
			c.watches(t, f, url)
		})
	}
}

// watches follows an object through the front. The client follows the redirect to the watcher, which sends the events,
// so no sandbox is busy with the watch. kubectl watches a list, from the list's revision. A kubectl that watches one
// object by name omits the first event. That event would be the change, if the change came before the watch was open.
func (c *cell) watches(t *testing.T, f emulator.Front, url string) {
	t.Helper()
	watch := exec.CommandContext(t.Context(), product.Binary(t, "KUBECTL", "kubectl"), c.kubectlArgs(url, "get", "configmaps", "--field-selector", "metadata.name=greeting", "--watch", "-o", `jsonpath={.data.text}{"\n"}`)...)
	var out product.Output
	watch.Stdout, watch.Stderr = &out, &out
	require.NoError(t, watch.Start())
	defer func() {
		_ = watch.Process.Kill()
		_ = watch.Wait()
	}()
	eventlogtest.Eventually(t, "kubectl shows the object", func() bool { return strings.Contains(out.String(), "hello again\n") })
	said, err := c.kubectl(url, "", "patch", "configmap", "greeting", "--type=merge", "-p", `{"data":{"text":"while it watches"}}`)
	require.NoError(t, err, said)
	eventlogtest.Eventually(t, "kubectl shows the change", func() bool { return strings.Contains(out.String(), "while it watches\n") })
	eventlogtest.Eventually(t, "every sandbox is idle", func() bool { return f.Function.Resting() == f.Function.Started() })
}

// TestTour executes the README's tour through each front. The README's tour kills a process, which it finds by the lock
// of the process's folder. This test kills a sandbox instead, and the platform starts another sandbox.
func TestTour(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the tour three times")
	}
	blocks := product.Snippets(t, "docs/start.md")
	require.Len(t, blocks["sh tour"], 3)
	script := strings.Join(append(blocks["sh tour"], blocks["sh tour restarted"]...), "\n")
	for _, name := range []string{"function URL", "HTTP API", "REST API"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCell(t)
			f, url := behind(t, fronts[name], c, 4)
			home := t.TempDir()
			require.NoError(t, os.Symlink(filepath.Dir(c.bucket), filepath.Join(home, ".logplane")))
			config := clientcmdapi.NewConfig()
			config.Clusters["c"] = &clientcmdapi.Cluster{Server: url, InsecureSkipTLSVerify: true}
			config.AuthInfos["c"] = &clientcmdapi.AuthInfo{Token: token}
			config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "c"}
			config.CurrentContext = "c"
			require.NoError(t, clientcmd.WriteToFile(*config, filepath.Join(home, "kubeconfig")))
			_, err := c.kubectl(url, "", "get", "namespaces")
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(c.bucket), "lock"), fmt.Append(nil, first(f.Function).Process.Process.Pid), 0o600))
			tour := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"+script)
			tour.Env = append(os.Environ(), "HOME="+home, "KUBECONFIG="+filepath.Join(home, "kubeconfig"),
				"PATH="+filepath.Dir(product.Binary(t, "KUBECTL", "kubectl"))+":"+os.Getenv("PATH"))
			out, err := tour.CombinedOutput()
			require.NoError(t, err, "%s", out)
			for _, expected := range []string{"namespace/tour created", "configmap/greeting patched", "/bucket/logplane/root", "before the kill", `"type":"MODIFIED"`} {
				require.Contains(t, string(out), expected)
			}
		})
	}
}

// TestList: kubectl lists 10,000 objects, some 15 MB, through each front: in one answer if the front streams, and in
// pages.
func TestList(t *testing.T) {
	if testing.Short() {
		t.Skip("makes 10,000 objects")
	}
	t.Parallel()
	const objects = 10_000 / eventlogtest.Slowdown
	c := newCell(t)
	content := strings.Repeat("x", 1000*eventlogtest.Slowdown)
	work := make(chan int)
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for i := range work {
				code, said, err := c.send(http.MethodPost, c.watcher.URL(), "", fmt.Sprintf(`{"metadata":{"name":"c%d"},"data":{"k":%q}}`, i, content))
				if err != nil || code != http.StatusCreated {
					t.Errorf("%d, %v: %s", code, err, said)
				}
			}
		})
	}
	for i := range objects {
		work <- i
	}
	close(work)
	all.Wait()
	for name, page := range map[string]string{"function URL": "0", "HTTP API": "500", "REST API": "500"} {
		g, url := behind(t, fronts[name], c, 1)
		out, err := c.kubectl(url, "", "get", "configmaps", "--chunk-size", page, "-o", "name")
		require.NoError(t, err, "%s: %s\n%s", name, out, first(g.Function).Output())
		require.Equal(t, objects, strings.Count(out, "configmap/c"), name)
	}
}

// TestSandboxes: ten clients at once get ten sandboxes, each of which reads the other clients' writes.
func TestSandboxes(t *testing.T) {
	t.Parallel()
	const sandboxes = 10
	c := newCell(t)
	g, url := behind(t, emulator.Front{Shape: emulator.FunctionURL}, c, sandboxes)
	g.Function.Together(sandboxes)
	var all sync.WaitGroup
	for i := range sandboxes {
		all.Go(func() {
			code, said, err := c.post(url, fmt.Sprint("c", i))
			if err != nil || code != http.StatusCreated {
				t.Errorf("%d, %v: %s", code, err, said)
			}
		})
	}
	all.Wait()
	require.Equal(t, sandboxes, g.Function.Started())
	g.Function.Together(sandboxes)
	for range sandboxes {
		all.Go(func() {
			code, said, err := c.send(http.MethodGet, url, "", "")
			if err != nil || code != http.StatusOK || bytes.Count(said, []byte(`"name":"c`)) != sandboxes {
				t.Errorf("%d, %v: %s", code, err, said)
			}
		})
	}
	all.Wait()
	require.Equal(t, sandboxes, g.Function.Started(), "they served both")
}

// TestIdle: a cell with idle functions costs nothing, however long the functions are idle. A frozen sandbox runs
// nothing. After the platform has ended the sandbox, no connection is left, and nothing in the log or the bucket
// changes by itself.
func TestIdle(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	c.watcher.Stop()
	p := newPassage(t)
	g := emulator.Front{Shape: emulator.FunctionURL, Function: newFunction(t, "api", 1, append(c.environment, "LOGPLANE_NATS=nats://"+p.to(t, strings.TrimPrefix(c.nats, "nats://")))...)}
	url := serve(t, g)
	p.arm(0, passed, nil)
	code, said, err := c.post(url, "one")
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, code, "%s", said)
	eventlogtest.Eventually(t, "the process is stopped", func() bool {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", only(t, g.Function).Process.Process.Pid))
		require.NoError(t, err)
		return strings.Contains(string(state), ") T ")
	})
	require.Positive(t, p.counted())

	g.Function.Reap()
	eventlogtest.Eventually(t, "nobody is connected, and nothing is delivered to anybody", func() bool {
		return p.connections() == 0 && c.log.NumClients() == 0 && len(c.stream(t).Consumer) == 0
	})
	before, steps := c.stream(t), p.counted()
	require.Zero(t, before.Config.MaxAge, "nothing leaves the log by itself")
	g.Function.Pass(time.Hour)
	require.Equal(t, before.State, c.stream(t).State)
	require.Equal(t, steps, p.counted())
	require.Zero(t, g.Function.Started())

	code, said, err = c.send(http.MethodGet, url, "/one", "")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code, "%s", said)
}

// stream returns the server's report about the log's stream.
func (c *cell) stream(t *testing.T) server.StreamDetail {
	t.Helper()
	all, err := c.log.Jsz(&server.JSzOptions{Streams: true, Consumer: true, Config: true})
	require.NoError(t, err)
	require.Len(t, all.AccountDetails, 1)
	require.Len(t, all.AccountDetails[0].Streams, 1)
	return all.AccountDetails[0].Streams[0]
}
