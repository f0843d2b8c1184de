package apiserver

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"github.com/logplane/logplane/internal/apiserver/loopback"
	"github.com/logplane/logplane/internal/kubestore/kubestoretest"
	"github.com/logplane/logplane/projection"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // hundreds of lines for each test would hide why a test failed
	os.Exit(m.Run())
}

// newServer serves a fresh cell with the namespace default. It marks the cluster as initialized without Bootstrap,
// which takes longer.
func newServer(t testing.TB, change ...func(*Config)) *Server {
	t.Helper()
	c := Config{Cell: kubestoretest.Cell(t, projection.Config{})}
	for _, f := range change {
		f(&c)
	}
	s, err := New(c)
	require.NoError(t, err)
	require.Equal(t, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"default"}}`, loopback: true}.do(t, s).code)
	s.initialized.Store(true)
	return s
}

type request struct {
	method, path, body string
	contentType        string
	accept             string
	header             http.Header
	loopback           bool
}

type answer struct {
	code   int
	header http.Header
	body   string
}

func (r request) do(t testing.TB, h http.Handler) answer {
	t.Helper()
	in := httptest.NewRequest(r.method, r.path, strings.NewReader(r.body))
	for name, values := range r.header {
		in.Header[name] = values
	}
	in.Host = "localhost:7373"
	if r.contentType != "" {
		in.Header.Set("Content-Type", r.contentType)
	} else if r.body != "" {
		in.Header.Set("Content-Type", "application/json")
	}
	in.Header.Set("Accept", "application/json")
	if r.accept != "" {
		in.Header.Set("Accept", r.accept)
	}
	if s, ok := h.(*Server); ok && r.loopback {
		response, err := loopback.As(s, loopback.Itself).RoundTrip(in)
		require.NoError(t, err)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return answer{response.StatusCode, response.Header, string(body)}
	}
	out := httptest.NewRecorder()
	h.ServeHTTP(out, in)
	return answer{out.Code, out.Header(), out.Body.String()}
}

// object decodes a JSON answer.
func (a answer) object(t testing.TB) map[string]any {
	t.Helper()
	var object map[string]any
	require.NoError(t, json.Unmarshal([]byte(a.body), &object), a.body)
	return object
}

func fieldOf(object map[string]any, path string) any {
	var value any = object
	for _, name := range strings.Split(path, ".") {
		m, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = m[name]
	}
	return value
}

func TestVerbs(t *testing.T) {
	s := newServer(t)
	for _, c := range []struct{ name, collection, object, patch, wantPath string }{
		{"configmap", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"x"},"data":{"a":"1"}}`, `{"data":{"b":"2"}}`, "data.b"},
		{"secret", "/api/v1/namespaces/default/secrets", `{"metadata":{"name":"x"},"data":{"a":"MQ=="}}`, `{"data":{"b":"Mg=="}}`, "data.b"},
		{"namespace", "/api/v1/namespaces", `{"metadata":{"name":"x"}}`, `{"metadata":{"labels":{"b":"2"}}}`, "metadata.labels.b"},
		{"deployment", "/apis/apps/v1/namespaces/default/deployments", `{"metadata":{"name":"x"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`, `{"spec":{"replicas":3}}`, "spec.replicas"},
		{"clusterrole", "/apis/rbac.authorization.k8s.io/v1/clusterroles", `{"metadata":{"name":"x"},"rules":[]}`, `{"metadata":{"labels":{"b":"2"}}}`, "metadata.labels.b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			created := request{method: "POST", path: c.collection, body: c.object}.do(t, s)
			require.Equal(t, 201, created.code, created.body)
			require.Equal(t, 409, request{method: "POST", path: c.collection, body: c.object}.do(t, s).code)
			got := request{method: "GET", path: c.collection + "/x"}.do(t, s)
			require.Equal(t, 200, got.code, got.body)
			require.Equal(t, fieldOf(created.object(t), "metadata.resourceVersion"), fieldOf(got.object(t), "metadata.resourceVersion"))
			list := request{method: "GET", path: c.collection}.do(t, s)
			require.Equal(t, 200, list.code, list.body)
			patched := request{method: "PATCH", path: c.collection + "/x", body: c.patch, contentType: "application/merge-patch+json"}.do(t, s)
			require.Equal(t, 200, patched.code, patched.body)
			require.NotNil(t, fieldOf(patched.object(t), c.wantPath), patched.body)
			updated := request{method: "PUT", path: c.collection + "/x", body: patched.body}.do(t, s)
			require.Equal(t, 200, updated.code, updated.body)
			require.Equal(t, fieldOf(patched.object(t), "metadata.resourceVersion"), fieldOf(updated.object(t), "metadata.resourceVersion"), "an update that changes nothing")
			stale := request{method: "PUT", path: c.collection + "/x", body: created.body}.do(t, s)
			require.Equal(t, 409, stale.code, stale.body)
			deleted := request{method: "DELETE", path: c.collection + "/x"}.do(t, s)
			require.Equal(t, 200, deleted.code, deleted.body)
		})
	}
}

func TestApply(t *testing.T) {
	s := newServer(t)
	apply := func(manager, force, data string) answer {
		return request{method: "PATCH", path: fmt.Sprintf("/api/v1/namespaces/default/configmaps/x?fieldManager=%s&force=%s", manager, force),
			body:        fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"data":{%s}}`, data),
			contentType: "application/apply-patch+yaml"}.do(t, s)
	}
	created := apply("one", "false", `"a":"1"`)
	require.Equal(t, 201, created.code, created.body)
	conflict := apply("two", "false", `"a":"2"`)
	require.Equal(t, 409, conflict.code, conflict.body)
	forced := apply("two", "true", `"a":"2"`)
	require.Equal(t, 200, forced.code, forced.body)
	require.Equal(t, "2", fieldOf(forced.object(t), "data.a"))
}
