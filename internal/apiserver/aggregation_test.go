package apiserver

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/keyutil"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/apiserver/access"
	"github.com/logplane/logplane/internal/apiserver/aggregation"
	"github.com/logplane/logplane/internal/apiserver/gate"
	"github.com/logplane/logplane/internal/kubestore/kubestoretest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/test/product"
)

const (
	apiServices = "/apis/apiregistration.k8s.io/v1/apiservices"
	flunders    = "/apis/wardle.example.com/v1/flunders"
)

// remoteServer is a small API server of 'flunders'. Like an API server of upstream's, it trusts only a proxy that has
// the right certificate.
type remoteServer struct {
	*httptest.Server
	address   string
	authority authority
	asked     atomic.Int64
	// legacy is true for a server without aggregated discovery.
	legacy atomic.Bool
	// says has a path and the answer to requests for that path.
	says atomic.Pointer[[2]string]
	// release closes hold. Until then, requests for '/held' are not answered. held gets one value for each such
	// request, and gone one for each watch that has ended.
	release    func()
	hold       chan struct{}
	held, gone chan struct{}
	events     chan string

	mu   sync.Mutex
	last *http.Request // guarded by mu
}

func newRemoteServer(t *testing.T) *remoteServer {
	t.Helper()
	r := &remoteServer{
		authority: newAuthority(t), hold: make(chan struct{}), held: make(chan struct{}, 100), gone: make(chan struct{}, 100), events: make(chan string, 100),
	}
	r.Server = httptest.NewUnstartedServer(r)
	listener, err := net.Listen("tcp", net.JoinHostPort(product.OwnAddress(t), "0"))
	require.NoError(t, err)
	_ = r.Listener.Close()
	r.Listener, r.address = listener, listener.Addr().String()
	clients := x509.NewCertPool()
	clients.AddCert(r.authority.cert)
	certificate, key := r.authority.sign(t, &x509.Certificate{DNSNames: []string{"wardle.default.svc"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	pair, err := tls.X509KeyPair(certificate, key)
	require.NoError(t, err)
	r.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: clients, ClientAuth: tls.VerifyClientCertIfGiven, NextProtos: []string{"h2", "http/1.1"}}
	r.EnableHTTP2 = true
	r.StartTLS()
	t.Cleanup(r.Close)
	r.release = sync.OnceFunc(func() { close(r.hold) })
	t.Cleanup(r.release) // before the server closes, which waits for handlers
	return r
}

// sign signs a certificate. It returns the certificate and its key as PEM.
func (a authority) sign(t *testing.T, template *x509.Certificate) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template.SerialNumber, template.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, private.Public(), a.key)
	require.NoError(t, err)
	key, err = keyutil.MarshalPrivateKeyToPEM(private)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key
}

