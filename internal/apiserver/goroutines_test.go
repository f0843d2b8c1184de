package apiserver

import (
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Nothing runs between two requests: after 100 of every kind there are as many goroutines as before the server was
// made, whether requests are recorded or not.
func TestNoGoroutineOutlivesARequest(t *testing.T) {
	receiver := newAuditReceiver(t)
	recorded := Audit{PolicyFile: auditPolicy(t), LogPath: filepath.Join(t.TempDir(), "audit.log"), WebhookConfigFile: receiver.kubeconfig(t)}
	for name, audit := range map[string]Audit{"not recorded": {}, "recorded": recorded} {
		t.Run(name, func(t *testing.T) { noGoroutineIsLeft(t, audit) })
	}
	require.NotEmpty(t, receiver.received())
}

func noGoroutineIsLeft(t *testing.T, audit Audit) {
	cell := newCell(t)
	_, err := cell.Projection.Latest(t.Context()) // the log's client keeps goroutines that are not the server's
	require.NoError(t, err)
	before := runtime.NumGoroutine()
	s, err := New(Config{Cell: cell, Authorization: Authorization{Mode: "RBAC"}, Audit: audit})
	require.NoError(t, err)
	require.Equal(t, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"default"}}`}.do(t, s).code)
	for i := range 104 {
		mixedRequest(i).do(t, s)
	}
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

// mixedRequest is one of the kinds of requests that a client sends.
func mixedRequest(i int) request {
	const kinds = 13
	name := fmt.Sprintf("x%d", i/kinds)
	object := fmt.Sprintf(`{"metadata":{"name":%q}}`, name)
	return [kinds]request{
		{method: "POST", path: configMaps, body: object},
		{method: "GET", path: configMaps + "/" + name},
		{method: "PATCH", path: configMaps + "/" + name, body: `{"data":{"a":"b"}}`, contentType: "application/merge-patch+json"},
		{method: "PUT", path: configMaps + "/" + name, body: object},
		{method: "GET", path: configMaps + "?limit=2"},
		{method: "GET", path: "/apis/apps/v1/deployments"},
		{method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body: `{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`},
		{method: "GET", path: configMaps + "?watch=true"},
		{method: "GET", path: "/apis/example.com/v1/things"},
		{method: "GET", path: "/apis", accept: "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"},
		{method: "GET", path: "/openapi/v3"},
		{method: "GET", path: "/readyz"},
		{method: "DELETE", path: configMaps + "/" + name},
	}[i%kinds]
}
