// Package serverless runs the built binary as functions of an emulated AWS Lambda.
package serverless

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/filesystem"
	"github.com/logplane/logplane/projection/cache"
	"github.com/logplane/logplane/test/product"
	"github.com/logplane/logplane/test/serverless/emulator"
)

// token is an administrator's token.
const token = "a-token-of-an-administrator"

// trusting trusts every certificate, because all servers here are the test's own.
var trusting = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}

// cell is a log, a bucket, and a watcher.
type cell struct {
	t                    testing.TB
	nats, bucket, tokens string
	objects              func() (bucket.Bucket, error) // opens the bucket
	// where has the flags for commands on the cell, and environment the variables that a function needs.
	where, environment []string
	log                *server.Server
	watcher            *product.Process
	kubectl            func(server, stdin string, args ...string) (string, error)
	kubectlArgs        func(server string, args ...string) []string
}

func newCell(t testing.TB, ofWatcher ...string) *cell {
	folder := filepath.Join(t.TempDir(), "bucket")
	c := newCellIn(t, "file://"+folder, ofWatcher...)
	c.bucket = folder
	c.objects = func() (bucket.Bucket, error) { return filesystem.Open(folder) }
	return c
}

// newCellIn makes a cell in a bucket. All other settings that the cell's processes need for the bucket are in the
// environment.
func newCellIn(t testing.TB, bucket string, ofWatcher ...string) *cell {
	folder, log := t.TempDir(), eventlogtest.Run(t, t.TempDir())
	tokens := filepath.Join(folder, "tokens.csv")
	require.NoError(t, os.WriteFile(tokens, []byte(token+",admin,1,system:masters\n"), 0o600))
	where := product.Init(t, log.ClientURL(), bucket)
	c := &cell{t: t, nats: where[1], tokens: tokens, where: where, log: log, watcher: product.Serve(t, slices.Concat([]string{"watcher", "--listen", "127.0.0.1:0", "--token-auth-file", tokens}, ofWatcher, where)...)}
	c.environment = []string{"LOGPLANE_NATS=" + where[1], "LOGPLANE_BUCKET=" + where[3], "LOGPLANE_TOKEN_AUTH_FILE=" + tokens, "LOGPLANE_WATCHER_URL=" + c.watcher.URL()}
	c.kubectlArgs = func(server string, args ...string) []string {
		return append([]string{"--server", server, "--insecure-skip-tls-verify", "--token", token, "--cache-dir", folder}, args...)
	}
	c.kubectl = func(server, stdin string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		command := exec.CommandContext(ctx, product.Binary(t, "KUBECTL", "kubectl"), c.kubectlArgs(server, args...)...)
		command.Stdin = strings.NewReader(stdin)
		out, err := command.CombinedOutput()
		return string(out), err
	}
	return c
}

// write creates an object, or adds a field to it. The object then shows its writer.
func (c *cell) write(base string, w writing, name, who string) (int, []byte, error) {
	data := fmt.Sprintf(`{"metadata":{"name":%q},"data":{%q:"x"}}`, name, who)
	if w == change {
		return c.send(http.MethodPatch, base, "/"+name, data)
	}
	return c.send(http.MethodPost, base, "", data)
}

func (c *cell) post(base, name string) (int, []byte, error) {
	return c.write(base, creation, name, "base")
}

