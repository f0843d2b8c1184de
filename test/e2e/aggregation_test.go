package e2e

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

// TestAggregation: processes forward requests to a remote API server, and show that server the client certificate in
// their flags. The lifecycle records whether the server can be reached, and kubectl works with the resources that the
// server serves.
func TestAggregation(t *testing.T) {
	if testing.Short() {
		t.Skip("many processes")
	}
	folder := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(folder, name)
		require.NoError(t, os.WriteFile(path, content, 0o600))
		return path
	}
	certificate, key, err := cert.GenerateSelfSignedCertKey("front-proxy", nil, nil)
	require.NoError(t, err)
	proxy := []string{"--proxy-client-cert-file", write("proxy.crt", certificate), "--proxy-client-key-file", write("proxy.key", key)}
	trust := []string{"--requestheader-client-ca-file", write("proxy-ca.crt", certificate), "--requestheader-allowed-names", "front-proxy"}
	address, authorities := serveFlunders(t, certificate)

	where := product.Init(t, eventlogtest.Run(t, t.TempDir()).ClientURL(), filepath.Join(folder, "bucket"))
	with := func(args ...[]string) (all []string) {
		for _, more := range append(args, where) {
			all = append(all, more...)
		}
		return all
	}
	watcher := product.Serve(t, with([]string{"watcher", "--listen", "127.0.0.1:0", "--authorization-mode", "AlwaysAllow"}, proxy)...)
	product.Run(t, with([]string{"lifecycle"}, proxy)...)
	api := product.Serve(t, with([]string{"api", "--listen", "127.0.0.1:0", "--authorization-mode", "AlwaysAllow", "--watcher-url", watcher.URL()}, proxy, trust)...)
	_, client, _ := clientsFor(t, api.URL())

	published, err := client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "extension-apiserver-authentication", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, `["front-proxy"]`, published.Data["requestheader-allowed-names"])
	require.Contains(t, published.Data["requestheader-client-ca-file"], "BEGIN CERTIFICATE")

	kubectl := func(stdin string, args ...string) string {
		t.Helper()
		c := exec.CommandContext(t.Context(), product.Binary(t, "KUBECTL", "kubectl"), append([]string{"--server", api.URL(), "--cache-dir", folder}, args...)...)
		c.Stdin = strings.NewReader(stdin)
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	host, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	kubectl(fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: wardle, namespace: default}
spec: {ports: [{port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: wardle-1, namespace: default, labels: {kubernetes.io/service-name: wardle}}
addressType: IPv4
ports: [{name: "", port: %s}]
endpoints: [{addresses: [%s]}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.wardle.example.com}
spec: {group: wardle.example.com, version: v1, groupPriorityMinimum: 2000, versionPriority: 15, caBundle: %s, service: {namespace: default, name: wardle}}
`, port, host, base64.StdEncoding.EncodeToString(authorities)), "apply", "-f", "-")
	kubectl("", "wait", "--for=condition=Available", "apiservice/v1.wardle.example.com", "--timeout=60s")
	require.Contains(t, kubectl("", "get", "apiservices"), "default/wardle")
	require.Contains(t, kubectl("", "api-resources", "--api-group=wardle.example.com"), "Flunder")
	require.Contains(t, kubectl("", "get", "flunders"), "one")
	require.Contains(t, kubectl("", "get", "flunders", "--watch", "--output-watch-events", "--request-timeout=20s"), "ADDED", "through the watcher")
}

// serveFlunders serves one object to clients that show the certificate. It returns the server's address and
// authorities.
func serveFlunders(t *testing.T, proxy []byte) (address string, authorities []byte) {
	const one = `{"apiVersion":"wardle.example.com/v1","kind":"Flunder","metadata":{"name":"one","uid":"1","resourceVersion":"1"}}`
	shown, err := cert.ParseCertsPEM(proxy)
	require.NoError(t, err)
	return product.ServeTLS(t, "wardle.default.svc", tls.RequireAnyClientCert, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !bytes.Equal(r.TLS.PeerCertificates[0].Raw, shown[0].Raw) || r.Header.Get("X-Remote-User") == "" {
			http.Error(w, "a stranger", http.StatusUnauthorized)
			return
		}
		answers := map[string]string{
			"/apis": `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`,
			"/apis/wardle.example.com/v1": `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"wardle.example.com/v1","resources":[` +
				`{"name":"flunders","singularName":"flunder","namespaced":false,"kind":"Flunder","verbs":["get","list","watch"]}]}`,
			"/apis/wardle.example.com/v1/flunders": `{"kind":"FlunderList","apiVersion":"wardle.example.com/v1","metadata":{"resourceVersion":"1"},"items":[` + one + `]}`,
		}
		text, ok := answers[r.URL.Path]
		if r.URL.Query().Get("watch") != "" {
			text = `{"type":"ADDED","object":` + one + `}` // this watch has no other event
		}
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, text)
	}))
}