func (a authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// proxy gives a server the certificate that the remote server trusts.
func (r *remoteServer) proxy(t *testing.T) func(*Config) {
	folder := t.TempDir()
	certificate, key := r.authority.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "front-proxy"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	certFile, keyFile := filepath.Join(folder, "proxy.crt"), filepath.Join(folder, "proxy.key")
	require.NoError(t, os.WriteFile(certFile, certificate, 0o600))
	require.NoError(t, os.WriteFile(keyFile, key, 0o600))
	return func(c *Config) { c.ProxyClientCertFile, c.ProxyClientKeyFile = certFile, keyFile }
}

// register makes the Service, its endpoints and the APIService.
func (r *remoteServer) register(t *testing.T, send func(int, request) answer) {
	t.Helper()
	host, port, err := net.SplitHostPort(r.address)
	require.NoError(t, err)
	send(201, request{method: "POST", path: "/api/v1/namespaces/default/services", body: `{"metadata":{"name":"wardle"},"spec":{"clusterIP":"None","ports":[{"port":443}]}}`})
	send(201, request{method: "POST", path: "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", body: `{"metadata":{"name":"wardle-1","labels":{"kubernetes.io/service-name":"wardle"}},` +
		`"addressType":"IPv4","ports":[{"name":"","port":` + port + `}],"endpoints":[{"addresses":["` + host + `"]}]}`})
	send(201, request{method: "POST", path: apiServices, body: r.apiService("v1", 2000)})
}

func (r *remoteServer) apiService(version string, priority int) string {
	return fmt.Sprintf(`{"metadata":{"name":"%s.wardle.example.com"},"spec":{"group":"wardle.example.com","version":"%s","groupPriorityMinimum":%d,"versionPriority":15,`+
		`"service":{"namespace":"default","name":"wardle"},"caBundle":"%s"}}`, version, version, priority, base64.StdEncoding.EncodeToString(r.authority.pem()))
}

// seen is the last request that the remote server got.
func (r *remoteServer) seen() *http.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

const (
	flunderResources = `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"wardle.example.com/v1","resources":[{"name":"flunders","singularName":"flunder","namespaced":false,"kind":"Flunder","verbs":["create","get","list","watch"]}]}`
	flunderDiscovery = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[{"metadata":{"name":"wardle.example.com"},"versions":[{"version":"v1","resources":[` +
		`{"resource":"flunders","responseKind":{"group":"wardle.example.com","version":"v1","kind":"Flunder"},"scope":"Cluster","singularResource":"flunder","verbs":["create","get","list","watch"]}],"freshness":"Current"}]}]}`
	flunderV2 = `{"swagger":"2.0","info":{"title":"wardle","version":"v1"},"paths":{"/apis/wardle.example.com/v1/flunders":{"get":{"description":"list flunders","responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/com.example.wardle.v1.Flunder"}}}}},` +
		`"/apis/other.example.com/v1/others":{"get":{"responses":{"200":{"description":"OK"}}}}},"definitions":{"com.example.wardle.v1.Flunder":{"type":"object","properties":{"kind":{"type":"string"}}}}}`
	flunderV3 = `{"openapi":"3.0.0","info":{"title":"wardle","version":"v1"},"paths":{"/apis/wardle.example.com/v1/flunders":{"get":{"description":"list flunders"}}}}`
)

func (r *remoteServer) ServeHTTP(w http.ResponseWriter, in *http.Request) {
	r.asked.Add(1)
	body, _ := io.ReadAll(in.Body)
	r.mu.Lock()
	r.last = in.Clone(context.Background())
	r.last.Body = io.NopCloser(strings.NewReader(string(body)))
	r.mu.Unlock()
	if len(in.TLS.VerifiedChains) == 0 || in.TLS.VerifiedChains[0][0].Subject.CommonName != "front-proxy" {
		http.Error(w, "a stranger", http.StatusUnauthorized)
		return
	}
	answer := func(kind, text string) {
		w.Header().Set("Content-Type", kind)
		if says := r.says.Load(); says != nil && says[0] == in.URL.Path {
			text = says[1]
		}
		_, _ = io.WriteString(w, text)
	}
	switch in.URL.Path {
	case "/apis":
		if r.legacy.Load() {
			answer("application/json", `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`)
			return
		}
		answer(aggregatedJSON, flunderDiscovery)
	case "/apis/wardle.example.com/v1":
		answer("application/json", flunderResources)
	case "/openapi/v2":
		answer("application/json", flunderV2)
	case "/openapi/v3":
		answer("application/json", `{"paths":{"apis/wardle.example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/wardle.example.com/v1?hash=ABC"}}}`)
	case "/openapi/v3/apis/wardle.example.com/v1":
		answer("application/json", flunderV3)
	case flunders:
		if in.URL.Query().Get("watch") != "" {
			r.watch(w, in)
			return
		}
		answer("application/json", `{"kind":"FlunderList","apiVersion":"wardle.example.com/v1","metadata":{},"items":[]}`)
	case flunders + "/held":
		r.held <- struct{}{}
		<-r.hold
		answer("application/json", `{}`)
	case flunders + "/conflict":
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, "not even a Status")
	case flunders + "/moved":
		http.Redirect(w, in, "https://metadata.example.com/secret", http.StatusFound)
	case flunders + "/cut":
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	case flunders + "/x/exec":
		r.echo(w)
	default:
		http.NotFound(w, in)
	}
}

func (r *remoteServer) watch(w http.ResponseWriter, in *http.Request) {
	defer func() { r.gone <- struct{}{} }()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	for {
		select {
		case event := <-r.events:
			_, _ = io.WriteString(w, event+"\n")
			_ = http.NewResponseController(w).Flush()
		case <-in.Context().Done():
			return
		}
	}
}

// echo switches protocols and sends every line back.
func (r *remoteServer) echo(w http.ResponseWriter) {
	conn, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	for {
		line, err := buffered.ReadString('\n')
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, "you said "+line)
	}
}

// sender returns a function that sends requests as a user, and requires a code.
func (s *Server) sender(t *testing.T, user string) func(int, request) answer {
	return func(code int, r request) answer {
		t.Helper()
		return s.must(t, code, r.as(user))
	}
}

// TestRequestsAreForwarded: a request for a remote version is authorized, and then reaches the remote server in its
// user's name. Every process forwards such requests from the next request on. Headers in which a client claims to be
// somebody do not reach the remote server.
func TestRequestsAreForwarded(t *testing.T) {
	remote := newRemoteServer(t)
	s := newServer(t, remote.proxy(t), withTokens(t), func(c *Config) { c.Authorization = access.Authorization{Mode: "RBAC"} })
	root := s.sender(t, "root")
	root(404, request{method: "GET", path: flunders})
	remote.register(t, root)
	root(200, request{method: "GET", path: flunders})

	for version, want := range map[schema.GroupVersion]bool{{Group: "wardle.example.com", Version: "v1"}: true, {Group: "wardle.example.com", Version: "v2"}: false, {Group: "apps", Version: "v1"}: false} {
		is, err := s.IsRemote(version)
		require.NoError(t, err)
		require.Equal(t, want, is, version)
	}
	before := remote.asked.Load()
	list := request{method: "GET", path: flunders + "?labelSelector=a%3Db"}
	s.must(t, 401, list)
	s.must(t, 403, list.as("ann"))
	require.Equal(t, before, remote.asked.Load(), "the remote server is not asked about what RBAC refuses")
	root(201, request{method: "POST", path: rbacPath + "/clusterroles", body: `{"metadata":{"name":"flunders"},"rules":[{"apiGroups":["wardle.example.com"],"resources":["*"],"verbs":["*"]}]}`})
	root(201, request{method: "POST", path: rbacPath + "/clusterrolebindings", body: `{"metadata":{"name":"flunders"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"flunders"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"ann"}]}`})

	forged := list.as("ann")
	for name, value := range map[string]string{"X-Remote-User": "root", "X-Remote-Group": "system:masters", "X-Remote-Extra-Scope": "all", "X-Remote-Uid": "0"} {
		forged.header.Set(name, value)
	}
	got := s.must(t, 200, forged)
	require.Equal(t, "FlunderList", got.object(t)["kind"])
	seen := remote.seen()
	require.Equal(t, []string{"ann"}, seen.Header.Values("X-Remote-User"))
	require.Equal(t, []string{"system:authenticated"}, seen.Header.Values("X-Remote-Group"))
	require.Equal(t, []string{"uid-of-ann"}, seen.Header.Values("X-Remote-Uid"))
	require.Empty(t, seen.Header.Values("X-Remote-Extra-Scope"))
	require.Empty(t, seen.Header.Values("Authorization"))
	require.Equal(t, "a=b", seen.URL.Query().Get("labelSelector"))

	// This server does not look at bodies, whatever the bodies contain.
	s.must(t, 404, request{method: "POST", path: flunders + "/y", body: "{not JSON", contentType: "application/json"}.as("ann"))
	body, err := io.ReadAll(remote.seen().Body)
	require.NoError(t, err)
	require.Equal(t, "{not JSON", string(body))
	require.Equal(t, "not even a Status", s.must(t, 409, request{method: "POST", path: flunders + "/conflict", body: "{}"}.as("ann")).body)

	require.Contains(t, s.must(t, 502, request{method: "GET", path: flunders + "/moved"}.as("ann")).body, "not permitted")
	root(200, request{method: "DELETE", path: apiServices + "/v1.wardle.example.com"})
	root(404, request{method: "GET", path: flunders})
}

// TestWhoIsForwardedByAnotherProcess: an APIService counts at once for a process that did not write it.
func TestWhoIsForwardedByAnotherProcess(t *testing.T) {
	remote := newRemoteServer(t)
	one, other, _ := twoServers(t, remote.proxy(t))
	require.NoError(t, one.Bootstrap(t.Context()))
	other.must(t, 404, request{method: "GET", path: flunders})
	remote.register(t, func(code int, r request) answer { return one.must(t, code, r) })
	other.must(t, 200, request{method: "GET", path: flunders})
	// 'v1.wardle.example.com' could also mean version 'v1.wardle' of 'example.com', but the APIService says which of
	// the two is meant.
	asked := remote.asked.Load()
	other.must(t, 404, request{method: "GET", path: "/apis/example.com/v1.wardle/flunders"})
	require.Equal(t, asked, remote.asked.Load())
}

// TestAStrangerIsNotBelieved: without the proxy's certificate the remote server refuses requests, and clients get the
// refusal.
func TestAStrangerIsNotBelieved(t *testing.T) {
	remote := newRemoteServer(t)
	s := newServer(t)
	remote.register(t, func(code int, r request) answer { return s.must(t, code, r) })
	require.Contains(t, s.must(t, 401, request{method: "GET", path: flunders}).body, "a stranger")
	s.must(t, 200, request{method: "PATCH", path: apiServices + "/v1.wardle.example.com", contentType: "application/merge-patch+json", body: `{"spec":{"caBundle":"` + base64.StdEncoding.EncodeToString(newAuthority(t).pem()) + `"}}`})
	require.Contains(t, s.must(t, 503, request{method: "GET", path: flunders}).body, "certificate")
	s.must(t, 200, request{method: "PATCH", path: apiServices + "/v1.wardle.example.com", contentType: "application/merge-patch+json", body: `{"spec":{"caBundle":null,"insecureSkipTLSVerify":true}}`})
	s.must(t, 401, request{method: "GET", path: flunders})
}

// TestRemoteDiscovery: plain discovery, aggregated discovery and OpenAPI show the API that a remote server serves.
func TestRemoteDiscovery(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		t.Run(fmt.Sprintf("legacy=%v", legacy), func(t *testing.T) {
			remote := newRemoteServer(t)
			remote.legacy.Store(legacy)
			s := newServer(t, remote.proxy(t))
			createWidgetCRD(t, s)
			send := func(code int, r request) answer { return s.must(t, code, r) }
			remote.register(t, send)

			var groups metav1.APIGroupList
			require.NoError(t, json.Unmarshal([]byte(send(200, request{method: "GET", path: "/apis"}).body), &groups))
			at := slices.IndexFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == "wardle.example.com" })
			require.Equal(t, len(groups.Groups)-2, at, "by its priority it is below what is built in and above custom resources")
			require.Equal(t, "apiregistration.k8s.io", groups.Groups[0].Name)
			require.Equal(t, "wardle.example.com/v1", groups.Groups[at].PreferredVersion.GroupVersion)
			require.Equal(t, "APIGroup", send(200, request{method: "GET", path: "/apis/wardle.example.com"}).object(t)["kind"])
			require.Equal(t, "APIResourceList", send(200, request{method: "GET", path: "/apis/wardle.example.com/v1"}).object(t)["kind"])
			require.Contains(t, send(200, request{method: "GET", path: "/"}).body, `"/apis/wardle.example.com/v1"`)

			all := aggregatedAt(t, s, "/apis")
			require.Len(t, all.Items, len(groups.Groups))
			for i, g := range groups.Groups {
				require.Equal(t, g.Name, all.Items[i].Name)
			}
			found := all.Items[at].Versions[0]
			require.Equal(t, apidiscoveryv2.DiscoveryFreshnessCurrent, found.Freshness)
			require.Equal(t, "flunders", found.Resources[0].Resource)
			require.Equal(t, "Flunder", found.Resources[0].ResponseKind.Kind)
		})
	}
}

// TestRemoteOpenAPI: both OpenAPI versions describe the API that a remote server serves, and leave out everything else
// in the remote server's document.
func TestRemoteOpenAPI(t *testing.T) {
	if testing.Short() {
		t.Skip("decompresses large documents")
	}
	remote := newRemoteServer(t)
	s := newServer(t, remote.proxy(t))
	send := func(code int, r request) answer { return s.must(t, code, r) }
	before := send(200, request{method: "GET", path: "/openapi/v2"})
	remote.register(t, send)
	after := send(200, request{method: "GET", path: "/openapi/v2"})
	require.NotEqual(t, before.header.Get("Etag"), after.header.Get("Etag"))
	require.Contains(t, after.body, `"/apis/wardle.example.com/v1/flunders"`)
	require.Contains(t, after.body, `"com.example.wardle.v1.Flunder"`)
	require.NotContains(t, after.body, "other.example.com")
	require.Contains(t, send(200, request{method: "GET", path: "/openapi/v2", accept: protoV2}).body, "com.example.wardle.v1.Flunder")

	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	require.NoError(t, json.Unmarshal([]byte(send(200, request{method: "GET", path: "/openapi/v3"}).body), &index))
	require.Equal(t, "/openapi/v3/apis/wardle.example.com/v1?hash=ABC", index.Paths["apis/wardle.example.com/v1"].ServerRelativeURL)
	require.Contains(t, index.Paths, "apis/apps/v1")
	require.Contains(t, send(200, request{method: "GET", path: "/openapi/v3/apis/wardle.example.com/v1?hash=ABC"}).body, "list flunders")
}

// TestMonstrousDocuments: a remote server's documents are measured before they are decoded. A decoder recurses as deep
// as the document nests, until the process's stack overflows.
func TestMonstrousDocuments(t *testing.T) {
	const deep = 300_000
	for what, says := range map[string][2]string{
		"deep":    {"/openapi/v2", `{"swagger":"2.0","info":{},"paths":{},"definitions":{"a":` + strings.Repeat(`{"items":`, deep) + "{}" + strings.Repeat("}", deep) + `}}`},
		"crowded": {"/apis", strings.Replace(flunderDiscovery, `"resources":[`, `"resources":[`+strings.Repeat("{},", deep), 1)},
	} {
		t.Run(what, func(t *testing.T) {
			remote := newRemoteServer(t)
			s := newServer(t, remote.proxy(t))
			remote.says.Store(&says)
			remote.register(t, func(code int, r request) answer { return s.must(t, code, r) })
			const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
			got := s.must(t, 200, request{method: "GET", path: says[0], accept: map[string]string{"/apis": aggregated}[says[0]]})
			require.Less(t, len(got.body), 8<<20)
			require.NotContains(t, got.body, "flunders")
			require.Contains(t, s.must(t, 200, request{method: "GET", path: "/apis", accept: aggregated}).body, "wardle.example.com")
		})
	}
}

// TestARemoteServerThatIsDown: discovery says that the version is stale, and does not fail. Requests are answered 503.
// Nobody waits for a server that was down a moment ago.
func TestARemoteServerThatIsDown(t *testing.T) {
	remote := newRemoteServer(t)
	s := newServer(t, remote.proxy(t))
	send := func(code int, r request) answer { return s.must(t, code, r) }
	remote.register(t, send)
	freshness := func() apidiscoveryv2.APIVersionDiscovery {
		all := aggregatedAt(t, s, "/apis")
		return all.Items[slices.IndexFunc(all.Items, func(g apidiscoveryv2.APIGroupDiscovery) bool { return g.Name == "wardle.example.com" })].Versions[0]
	}
	remote.Close()
	found := freshness()
	require.Equal(t, apidiscoveryv2.DiscoveryFreshnessStale, found.Freshness)
	require.Empty(t, found.Resources)
	send(200, request{method: "GET", path: "/apis"})
	send(200, request{method: "GET", path: "/apis/wardle.example.com"})
	send(200, request{method: "GET", path: "/openapi/v3"})
	got := send(503, request{method: "GET", path: flunders})
	require.Contains(t, got.object(t)["message"], "connection refused")
	require.Empty(t, got.header.Get("Retry-After"))

	// The Service has no endpoints, and then endpoints that must not be called.
	slice := "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
	send(200, request{method: "DELETE", path: slice + "/wardle-1"})
	require.Contains(t, send(503, request{method: "GET", path: flunders}).body, "no endpoints available")
	send(201, request{method: "POST", path: slice, body: `{"metadata":{"name":"wardle-2","labels":{"kubernetes.io/service-name":"wardle"}},"addressType":"FQDN","ports":[{"name":"","port":443}],"endpoints":[{"addresses":["localhost.example.com"]}]}`})
	require.Contains(t, send(503, request{method: "GET", path: flunders}).body, "give its EndpointSlice addresses")
	send(422, request{method: "POST", path: slice, body: `{"metadata":{"name":"wardle-3","labels":{"kubernetes.io/service-name":"wardle"}},"addressType":"IPv4","ports":[{"name":"","port":443}],"endpoints":[{"addresses":["127.0.0.1"]}]}`})
	send(200, request{method: "PATCH", path: "/api/v1/namespaces/default/services/wardle", contentType: "application/merge-patch+json", body: `{"spec":{"type":"ExternalName","externalName":"metadata.example.com","clusterIP":null,"clusterIPs":null}}`})
	require.Contains(t, send(503, request{method: "GET", path: flunders}).body, "unsupported service type")
	require.Equal(t, apidiscoveryv2.DiscoveryFreshnessStale, freshness().Freshness)
}

// TestDiscoveryWaitsForNobody: a remote server that accepts connections and does not answer delays discovery only once
// and briefly. The request holds no seat meanwhile.
func TestDiscoveryWaitsForNobody(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for a silent server")
	}
	remote := newRemoteServer(t)
	s := newServer(t, remote.proxy(t))
	silent, err := net.Listen("tcp", net.JoinHostPort(product.OwnAddress(t), "0"))
	require.NoError(t, err)
	defer silent.Close()
	remote.address = silent.Addr().String()
	remote.register(t, func(code int, r request) answer { return s.must(t, code, r) })
	began := time.Now()
	for range 100 {
		s.must(t, 200, request{method: "GET", path: "/apis", accept: aggregatedJSON})
	}
	require.Less(t, time.Since(began), 9*time.Second, "one of a hundred waits")
}

// TestAnAnswerThatBreaksOff: if an answer breaks off, the client notices that the answer is not complete, and the
// request's seat is given back.
func TestAnAnswerThatBreaksOff(t *testing.T) {
	remote := newRemoteServer(t)
	s := newServer(t, remote.proxy(t), withTokens(t), func(c *Config) { c.Requests = gate.RequestLimits{InFlight: 1} })
	remote.register(t, s.sender(t, "root"))
	listener := httptest.NewServer(s)
	defer listener.Close()
	for range 200 { // more requests than may wait
		r, err := http.NewRequestWithContext(t.Context(), "GET", listener.URL+flunders+"/cut", nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer ann-token")
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			continue
		}
		_, err = io.ReadAll(response.Body)
		_ = response.Body.Close()
		require.Error(t, err)
	}
	s.must(t, 200, request{method: "GET", path: configMaps}.as("ann"))
}

// TestRemoteWatch: events reach the client as they come. The remote watch ends when the client leaves. The client's
// watch ends cleanly when this process stops.
func TestRemoteWatch(t *testing.T) {
	remote := newRemoteServer(t)
	s := newServer(t, remote.proxy(t), withFeed(t))
	remote.register(t, func(code int, r request) answer { return s.must(t, code, r) })
	for _, multiplexed := range []bool{false, true} {
		t.Run(fmt.Sprintf("multiplexed=%v", multiplexed), func(t *testing.T) {
			listener := httptest.NewUnstartedServer(s)
			listener.EnableHTTP2 = multiplexed
			listener.StartTLS()
			t.Cleanup(listener.Close)
			watch := func(ctx context.Context) *bufio.Reader {
				r, err := http.NewRequestWithContext(ctx, "GET", listener.URL+flunders+"?watch=true", nil)
				require.NoError(t, err)
				response, err := listener.Client().Do(r)
				require.NoError(t, err)
				t.Cleanup(func() { _ = response.Body.Close() })
				require.Equal(t, 200, response.StatusCode)
				return bufio.NewReader(response.Body)
			}
			ctx, leave := context.WithCancel(t.Context())
			lines := watch(ctx)
			for i := range 3 {
				event := fmt.Sprintf(`{"type":"ADDED","object":{"n":%d}}`, i)
				remote.events <- event
				line, err := lines.ReadString('\n')
				require.NoError(t, err)
				require.Equal(t, event+"\n", line)
			}
			leave()
			<-remote.gone
			if !multiplexed {
				return
			}
			lines = watch(t.Context())
			drained := make(chan struct{})
			go func() { s.drain(); close(drained) }()
			_, err := lines.ReadString('\n')
			require.Equal(t, io.EOF, err)
			<-remote.gone
			<-drained
		})
	}
}

// TestAFunctionRedirectsRemoteWatches: a function redirects a remote watch as it does all other watches.
func TestAFunctionRedirectsRemoteWatches(t *testing.T) {
	remote := newRemoteServer(t)
	s := newServer(t, remote.proxy(t), elsewhere)
	remote.register(t, func(code int, r request) answer { return s.must(t, code, r) })
	s.must(t, 200, request{method: "GET", path: flunders})
	got := s.must(t, 307, request{method: "GET", path: flunders + "?watch=true"})
	require.Equal(t, "https://watcher.example"+flunders+"?watch=true", got.header.Get("Location"))
}

// TestRemoteUpgrade: a stream in both directions is passed on, and ends when this process stops.
func TestRemoteUpgrade(t *testing.T) {
	remote := newRemoteServer(t)
	s := newServer(t, remote.proxy(t))
	remote.register(t, func(code int, r request) answer { return s.must(t, code, r) })
	listener := httptest.NewServer(s)
	defer listener.Close()
	conn, err := net.Dial("tcp", listener.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	_, err = fmt.Fprintf(conn, "POST %s/x/exec HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: echo\r\nContent-Length: 0\r\n\r\n", flunders)
	require.NoError(t, err)
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	require.NoError(t, err)
	require.Equal(t, 101, response.StatusCode)
	for _, word := range []string{"hello", "again"} {
		_, err = io.WriteString(conn, word+"\n")
		require.NoError(t, err)
		line, err := reader.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "you said "+word+"\n", line)
	}
	require.Equal(t, "system:admin", remote.seen().Header.Get("X-Remote-User"))
	s.drain()
	_, err = reader.ReadByte()
	require.Equal(t, io.EOF, err)
}

// TestASlowRemoteServerHoldsNoSeat: while one user waits for a remote server, other users are served, though there is
// only one seat. The waiting request ends with its deadline.
func TestASlowRemoteServerHoldsNoSeat(t *testing.T) {
	remote := newRemoteServer(t)
	s := newServer(t, remote.proxy(t), withTokens(t), func(c *Config) { c.Requests = gate.RequestLimits{InFlight: 1, Mutating: 1, Timeout: 20 * time.Second} })
	remote.register(t, s.sender(t, "root"))
	done := make(chan int, 10)
	for _, method := range []string{"GET", "POST"} {
		go func() {
			done <- request{method: method, path: flunders + "/held"}.as("ann").do(t, s).code
		}()
		<-remote.held
	}
	s.must(t, 200, request{method: "GET", path: configMaps}.as("bob"))
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"b"}}`}.as("bob"))
	s.must(t, 200, request{method: "GET", path: configMaps}.as("ann"))
	s.must(t, 504, request{method: "GET", path: flunders + "/held?timeout=100ms"}.as("ann"))
	// The lifecycle's own requests can stop waiting, too.
	<-remote.held
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-remote.held; cancel() }()
	in, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Loopback().Host+flunders+"/held", nil)
	require.NoError(t, err)
	gaveUp, err := s.Loopback().Transport.RoundTrip(in) // before the release
	require.NoError(t, err)
	require.Equal(t, 503, gaveUp.StatusCode, "a deadline of the server's own would be 504")
	remote.release()
	require.Equal(t, 200, <-done)
	require.Equal(t, 200, <-done)
}