// send sends a request for ConfigMaps as an administrator.
func (c *cell) send(method, base, path, body string) (int, []byte, error) {
	target, err := url.JoinPath(base, "/api/v1/namespaces/default/configmaps", path)
	if err != nil {
		return 0, nil, err
	}
	r, err := http.NewRequestWithContext(c.t.Context(), method, target, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	answer, err := trusting.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	return answer.StatusCode, said, err
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

// TestLargeAnswers: a list that is too large for the platform is refused with advice. A front that streams forwards
// such a list.
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
	// With compression, the answer would be small.
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} // the test's own front
	list := func(f emulator.Front) (int, string) {
		f.Function = newFunction(t, "api", 1, c.environment...)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, serve(t, f)+"/api/v1/namespaces/default/configmaps", http.NoBody)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := transport.RoundTrip(r)
		require.NoError(t, err)
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		return answer.StatusCode, string(body)
	}
	code, body := list(emulator.Front{Shape: emulator.FunctionURL})
	require.Equal(t, http.StatusOK, code)
	require.Greater(t, len(body), objects*each)
	code, body = list(emulator.Front{Shape: emulator.RESTAPI})
	require.Equal(t, http.StatusRequestEntityTooLarge, code)
	require.Contains(t, body, "ask for pages with `limit`")
	code, body = list(emulator.Front{Shape: emulator.LoadBalancer})
	require.Equal(t, http.StatusNotImplemented, code)
	require.Contains(t, body, "1 MB")
}

// TestInitFails: a function reports a mistake in its configuration to the platform.
func TestInitFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handler     string
		environment []string
		says        string
	}{
		"handler":     {"index.handler", nil, "it must be 'api', 'projector', 'lifecycle', 'expiry'"},
		"bucket":      {"api", []string{"LOGPLANE_TOKEN_AUTH_FILE=/dev/null"}, "connect to the log"},
		"credentials": {"bootstrap", nil, "give --token-auth-file, or another way"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFunction(t, c.handler, 1, append(c.environment, "LOGPLANE_NATS=nats://127.0.0.1:1")...)
			_, err := f.Invoke(t.Context(), []byte("{}"))
			require.ErrorContains(t, err, "the initialization failed")
			require.ErrorContains(t, err, c.says)
		})
	}
}

// TestSecret: a function's tokens come from a secret, which its process reads once.
func TestSecret(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	var asked atomic.Int64
	secrets := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = io.WriteString(w, `{"SecretString":"{\"tokens.csv\":\"`+token+`,admin,1,system:masters\\n\"}"}`)
	}))
	t.Cleanup(secrets.Close)
	folder := t.TempDir()
	f := newFunction(t, "api", 1, append(slices.DeleteFunc(c.environment, func(v string) bool { return strings.HasPrefix(v, "LOGPLANE_TOKEN_AUTH_FILE=") }),
		"LOGPLANE_FILES_SECRET=arn:aws:secretsmanager:eu-central-1:123456789012:secret:files", "LOGPLANE_TOKEN_AUTH_FILE="+folder+"/logplane/tokens.csv",
		"TMPDIR="+folder, "AWS_ENDPOINT_URL_SECRETS_MANAGER="+secrets.URL, "AWS_ACCESS_KEY_ID=the-key", "AWS_SECRET_ACCESS_KEY=the-secret")...)
	base := serve(t, emulator.Front{Shape: emulator.FunctionURL, Function: f})
	for i := range 3 {
		code, body, err := c.post(base, fmt.Sprint("c", i))
		require.NoError(t, err)
		require.Equal(t, http.StatusCreated, code, "%s", body)
	}
	require.EqualValues(t, 1, asked.Load())
}

// TestJobs: the other roles run on events of a schedule and of a queue.
func TestJobs(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	for _, handler := range []string{"projector", "lifecycle", "expiry"} {
		f := newFunction(t, handler, 1, c.environment...)
		for _, event := range []string{`{"source":"aws.events","detail-type":"Scheduled Event"}`, `{"Records":[{"eventSource":"aws:sqs"}]}`} {
			got, err := f.Invoke(t.Context(), []byte(event))
			require.NoError(t, err)
			body, err := io.ReadAll(got.Body)
			require.NoError(t, err)
			got.Done()
			require.Empty(t, got.Failure)
			var report map[string]any
			require.NoError(t, json.Unmarshal(body, &report), "%s", body)
			require.NotEmpty(t, report)
		}
	}
	f := newFunction(t, "api", 1, c.environment...)
	got, err := f.Invoke(t.Context(), []byte(`{"source":"aws.events"}`))
	require.NoError(t, err)
	require.Contains(t, got.Failure, "the event is no HTTP request")
}

