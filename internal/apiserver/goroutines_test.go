package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/internal/apiserver/access"
	"github.com/logplane/logplane/internal/apiserver/access/accesstest"
	"github.com/logplane/logplane/internal/apiserver/tokens"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/kubestore/kubestoretest"
	"github.com/logplane/logplane/projection"
)

// Nothing runs between two requests: after 100 requests of every kind there are as many goroutines as before the server
// was made, with and without an audit log. Webhooks and a remote API server close their connections at the end, because
// idle connections to them may be kept.
func TestNoGoroutineOutlivesARequest(t *testing.T) {
	receiver := newAuditReceiver(t)
	recorded := access.Audit{PolicyFile: accesstest.AuditPolicy(t), LogPath: filepath.Join(t.TempDir(), "audit.log"), WebhookConfigFile: receiver.kubeconfig(t)}
	for name, audit := range map[string]access.Audit{"not recorded": {}, "recorded": recorded} {
		t.Run(name, func(t *testing.T) { noGoroutineIsLeft(t, kubestoretest.Cell(t, projection.Config{}), audit) })
	}
	t.Run("watched", func(t *testing.T) {
		c := Config{Cell: kubestoretest.Cell(t, projection.Config{})}
		withFeed(t)(&c)
		noGoroutineIsLeft(t, c.Cell, access.Audit{})
	})
	require.NotEmpty(t, receiver.received())
}

func noGoroutineIsLeft(t *testing.T, cell kubestore.Cell, audit access.Audit) {
	_, err := cell.Projection.Latest(t.Context()) // this read starts goroutines of the log's client, which do not count
	require.NoError(t, err)
	remote, hook := newRemoteServer(t), newWebhookServer(t)
	hook.decides(patching(`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`))
	file, proxy := withTokens(t), remote.proxy(t)
	if cell.Feed != nil { // starts the feed in the background, before goroutines are counted
		other := newServer(t, file, func(c *Config) { c.Cell = cell; c.Cell.Cluster = "other" })
		watchOnce(t, other)
	}
	before := runtime.NumGoroutine()
	c := Config{Cell: cell, Authorization: access.Authorization{Mode: "RBAC"}, Audit: audit}
	file(&c)
	proxy(&c)
	c.Authentication.ServiceAccounts = tokens.Config{Issuers: []string{issuer}, SigningKeyFile: writeKey(t, "key")}
	s, err := New(c)
	require.NoError(t, err)
	root := s.sender(t, "root")
	root(201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"default"}}`})
	s.initialized.Store(true) // as newServer does
	root(201, request{method: "POST", path: accounts, body: `{"metadata":{"name":"builder"}}`})
	remote.register(t, root)
	root(201, request{method: "POST", path: mutatingWebhooks, body: hook.configuration("m", "")})
	root(201, request{method: "POST", path: registration + "validatingadmissionpolicies", body: policyOf("p", "true", "")})
	root(201, request{method: "POST", path: registration + "validatingadmissionpolicybindings", body: bindingOf("p", "")})
	token := s.issue(t, "")
	sent := 0
	for round := range 6 {
		for _, r := range mixedRequests(round, token) {
			got := r.do(t, s)
			require.Less(t, got.code, 500, "%s %s: %s", r.method, r.path, got.body)
			sent++
		}
	}
	require.GreaterOrEqual(t, sent, 100)
	if cell.Feed != nil {
		for range 10 {
			watchOnce(t, s)
		}
	}
	require.NotZero(t, hook.asked.Load())
	hook.CloseClientConnections()
	remote.CloseClientConnections()
	deadline := time.Now().Add(10 * time.Second)
	for runtime.NumGoroutine() > before && time.Now().Before(deadline) {
		runtime.Gosched()
	}
	if after := runtime.NumGoroutine(); after > before {
		var stacks strings.Builder
		require.NoError(t, pprof.Lookup("goroutine").WriteTo(&stacks, 1))
		t.Fatalf("%d goroutines before, %d after:\n%s", before, after, stacks.String())
	}
}

// watchOnce watches until the first event.
func watchOnce(t *testing.T, s *Server) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	r := httptest.NewRequest("GET", "/api/v1/namespaces?watch=true", nil).WithContext(ctx)
	r.Header.Set("Authorization", "Bearer root-token")
	out := leaving{httptest.NewRecorder(), leave}
	s.ServeHTTP(out, r)
	require.Equal(t, 200, out.Code)
	require.Contains(t, out.Body.String(), `"type":"ADDED"`)
}

// leaving is a client that leaves as soon as it has received something.
type leaving struct {
	*httptest.ResponseRecorder
	leave func()
}

func (l leaving) Write(b []byte) (int, error) {
	defer l.leave()
	return l.ResponseRecorder.Write(b)
}

// mixedRequests are the kinds of requests that a client sends.
func mixedRequests(round int, token string) []request {
	name := fmt.Sprintf("x%d", round)
	object := fmt.Sprintf(`{"metadata":{"name":%q}}`, name)
	all := []request{
		{method: "POST", path: configMaps, body: object},
		{method: "GET", path: configMaps + "/" + name},
		{method: "PATCH", path: configMaps + "/" + name, body: `{"data":{"a":"b"}}`, contentType: "application/merge-patch+json"},
		{method: "PUT", path: configMaps + "/" + name, body: object},
		{method: "GET", path: configMaps + "?limit=2"},
		{method: "GET", path: "/apis/apps/v1/deployments"},
		{method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body: `{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`},
		{method: "POST", path: reviewsPath, body: `{"spec":{"token":"` + token + `"}}`},
		{method: "POST", path: accounts + "/builder/token", body: "{}"},
		{method: "GET", path: flunders},
		{method: "GET", path: "/apis/example.com/v1/things"},
		{method: "GET", path: "/apis", accept: "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"},
		{method: "GET", path: "/openapi/v3"},
		{method: "GET", path: "/readyz"},
		{method: "DELETE", path: configMaps + "/" + name},
	}
	for i := range all {
		all[i] = all[i].as("root")
	}
	impersonated := request{method: "GET", path: configMaps}.as("root").with("Impersonate-User", "ann")
	return append(all, impersonated, request{method: http.MethodGet, path: configMaps}.bearing(token), request{method: http.MethodGet, path: configMaps}.as("ann"),
		request{method: http.MethodGet, path: configMaps}.as("stranger"))
}