// TestAvailability: the lifecycle writes the same condition of a remote server as upstream's controller would.
func TestAvailability(t *testing.T) {
	remote := newRemoteServer(t)
	s := newServer(t, remote.proxy(t))
	send := func(code int, r request) answer { return s.must(t, code, r) }
	check := func(port int32) string {
		send(200, request{method: "GET", path: configMaps}) // catches up
		service, err := s.aggregator.Remote(schema.GroupVersion{Group: "wardle.example.com", Version: "v1"})
		require.NoError(t, err)
		service = service.DeepCopy()
		service.Spec.Service.Port = &port
		condition, err := s.CheckRemote(t.Context(), service)
		require.NoError(t, err)
		require.Equal(t, condition.Reason == "Passed", condition.Status == apiregistrationv1.ConditionTrue)
		require.NotEmpty(t, condition.Message)
		return condition.Reason
	}
	remote.register(t, send)
	require.Equal(t, "Passed", check(443))
	require.Equal(t, "ServicePortError", check(444))
	remote.Close()
	require.Equal(t, "FailedDiscoveryCheck", check(443))
	send(200, request{method: "DELETE", path: "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/wardle-1"})
	require.Equal(t, "MissingEndpoints", check(443))
	send(200, request{method: "DELETE", path: "/api/v1/namespaces/default/services/wardle"})
	require.Equal(t, "ServiceNotFound", check(443))
}