// queue is an AWS queue with a function behind it. It has only the features that the watcher's doorbell needs.
type queue struct {
	function atomic.Pointer[emulator.Function]
	calls    atomic.Int64
}

// ServeHTTP implements http.Handler.
func (q *queue) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f := q.function.Load()
	if f == nil {
		http.Error(w, "there is no function yet", http.StatusServiceUnavailable)
		return
	}
	q.calls.Add(1)
	got, err := f.Invoke(r.Context(), []byte(`{"Records":[{"eventSource":"aws:sqs","body":"work"}]}`))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer got.Done()
	if _, err := io.Copy(w, got.Body); err != nil || got.Failure != "" {
		panic(http.ErrAbortHandler)
	}
}

// TestDoorbell: in this cell projector and lifecycle are functions, and only the watcher calls them. The projector
// folds writes into the snapshot, and the lifecycle removes a deleted namespace. When no work is left, the functions
// are not called any more.
func TestDoorbell(t *testing.T) {
	t.Parallel()
	var projector, lifecycle queue
	toProjector, toLifecycle := httptest.NewServer(&projector), httptest.NewServer(&lifecycle)
	t.Cleanup(toProjector.Close)
	t.Cleanup(toLifecycle.Close)
	c := newCell(t, "--doorbell", toProjector.URL, "--doorbell", toLifecycle.URL, "--doorbell-every", "10ms")
	projector.function.Store(newFunction(t, "projector", 1, c.environment...))
	lifecycle.function.Store(newFunction(t, "lifecycle", 1, append(c.environment, "LOGPLANE_SETTLE=1ms")...))
	_, url := behind(t, emulator.Front{Shape: emulator.FunctionURL}, c, 2)
	kubectl := func(args ...string) {
		t.Helper()
		out, err := c.kubectl(url, "", args...)
		require.NoError(t, err, out)
	}
	kubectl("create", "namespace", "short")
	kubectl("create", "configmap", "in", "--namespace", "short")
	kubectl("delete", "namespace", "short") // kubectl waits until the namespace is gone
	own := c.projection(t)
	eventlogtest.Eventually(t, "all is in the snapshot", func() bool {
		v, err := own.Latest(t.Context())
		require.NoError(t, err)
		root, err := own.Root(t.Context()) // the root of a view is as old as the view's first read
		require.NoError(t, err)
		return root.Applied == v.Revision()
	})
	// A function that has nothing to do changes nothing, so it causes no further call.
	before, err := own.Latest(t.Context())
	require.NoError(t, err)
	for _, q := range []*queue{&projector, &lifecycle} {
		got, err := q.function.Load().Invoke(t.Context(), []byte("{}"))
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, got.Body)
		require.NoError(t, err)
		got.Done()
		require.Empty(t, got.Failure)
		require.Positive(t, q.calls.Load())
	}
	after, err := own.Latest(t.Context())
	require.NoError(t, err)
	require.Equal(t, before.Revision(), after.Revision())
}

// projection returns a projector of the test's own.
func (c *cell) projection(t *testing.T) *projection.Projection {
	t.Helper()
	conn, err := eventlog.Connect(eventlog.Servers{URL: c.nats})
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	log, err := eventlog.Open(t.Context(), eventlog.Config{Conn: conn})
	require.NoError(t, err)
	bucket, err := c.objects()
	require.NoError(t, err)
	p, err := projection.Open(projection.Config{Log: log, Bucket: bucket, Prefix: "logplane", Budget: cache.NewBudget(1 << 20), TailBytes: 1 << 20, Retention: time.Hour, Founded: true})
	require.NoError(t, err)
	return p
}

