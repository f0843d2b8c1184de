// Package serverless runs the built binary as functions of an emulated AWS Lambda.
package serverless

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

// token is an administrator's.
const token = "a-token-of-an-administrator"

// cell is a log, a bucket, and a watcher.
type cell struct {
	nats        string
	environment []string
	watcher     *product.Process
	kubectl     func(server, stdin string, args ...string) (string, error)
}

func newCell(t testing.TB) *cell {
	folder := t.TempDir()
	tokens := filepath.Join(folder, "tokens.csv")
	require.NoError(t, os.WriteFile(tokens, []byte(token+",admin,1,system:masters\n"), 0o600))
	where := product.Init(t, eventlogtest.Run(t, t.TempDir()).ClientURL(), filepath.Join(folder, "bucket"))
	c := &cell{nats: where[1], watcher: product.Serve(t, append([]string{"watcher", "--listen", "127.0.0.1:0", "--token-auth-file", tokens}, where...)...)}
	c.environment = []string{"LOGPLANE_NATS=" + where[1], "LOGPLANE_BUCKET=" + where[3], "LOGPLANE_TOKEN_AUTH_FILE=" + tokens, "LOGPLANE_WATCHER_URL=" + c.watcher.URL()}
	c.kubectl = func(server, stdin string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		command := exec.CommandContext(ctx, product.Binary(t, "KUBECTL", "kubectl"), append([]string{"--server", server, "--insecure-skip-tls-verify", "--token", token, "--cache-dir", folder}, args...)...)
		command.Stdin = strings.NewReader(stdin)
		out, err := command.CombinedOutput()
		return string(out), err
	}
	return c
}

const definition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

// TestFronts: kubectl works through every front that passes requests on.
func TestFronts(t *testing.T) {
	for name, f := range map[string]front{
		"function URL": {shape: functionURL}, "buffered function URL": {shape: bufferedURL},
		"HTTP API": {shape: httpAPI, stage: "prod"}, "REST API": {shape: restAPI},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCell(t)
			if f.shape == bufferedURL {
				c.environment = append(c.environment, "LOGPLANE_FUNCTION_URL_INVOKE_MODE=BUFFERED")
			}
			f.function = newFunction(t, "api", 4, c.environment...)
			url := f.serve(t)
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
			kubectl(definition, "apply", "-f", "-")
			kubectl(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w"},"spec":{"size":1}}`, "apply", "-f", "-")
			require.Contains(t, kubectl("", "get", "widgets"), "w")
			require.Contains(t, kubectl("", "get", "configmaps", "-l", "none=1,app in (a,b)"), "No resources")
			out = kubectl("", "auth", "whoami", "--as", "jane", "--as-group", "one", "--as-group", "two")
			require.Contains(t, out, "one")
			require.Contains(t, out, "two")
			require.NotContains(t, out, "one,")
			// The client follows the redirect to the watcher, which has the events.
			watched, _ := c.kubectl(url, "", "get", "--raw", "/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1&resourceVersion=0")
			require.Contains(t, watched, `"type":"ADDED"`)
		})
	}
}

// TestLargeAnswers: a list that the platform cannot pass on whole is refused with advice, and streamed where it
// streams.
func TestLargeAnswers(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	api := product.Serve(t, "api", "--listen", "127.0.0.1:0", "--nats", strings.TrimPrefix(c.environment[0], "LOGPLANE_NATS="),
		"--bucket", strings.TrimPrefix(c.environment[1], "LOGPLANE_BUCKET="), "--token-auth-file", strings.TrimPrefix(c.environment[2], "LOGPLANE_TOKEN_AUTH_FILE="))
	const objects, each = 20, 500 << 10
	for i := range objects {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, api.URL()+"/api/v1/namespaces/default/configmaps",
			strings.NewReader(fmt.Sprintf(`{"metadata":{"name":"c%d"},"data":{"k":%q}}`, i, strings.Repeat("x", each))))
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Content-Type", "application/json")
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		_ = answer.Body.Close()
		require.Equal(t, http.StatusCreated, answer.StatusCode)
	}
	// Without compression, which would make it small.
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} // our own front
	list := func(f front) (int, string) {
		f.function = newFunction(t, "api", 1, c.environment...)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.serve(t)+"/api/v1/namespaces/default/configmaps", http.NoBody)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := transport.RoundTrip(r)
		require.NoError(t, err)
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		return answer.StatusCode, string(body)
	}
	code, body := list(front{shape: functionURL})
	require.Equal(t, http.StatusOK, code)
	require.Greater(t, len(body), objects*each)
	code, body = list(front{shape: restAPI})
	require.Equal(t, http.StatusRequestEntityTooLarge, code)
	require.Contains(t, body, "ask for pages with `limit`")
	code, body = list(front{shape: loadBalancer})
	require.Equal(t, http.StatusNotImplemented, code)
	require.Contains(t, body, "1 MB")
}

// TestInitFails: what is wrong with a function's configuration reaches the platform.
func TestInitFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handler     string
		environment []string
		says        string
	}{
		"handler":     {"index.handler", nil, "it must be 'api', 'projector', 'lifecycle', 'expiry'"},
		"bucket":      {"api", []string{"LOGPLANE_TOKEN_AUTH_FILE=/dev/null"}, "connect to the log"},
		"credentials": {"bootstrap", nil, "--token-auth-file must be given"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFunction(t, c.handler, 1, append(c.environment, "LOGPLANE_NATS=nats://127.0.0.1:1")...)
			_, err := f.invoke(t.Context(), []byte("{}"))
			require.ErrorContains(t, err, "the initialization failed")
			require.ErrorContains(t, err, c.says)
		})
	}
}

// TestJobs: a schedule and a queue run the other roles.
func TestJobs(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	for _, handler := range []string{"projector", "lifecycle", "expiry"} {
		f := newFunction(t, handler, 1, c.environment...)
		for _, event := range []string{`{"source":"aws.events","detail-type":"Scheduled Event"}`, `{"Records":[{"eventSource":"aws:sqs"}]}`} {
			got, err := f.invoke(t.Context(), []byte(event))
			require.NoError(t, err)
			body, err := io.ReadAll(got.body)
			require.NoError(t, err)
			got.done()
			require.Empty(t, got.failure)
			var report map[string]any
			require.NoError(t, json.Unmarshal(body, &report), "%s", body)
			require.Len(t, report, 1)
		}
	}
	f := newFunction(t, "api", 1, c.environment...)
	got, err := f.invoke(t.Context(), []byte(`{"source":"aws.events"}`))
	require.NoError(t, err)
	require.Contains(t, got.failure, "the event is no HTTP request")
}

// TestThaw: after a freeze in which the connection to the log has died without a sign, the next request is answered,
// within a second and what it takes anyway.
func TestThaw(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	link := eventlogtest.NewLink(t)
	link.ToAddress(strings.TrimPrefix(c.nats, "nats://"))
	f := newFunction(t, "api", 1, append(c.environment, "LOGPLANE_NATS="+link.URL())...)
	f.timeout = 3 * time.Second // less than a dead connection takes to be noticed
	url := front{function: f, shape: functionURL}.serve(t)
	write := func(name string) {
		t.Helper()
		out, err := c.kubectl(url, "", "create", "configmap", name)
		require.NoError(t, err, "%s\n%s", out, f.all[0].output())
	}
	write("before")
	for i := range 3 {
		link.Lose()
		time.Sleep(2500 * time.Millisecond) // it is frozen
		write(fmt.Sprint("after-", i))
	}
	require.Equal(t, 1, f.started(), "it is one process all the time")
}