// TestLocalAPIServices: the built-in versions are registered as in kube-apiserver, and nobody can give away a version
// that this server serves.
func TestLocalAPIServices(t *testing.T) {
	s := bootstrapped(t)
	send := func(code int, r request) answer { return s.must(t, code, r) }
	apps := send(200, request{method: "GET", path: apiServices + "/v1.apps"}).object(t)
	require.Equal(t, map[string]any{"kube-aggregator.kubernetes.io/automanaged": "onstart"}, fieldOf(apps, "metadata.labels"))
	require.Equal(t, map[string]any{"group": "apps", "version": "v1", "groupPriorityMinimum": 17800.0, "versionPriority": 15.0}, apps["spec"])
	condition := fieldOf(apps, "status.conditions").([]any)[0].(map[string]any)
	require.Equal(t, "Local APIServices are always available", condition["message"])
	require.Equal(t, "True", condition["status"])
	versions := aggregation.Builtin()
	require.Len(t, send(200, request{method: "GET", path: apiServices}).object(t)["items"], len(versions))
	send(200, request{method: "GET", path: apiServices + "/v1."})
	send(404, request{method: "GET", path: apiServices + "/v1.apiregistration.k8s.io"})
	table := send(200, request{method: "GET", path: apiServices, accept: "application/json;as=Table;v=v1;g=meta.k8s.io"}).body
	require.Contains(t, table, `["v1.apps","Local","True"`)

	service := `"service":{"namespace":"default","name":"a"},"insecureSkipTLSVerify":true,"groupPriorityMinimum":1,"versionPriority":1`
	remote := func(group, version string) request {
		return request{method: "POST", path: apiServices, body: `{"metadata":{"name":"` + version + "." + group + `"},"spec":{"group":"` + group + `","version":"` + version + `",` + service + `}}`}
	}
	require.Contains(t, send(422, remote("apps", "v1")).body, "built in")
	send(201, remote("apps", "v9"))
	require.Contains(t, send(422, request{method: "PATCH", path: apiServices + "/v1.apps", contentType: "application/merge-patch+json", body: `{"spec":{` + service + `}}`}).body, "built in")
	createWidgetCRD(t, s)
	require.Contains(t, send(422, remote("example.com", "v1")).body, "CustomResourceDefinition widgets.example.com")
	send(201, remote("example.com", "v7"))
	send(422, request{method: "POST", path: apiServices, body: `{"metadata":{"name":"v1.b.example"},"spec":{"group":"b.example","version":"v1","groupPriorityMinimum":0,"versionPriority":1}}`})
	send(422, request{method: "POST", path: apiServices, body: `{"metadata":{"name":"another"},"spec":{"group":"b.example","version":"v1","groupPriorityMinimum":1,"versionPriority":1}}`})

	// A new version of a built-in group is listed behind the group's own versions.
	require.Contains(t, send(200, request{method: "GET", path: "/apis/apps"}).body, `{"groupVersion":"apps/v9","version":"v9"}`)
	send(200, request{method: "GET", path: "/apis/apps/v1/deployments"})
	send(503, request{method: "GET", path: "/apis/apps/v9/deployments"})
}