// TestThaw: the connection to the log broke silently while the process was frozen. The process notices the freeze by
// the platform's clock, and answers the next request nevertheless.
func TestThaw(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	link := eventlogtest.NewLink(t)
	link.ToAddress(strings.TrimPrefix(c.nats, "nats://"))
	f := newFunction(t, "api", 1, append(c.environment, "LOGPLANE_NATS="+link.URL(), "LOGPLANE_REQUEST_TIMEOUT=3s")...)
	url := serve(t, emulator.Front{Function: f, Shape: emulator.FunctionURL})
	write := func(name string) {
		t.Helper()
		out, err := c.kubectl(url, "", "create", "configmap", name)
		require.NoError(t, err, "%s\n%s", out, only(t, f).Output())
	}
	write("before")
	for i := range 3 {
		link.Lose()
		f.Pass(time.Hour)
		write(fmt.Sprint("after-", i))
	}
	require.Equal(t, 1, f.Started(), "it is one process all the time")
}

// TestThawOfAPlainProcess is TestThaw for a platform that freezes a listening process, such as Cloud Run. The process
// notices the freeze by its own clock. It answers within a second, and also answers other clients that ask at the same
// time.
func TestThawOfAPlainProcess(t *testing.T) {
	needsShipped(t)
	t.Parallel()
	c := newCell(t)
	link := eventlogtest.NewLink(t)
	link.ToAddress(strings.TrimPrefix(c.nats, "nats://"))
	p := product.Serve(t, append(append([]string{"api", "--listen", "127.0.0.1:0", "--token-auth-file", c.tokens}, c.where...),
		"--nats", link.URL(), "--watcher-url", c.watcher.URL(), "--request-timeout", answerTime.String())...)
	code, said, err := c.post(p.URL(), "before")
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, code, "%s", said)
	for i := range 3 {
		require.NoError(t, p.Cmd.Process.Signal(syscall.SIGSTOP))
		link.Lose()
		<-time.After(3 * time.Second) // by its own clock, the process was idle for that long
		require.NoError(t, p.Cmd.Process.Signal(syscall.SIGCONT))
		var all sync.WaitGroup
		for j := range 4 {
			all.Go(func() {
				code, said, err := c.post(p.URL(), fmt.Sprint("after-", i, "-", j))
				assert.NoError(t, err)
				assert.Equal(t, http.StatusCreated, code, "%s", said)
			})
		}
		all.Wait()
	}
}

// TestShutdown: a function that is told to end logs the metrics since its last line, once, and exits with success.
func TestShutdown(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	f := newFunction(t, "projector", 1, c.environment...)
	invoke := func() {
		got, err := f.Invoke(t.Context(), []byte("{}"))
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, got.Body)
		require.NoError(t, err)
		got.Done()
		require.Empty(t, got.Failure)
	}
	over := func(n int) {
		t.Helper()
		eventlogtest.Eventually(t, "the invocation is over, and its line has come through the pipe", func() bool {
			return len(f.Reports()) == n && len(linesOf(t, only(t, f))) > 0
		})
		require.Len(t, linesOf(t, only(t, f)), 1, "one in a minute at most")
	}
	invoke()
	over(1)
	for i := range 2 {
		code, said, err := c.post(c.watcher.URL(), fmt.Sprint("more-", i))
		require.NoError(t, err)
		require.Equal(t, http.StatusCreated, code, "%s", said)
		invoke()
		over(i + 2)
	}
	s := only(t, f)
	f.Reap()
	require.Zero(t, s.Process.ProcessState.ExitCode(), s.Output())
	lines := linesOf(t, s)
	require.Len(t, lines, 2)
	require.EqualValues(t, 2, lines[1]["logplane_commits_total"], "what came since the first line")
	require.Equal(t, "projector", lines[1]["Function"])
}

// linesOf returns the complete lines with metrics that a sandbox has printed.
func linesOf(t *testing.T, s *emulator.Sandbox) (lines []map[string]any) {
	t.Helper()
	for line := range strings.Lines(s.Output()) {
		if strings.HasPrefix(line, "{") && strings.HasSuffix(line, "\n") {
			var decoded map[string]any
			require.NoError(t, json.Unmarshal([]byte(line), &decoded), line)
			require.Contains(t, decoded, "_aws")
			lines = append(lines, decoded)
		}
	}
	return lines
}