// TestTrustIsPublished: remote servers can learn which proxies to trust. Entries of other processes stay, and
// publishing again writes nothing.
func TestTrustIsPublished(t *testing.T) {
	s := bootstrapped(t)
	folder := t.TempDir()
	file := func(name string, a authority) string {
		path := filepath.Join(folder, name)
		require.NoError(t, os.WriteFile(path, a.pem(), 0o600))
		return path
	}
	one, other, clients := newAuthority(t), newAuthority(t), newAuthority(t)
	const path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
	require.NoError(t, s.Publish(t.Context(), aggregation.Trust{ClientCAFile: file("clients", clients)}))
	s.must(t, 404, request{method: "GET", path: path})
	trust := aggregation.Trust{ClientCAFile: file("clients", clients), RequestHeaderCAFile: file("one", one), AllowedNames: []string{"a"}}
	require.NoError(t, s.Publish(t.Context(), trust))
	published := func() map[string]any {
		return s.must(t, 200, request{method: "GET", path: path}).object(t)["data"].(map[string]any)
	}
	require.Equal(t, map[string]any{
		"client-ca-file": string(clients.pem()), "requestheader-client-ca-file": string(one.pem()), "requestheader-allowed-names": `["a"]`,
		"requestheader-username-headers": `["X-Remote-User"]`, "requestheader-uid-headers": `["X-Remote-Uid"]`, "requestheader-group-headers": `["X-Remote-Group"]`,
		"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
	}, published())
	written := eventsOf(t, s)["configmaps"]
	require.NoError(t, s.Publish(t.Context(), trust))
	require.Equal(t, written, eventsOf(t, s)["configmaps"])
	require.NoError(t, s.Publish(t.Context(), aggregation.Trust{RequestHeaderCAFile: file("other", other), AllowedNames: []string{"b"}}))
	require.Equal(t, string(one.pem())+string(other.pem()), published()["requestheader-client-ca-file"])
	require.Equal(t, `["a","b"]`, published()["requestheader-allowed-names"])
	require.Equal(t, string(clients.pem()), published()["client-ca-file"])
	require.ErrorContains(t, s.Publish(t.Context(), aggregation.Trust{RequestHeaderCAFile: "missing"}), "missing")
}

// TestProxyCertificateRotates: after the proxy's certificate was replaced, the next connection uses the new
// certificate.
func TestProxyCertificateRotates(t *testing.T) {
	remote := newRemoteServer(t)
	var files Config
	remote.proxy(t)(&files)
	certificate, key := newAuthority(t).sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "nobody"}})
	good, err := os.ReadFile(files.ProxyClientCertFile)
	require.NoError(t, err)
	goodKey, err := os.ReadFile(files.ProxyClientKeyFile)
	require.NoError(t, err)
	write := func(certificate, key []byte) {
		require.NoError(t, os.WriteFile(files.ProxyClientCertFile, certificate, 0o600))
		require.NoError(t, os.WriteFile(files.ProxyClientKeyFile, key, 0o600))
		old := time.Now().Add(-time.Minute) // files that were just written are left alone for a second
		require.NoError(t, os.Chtimes(files.ProxyClientCertFile, old, old))
		require.NoError(t, os.Chtimes(files.ProxyClientKeyFile, old, old))
	}
	write(certificate, key)
	s := newServer(t, func(c *Config) {
		c.ProxyClientCertFile, c.ProxyClientKeyFile = files.ProxyClientCertFile, files.ProxyClientKeyFile
	})
	remote.register(t, func(code int, r request) answer { return s.must(t, code, r) })
	require.NotEqual(t, 200, request{method: "GET", path: flunders}.do(t, s).code)
	write(good, goodKey)
	eventlogtest.Eventually(t, "the new certificate is shown", func() bool {
		s.Shrink() // closes idle connections
		return request{method: "GET", path: flunders}.do(t, s).code == 200
	})
	_, err = New(Config{Cell: kubestoretest.Cell(t, projection.Config{}), ProxyClientCertFile: "missing", ProxyClientKeyFile: "missing"})
	require.ErrorContains(t, err, "--proxy-client-cert-file")
}
