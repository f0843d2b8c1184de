package apiserver

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/logplane/logplane/internal/apiserver/access"
	"github.com/logplane/logplane/internal/apiserver/access/accesstest"
	"github.com/logplane/logplane/internal/apiserver/gate"
	"github.com/logplane/logplane/test/product"
	"github.com/logplane/logplane/watcher/doorbell"
)

// peer is a server that a Server calls. It has an address of its own on this machine, and answers '{}' until a fault is
// set.
type peer struct {
	*httptest.Server
	plain *httptest.Server // the same server by plain HTTP
	fault atomic.Pointer[string]

	asked       chan *http.Request
	begun, left chan struct{} // begun gets each call with half an answer, and left each stalled call that has ended
	sent        atomic.Int64  // bytes of answers
	moved       atomic.Int64  // calls that followed the peer's redirect
}

const service = `{"namespace":"default","name":"peer"}`

func newPeer(t *testing.T) *peer {
	p := &peer{asked: make(chan *http.Request, 1000), begun: make(chan struct{}, 1000), left: make(chan struct{}, 1000)}
	p.set("")
	own, authority := product.OwnAddress(t), newAuthority(t)
	certificate, key := authority.sign(t, &x509.Certificate{
		DNSNames: []string{"peer.default.svc", "kubernetes.default.svc"}, IPAddresses: []net.IP{net.ParseIP(own)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	pair, err := tls.X509KeyPair(certificate, key)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", net.JoinHostPort(own, "0"))
	require.NoError(t, err)
	p.Server = httptest.NewUnstartedServer(p)
	_ = p.Listener.Close()
	p.Listener, p.TLS = listener, &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert}
	p.StartTLS()
	p.plain = httptest.NewServer(p)
	t.Cleanup(p.Close)
	t.Cleanup(p.plain.Close)
	return p
}

func (p *peer) set(fault string) { p.fault.Store(&fault) }

// begin sets a fault, and forgets the calls so far.
func (p *peer) begin(fault string) {
	for len(p.asked) > 0 {
		<-p.asked
	}
	p.set(fault)
}

// bomb is a mebibyte that decompresses to a gibibyte.
var bomb = sync.OnceValue(func() []byte {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	for zeros := make([]byte, 1<<20); packed.Len() < 1<<20; {
		_, _ = w.Write(zeros)
	}
	_ = w.Close()
	return packed.Bytes()
})

// ServeHTTP implements http.Handler.
func (p *peer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	if r.URL.Path == "/elsewhere" {
		p.moved.Add(1)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	p.asked <- r
	switch *p.fault.Load() {
	case "":
		_, _ = io.WriteString(w, "{}")
	case "redirects to http":
		http.Redirect(w, r, p.plain.URL+"/elsewhere", http.StatusTemporaryRedirect)
	case "redirects to https":
		http.Redirect(w, r, p.URL+"/elsewhere", http.StatusPermanentRedirect)
	case "sends a bomb":
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(bomb())
	case "never ends":
		for spaces := bytes.Repeat([]byte(" "), 64<<10); ; {
			n, err := w.Write(spaces)
			p.sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	case "begins and stalls":
		_, _ = io.WriteString(w, "{")
		_ = http.NewResponseController(w).Flush()
		p.begun <- struct{}{}
		fallthrough
	case "stalls":
		<-r.Context().Done()
		p.left <- struct{}{}
		panic(http.ErrAbortHandler)
	}
}

// at is the part of an object that names the peer by its URL. service is the part that names the peer by a Service.
// Both contain the peer's authority.
func (p *peer) at() string      { return `{"url":"` + p.URL + `",` + p.bundle() + `}` }
func (p *peer) service() string { return `{"service":` + service + `,` + p.bundle() + `}` }
func (p *peer) bundle() string {
	return `"caBundle":"` + base64.StdEncoding.EncodeToString([]byte(accesstest.AuthorityOf(p.Server))) + `"`
}

// serve makes a Service whose endpoint is the peer.
func (p *peer) serve(t *testing.T, s *Server, name string) {
	host, port, err := net.SplitHostPort(p.Listener.Addr().String())
	require.NoError(t, err)
	s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces/default/services", body: `{"metadata":{"name":"` + name + `"},"spec":{"clusterIP":"None","ports":[{"port":443}]}}`, loopback: true})
	s.must(t, 201, request{method: "POST", path: "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", body: `{"metadata":{"name":"` + name + `-1","labels":{"kubernetes.io/service-name":"` + name + `"}},` +
		`"addressType":"IPv4","ports":[{"name":"","port":` + port + `}],"endpoints":[{"addresses":["` + host + `"]}]}`, loopback: true})
}

// node makes a Node at an address, and a Pod on that Node.
func (s *Server) node(t *testing.T, name, host, port string) {
	s.must(t, 201, request{method: "POST", path: "/api/v1/nodes", body: `{"metadata":{"name":"` + name + `"},"status":{"addresses":[{"type":"InternalIP","address":"` + host + `"}],"daemonEndpoints":{"kubeletEndpoint":{"Port":` + port + `}}}}`, loopback: true})
	s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces/default/pods", body: `{"metadata":{"name":"` + name + `"},"spec":{"nodeName":"` + name + `","containers":[{"name":"c","image":"i"}]}}`, loopback: true})
}

func (a authority) files(t *testing.T, name pkix.Name) (certFile, keyFile string) {
	certificate, key := a.sign(t, &x509.Certificate{Subject: name, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	folder := t.TempDir()
	certFile, keyFile = filepath.Join(folder, "crt"), filepath.Join(folder, "key")
	require.NoError(t, os.WriteFile(certFile, certificate, 0o600))
	require.NoError(t, os.WriteFile(keyFile, key, 0o600))
	return certFile, keyFile
}

func (a authority) kubelets(t *testing.T, name pkix.Name) Kubelets {
	certFile, keyFile := a.files(t, name)
	return Kubelets{CertFile: certFile, KeyFile: keyFile, AddressTypes: []string{"InternalIP"}}
}

const validatingAll = `{"metadata":{"name":"all"},"webhooks":[{"name":"a.example.com","sideEffects":"None","admissionReviewVersions":["v1"],"timeoutSeconds":1,"clientConfig":%s,` +
	`"rules":[{"apiGroups":[""],"apiVersions":["*"],"operations":["*"],"resources":["configmaps"]}]}]}`

var remoteThings = func(p *peer) string {
	return `{"metadata":{"name":"v1.remote.ex"},"spec":{"group":"remote.ex","version":"v1","groupPriorityMinimum":10,"versionPriority":10,"service":` + service + `,` + p.bundle() + `}}`
}

// callers are all the ways in which this program calls another server, by the kind of that server. set returns a
// function that makes such a call to the peer. Whatever the peer does, the function returns one of the codes. If
// streams is true, the server passes on the peer's answer without a bound of its own.
var callers = map[string]struct {
	codes   []int
	streams bool
	set     func(t *testing.T, p *peer) (ask func() int)
}{
	"an admission webhook":              {[]int{500}, false, func(t *testing.T, p *peer) func() int { return asksAdmission(t, p, p.at()) }},
	"an admission webhook of a Service": {[]int{500}, false, func(t *testing.T, p *peer) func() int { return asksAdmission(t, p, p.service()) }},
	"a conversion webhook":              {[]int{500, 504}, false, func(t *testing.T, p *peer) func() int { return asksConversion(t, p, p.at()) }},
	"a conversion webhook of a Service": {[]int{500, 504}, false, func(t *testing.T, p *peer) func() int { return asksConversion(t, p, p.service()) }},
	"the webhook that judges tokens": {[]int{401, 504}, false, func(t *testing.T, p *peer) func() int {
		s := newServer(t, withTokens(t), func(c *Config) {
			c.Authentication.Reviews = access.ReviewsConfig{File: accesstest.Kubeconfig(t, p.Server), Version: "v1"}
		})
		return asks(t, s, request{method: "GET", path: configMaps + "?timeout=1s"}.as("nobody"))
	}},
	"the webhook that judges requests": {[]int{500}, false, func(t *testing.T, p *peer) func() int {
		s := newServer(t, withTokens(t), func(c *Config) { c.Authorization.ConfigFile = authorizationOf(t, accesstest.Kubeconfig(t, p.Server)) })
		return asks(t, s, request{method: "GET", path: configMaps + "?timeout=1s"}.as("ann"))
	}},
	"an issuer": {[]int{401}, false, func(t *testing.T, p *peer) func() int {
		issuer := &accesstest.Issuer{Server: p.Server}
		issuer.Rotate(t)
		s := newServer(t, func(c *Config) { c.Authentication.ConfigFile = issuer.Config(t, "") })
		return asks(t, s, request{method: "GET", path: configMaps}.bearing(issuer.Token(t, nil)))
	}},
	"the webhook that gets records": {[]int{500}, false, func(t *testing.T, p *peer) func() int {
		s := newServer(t, func(c *Config) {
			c.Audit = access.Audit{PolicyFile: accesstest.AuditPolicy(t), WebhookConfigFile: accesstest.Kubeconfig(t, p.Server), WebhookMode: "blocking-strict"}
		})
		return asks(t, s, request{method: "GET", path: configMaps})
	}},
	"a remote API server's discovery": {[]int{200}, false, func(t *testing.T, p *peer) func() int {
		return asks(t, p.remote(t), request{method: "GET", path: "/apis", accept: aggregatedJSON})
	}},
	"a remote API server's documents": {[]int{200}, false, func(t *testing.T, p *peer) func() int {
		return asks(t, p.remote(t), request{method: "GET", path: "/openapi/v3"})
	}},
	"a remote API server's condition": {[]int{503}, false, func(t *testing.T, p *peer) func() int {
		s, service := p.remote(t), &apiregistrationv1.APIService{}
		require.NoError(t, json.Unmarshal([]byte(remoteThings(p)), service))
		return func() int {
			condition, err := s.CheckRemote(t.Context(), service)
			assert.NoError(t, err)
			assert.Equal(t, apiregistrationv1.ConditionFalse, condition.Status, condition.Message)
			return 503
		}
	}},
	"a remote API server": {[]int{502, 503}, true, func(t *testing.T, p *peer) func() int {
		return asks(t, p.remote(t), request{method: "GET", path: "/apis/remote.ex/v1/things"})
	}},
	"a kubelet for a log": {[]int{500}, true, func(t *testing.T, p *peer) func() int {
		return asks(t, p.kubelet(t), request{method: "GET", path: "/api/v1/namespaces/default/pods/n/log"})
	}},
	"a kubelet": {[]int{307, 308}, true, func(t *testing.T, p *peer) func() int {
		return asks(t, p.kubelet(t), request{method: "GET", path: "/api/v1/nodes/n/proxy/x"})
	}},
	"a door": {[]int{0}, false, func(t *testing.T, p *peer) func() int {
		return func() int {
			ctx, stop := context.WithCancel(t.Context())
			bell, err := doorbell.New(ctx, []string{p.plain.URL}, time.Millisecond)
			assert.NoError(t, err)
			done := make(chan error, 1)
			go func() { done <- bell.Run(ctx) }()
			bell.Work()
			first := <-p.asked
			bell.Work()
			<-p.asked // the first call has ended
			p.asked <- first
			stop()
			assert.NoError(t, <-done)
			return 0
		}
	}},
}

func asks(t *testing.T, s *Server, r request) func() int {
	return func() int { return r.do(t, s).code }
}

func asksAdmission(t *testing.T, p *peer, clientConfig string) func() int {
	s := newServer(t)
	p.serve(t, s, "peer")
	s.must(t, 201, request{method: "POST", path: validatingWebhooks, body: fmt.Sprintf(validatingAll, clientConfig)})
	return asks(t, s, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`})
}

func asksConversion(t *testing.T, p *peer, clientConfig string) func() int {
	s := newServer(t)
	p.serve(t, s, "peer")
	s.must(t, 201, request{method: "POST", path: crdPath, body: convertedCRD("thing", clientConfig)})
	s.must(t, 201, request{method: "POST", path: "/apis/ex.com/v1/namespaces/default/things", body: fmt.Sprintf(outageCustom, "x")})
	return asks(t, s, request{method: "GET", path: "/apis/ex.com/v2/namespaces/default/things/x?timeout=1s"})
}

func (p *peer) remote(t *testing.T) *Server {
	s := newServer(t)
	p.serve(t, s, "peer")
	s.must(t, 201, request{method: "POST", path: apiServices, body: remoteThings(p)})
	return s
}

func (p *peer) kubelet(t *testing.T) *Server {
	s := newServer(t, func(c *Config) {
		c.Kubelets = newAuthority(t).kubelets(t, pkix.Name{CommonName: "api"})
	})
	host, port, err := net.SplitHostPort(p.Listener.Addr().String())
	require.NoError(t, err)
	s.node(t, "n", host, port)
	return s
}

// TestCalls: no call follows a redirect with the contents of a request, and no answer, compressed or not, takes more
// memory than its bound.
func TestCalls(t *testing.T) {
	for who, caller := range callers {
		faults := []string{"redirects to http", "redirects to https"}
		if !caller.streams {
			faults = append(faults, "sends a bomb", "never ends")
		}
		for _, fault := range faults {
			p, what := newPeer(t), who+" "+fault
			ask := caller.set(t, p)
			p.begin(fault)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			code := ask()
			runtime.ReadMemStats(&after)
			if heard := who == "the webhook that gets records" && fault == "never ends"; !heard {
				require.Contains(t, caller.codes, code, what)
			}
			asked := <-p.asked
			if !caller.streams {
				require.Equal(t, "identity", asked.Header.Get("Accept-Encoding"), what)
			}
			require.Zero(t, p.moved.Load(), what)
			require.Less(t, p.sent.Load(), int64(64<<20), what)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(256<<20), what)
		}
	}
}

// TestCallsThatStall: every kind of call ends, even if the peer does not end its answer.
func TestCallsThatStall(t *testing.T) {
	t.Parallel() // this test only waits
	var running sync.WaitGroup
	defer running.Wait()
	for who, caller := range callers {
		if caller.streams || testing.Short() && strings.Contains(who, "conversion") { // upstream's conversion may take half a minute, too
			continue
		}
		for _, fault := range []string{"stalls", "begins and stalls"} {
			p, what := newPeer(t), who+" "+fault
			ask := caller.set(t, p)
			p.begin(fault)
			running.Go(func() {
				assert.Contains(t, caller.codes, ask(), what)
				<-p.left
			})
		}
	}
}

// TestAHalfAnswerHoldsNoSeat: a request gives its seat to others while its webhook is in the middle of an answer.
func TestAHalfAnswerHoldsNoSeat(t *testing.T) {
	p := newPeer(t)
	s := newServer(t, withTokens(t), func(c *Config) {
		c.Authentication.Reviews = access.ReviewsConfig{File: accesstest.Kubeconfig(t, p.Server), Version: "v1"}
		c.Requests = gate.RequestLimits{Mutating: 1, Timeout: 4 * time.Second}
	})
	p.set("begins and stalls")
	asked := make(chan int, 1)
	go func() {
		asked <- request{method: "POST", path: reviewsPath, body: `{"spec":{"token":"x"}}`}.as("ann").do(t, s).code
	}()
	<-p.begun
	for len(p.left) == 0 { // until a webhook is asked while the rest of the answer is awaited
		s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"generateName":"x"}}`}.as("bob"))
	}
	<-asked
}

// TestNoAddressOfThisMachine: if other machines reach the server, the server calls no address of this machine, whether
// an object contains the address or a name that stands for the address.
func TestNoAddressOfThisMachine(t *testing.T) {
	local := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the machine itself was called") }))
	t.Cleanup(local.Close)
	_, port, err := net.SplitHostPort(local.Listener.Addr().String())
	require.NoError(t, err)
	beyond := func(c *Config) {
		c.BeyondLoopback = true
		c.Kubelets = newAuthority(t).kubelets(t, pkix.Name{CommonName: "api"})
	}
	const says = "which no object may name"
	s := newServer(t, beyond)
	for i, host := range []string{"127.0.0.1", "127.1.2.3", "localhost", "0.0.0.0", "169.254.169.254", "[::1]", "[::ffff:127.0.0.1]", "[fe80::1]"} {
		at := `{"url":"https://` + net.JoinHostPort(strings.Trim(host, "[]"), port) + `"}`
		path := validatingWebhooks + "/all"
		s.must(t, 201, request{method: "POST", path: validatingWebhooks, body: fmt.Sprintf(validatingAll, at)})
		require.Contains(t, s.must(t, 500, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`}).body, says, host)
		s.must(t, 200, request{method: "DELETE", path: path})

		thing := "thing" + strconv.Itoa(i)
		s.must(t, 201, request{method: "POST", path: crdPath, body: convertedCRD(thing, at)})
		s.must(t, 201, request{method: "POST", path: "/apis/ex.com/v1/namespaces/default/" + thing + "s", body: strings.Replace(fmt.Sprintf(outageCustom, "x"), "Thing", "T"+thing[1:], 1)})
		require.Contains(t, s.must(t, 500, request{method: "GET", path: "/apis/ex.com/v2/namespaces/default/" + thing + "s/x"}).body, says, host)
	}
	s.node(t, "n", "127.0.0.1", port)
	require.Contains(t, s.must(t, 500, request{method: "GET", path: "/api/v1/namespaces/default/pods/n/log"}).body, says)
}

// TestNamesThatChange: an address is checked when it is called, even if an earlier check of the name found another
// address.
func TestNamesThatChange(t *testing.T) {
	local := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the machine itself was called") }))
	t.Cleanup(local.Close)
	_, port, err := net.SplitHostPort(local.Listener.Addr().String())
	require.NoError(t, err)
	own, asked := netip.MustParseAddr(product.OwnAddress(t)).As4(), atomic.Int64{}
	before := net.DefaultResolver
	t.Cleanup(func() { net.DefaultResolver = before })
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe() // as over TCP: each message follows its length
		go func() {
			defer ours.Close()
			var length [2]byte
			for {
				if _, err := io.ReadFull(ours, length[:]); err != nil {
					return
				}
				message := make([]byte, binary.BigEndian.Uint16(length[:]))
				var m dnsmessage.Message
				if _, err := io.ReadFull(ours, message); err != nil || m.Unpack(message) != nil {
					return
				}
				m.Response, m.Additionals = true, nil
				if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
					at := dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}}
					if asked.Add(1) == 1 {
						at.A = own
					}
					m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}, Body: &at}}
				}
				packed, _ := m.Pack()
				_, _ = ours.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(packed))), packed...))
			}
		}()
		return theirs, nil
	}}
	s := newServer(t, func(c *Config) {
		c.BeyondLoopback = true
		c.Kubelets = newAuthority(t).kubelets(t, pkix.Name{CommonName: "api"})
	})
	s.node(t, "n", "node.example.", port)
	for _, node := range []string{"n", "https:n:" + port, "https:n:1" + port[1:]} {
		asked.Store(0)
		got := request{method: "GET", path: "/api/v1/nodes/" + node + "/proxy/x"}.do(t, s)
		require.Contains(t, got.body, "which no object may name", node)
		require.EqualValues(t, 2, asked.Load(), node)
	}
}

// TestCallsToItself: a user who makes this API call itself gains no more than a client without credentials.
func TestCallsToItself(t *testing.T) {
	authority, folder := newAuthority(t), t.TempDir()
	ca := filepath.Join(folder, "ca")
	require.NoError(t, os.WriteFile(ca, authority.pem(), 0o600))
	privileged := pkix.Name{CommonName: "kube-apiserver", Organization: []string{"system:masters"}}
	s := newServer(t, func(c *Config) {
		c.Authentication.ClientCAFile = ca
		c.Kubelets = authority.kubelets(t, privileged)
		c.ProxyClientCertFile, c.ProxyClientKeyFile = authority.files(t, privileged)
	})
	var calls atomic.Int64
	itself := newPeer(t)
	itself.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		if known, ok, _ := s.generic.Authentication.Authenticator.AuthenticateRequest(r.Clone(r.Context())); ok {
			t.Errorf("%s %s was called as %s", r.Method, r.URL, known.User.GetName())
		}
		s.ServeHTTP(w, r)
	})
	itself.serve(t, s, "peer")
	itself.serve(t, s, "kubernetes")
	host, port, err := net.SplitHostPort(itself.Listener.Addr().String())
	require.NoError(t, err)
	s.node(t, "n", host, port)
	ask := func(r request) string {
		t.Helper()
		before := calls.Load()
		r.loopback = true
		got := r.do(t, s)
		require.GreaterOrEqual(t, got.code, 400, got.body)
		require.Greater(t, calls.Load(), before)
		return got.body
	}
	for _, path := range []string{"/api/v1/nodes/n/proxy/api/v1/secrets", "/api/v1/namespaces/default/pods/n/log"} {
		ask(request{method: "GET", path: path})
	}
	s.must(t, 201, request{method: "POST", path: apiServices, body: remoteThings(itself), loopback: true})
	ask(request{method: "GET", path: "/apis/remote.ex/v1/things"})
	path := `,"path":"/api/v1/namespaces/default/configmaps"}`
	for i, clientConfig := range []string{
		strings.Replace(itself.service(), service, `{"namespace":"default","name":"kubernetes"`+path, 1),
		strings.Replace(itself.at(), itself.URL, itself.URL+configMaps, 1),
	} {
		thing := "thing" + strconv.Itoa(i)
		s.must(t, 201, request{method: "POST", path: crdPath, body: convertedCRD(thing, clientConfig), loopback: true})
		s.must(t, 201, request{method: "POST", path: "/apis/ex.com/v1/namespaces/default/" + thing + "s", body: strings.Replace(fmt.Sprintf(outageCustom, "x"), "Thing", "T"+thing[1:], 1), loopback: true})
		ask(request{method: "GET", path: "/apis/ex.com/v2/namespaces/default/" + thing + "s/x"})
		s.must(t, 201, request{method: "POST", path: validatingWebhooks, body: fmt.Sprintf(validatingAll, clientConfig), loopback: true})
		ask(request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`})
		s.must(t, 200, request{method: "DELETE", path: validatingWebhooks + "/all", loopback: true})
	}

	// Upstream's resolver would send the token of the process's own Pod to this name.
	known := s.servers.Calls(&webhookutil.AuthenticationInfoResolverDelegator{ClientConfigForFunc: func(string) (*rest.Config, error) { return &rest.Config{BearerToken: "secret"}, nil }})
	byURL, err := known.ClientConfigFor("kubernetes.default.svc:443")
	require.NoError(t, err)
	byService, err := known.ClientConfigForService("kubernetes", "default", 443)
	require.NoError(t, err)
	require.Empty(t, byURL.BearerToken+byService.BearerToken)
	other, err := known.ClientConfigForService("hook", "default", 443)
	require.NoError(t, err)
	require.Equal(t, "secret", other.BearerToken, "the operator's kubeconfig has it for that one")
}

// inPod makes a server that can call a Pod, which has its own address on this machine. The given function handles each
// connection to the Pod.
func inPod(t *testing.T, handle func(net.Conn)) (server *httptest.Server, path string) {
	s := newServer(t, func(c *Config) { c.Kubelets = newAuthority(t).kubelets(t, pkix.Name{CommonName: "api"}) })
	listener, err := net.Listen("tcp", net.JoinHostPort(product.OwnAddress(t), "0"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				handle(conn)
			}()
		}
	}()
	host, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	s.node(t, "n", host, port)
	s.must(t, 200, request{method: "PATCH", path: "/api/v1/namespaces/default/pods/n/status", contentType: "application/merge-patch+json",
		body: `{"status":{"podIP":"` + host + `","podIPs":[{"ip":"` + host + `"}]}}`, loopback: true})
	server = httptest.NewServer(s)
	t.Cleanup(server.Close)
	return server, "/api/v1/namespaces/default/pods/n:" + port + "/proxy/x"
}

// TestHeadersOfPods: if a Pod sends endless headers, the server stops reading at a bound, also if protocols are
// switched.
func TestHeadersOfPods(t *testing.T) {
	sent := make(chan int, 1)
	server, path := inPod(t, func(conn net.Conn) {
		n, _ := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n")
		for line := []byte("X-A: " + strings.Repeat("a", 1000) + "\r\n"); n < 64<<20; {
			more, err := conn.Write(line)
			if n += more; err != nil {
				break
			}
		}
		sent <- n
	})
	for _, connection := range []string{"Upgrade", "keep-alive"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, http.NoBody)
		require.NoError(t, err)
		r.Header.Set("Connection", connection)
		r.Header.Set("Upgrade", "websocket")
		answer, err := http.DefaultTransport.RoundTrip(r)
		require.NoError(t, err)
		_ = answer.Body.Close()
		require.GreaterOrEqual(t, answer.StatusCode, 500, connection)
		require.Less(t, <-sent, 32<<20, connection) // the sockets hold some of the headers
	}
}

// TestUpgradesEnd: a client that gives up an unanswered upgrade leaves no connection behind. After an answered upgrade,
// all bytes are passed on.
func TestUpgradesEnd(t *testing.T) {
	const much = 4 << 20
	begun, ended := make(chan struct{}, 1), make(chan struct{}, 1)
	answers := atomic.Bool{}
	server, path := inPod(t, func(conn net.Conn) {
		if answers.Load() {
			_, _ = http.ReadRequest(bufio.NewReader(conn)) // otherwise closing would reset the connection
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			_, _ = conn.Write(make([]byte, much))
			return
		}
		begun <- struct{}{}
		_, _ = io.Copy(io.Discard, conn)
		ended <- struct{}{}
	})
	upgrade := func(ctx context.Context) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+path, http.NoBody)
		require.NoError(t, err)
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "websocket")
		return http.DefaultTransport.RoundTrip(r)
	}
	ctx, giveUp := context.WithCancel(t.Context())
	go func() {
		<-begun
		giveUp()
	}()
	answer, err := upgrade(ctx)
	if err == nil {
		_ = answer.Body.Close()
	}
	require.Error(t, err)
	<-ended

	answers.Store(true)
	answer, err = upgrade(t.Context())
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	require.Equal(t, http.StatusSwitchingProtocols, answer.StatusCode)
	n, _ := io.Copy(io.Discard, answer.Body)
	require.EqualValues(t, much, n)
}

// TestPortsThatAreNone: a port that no address can have is answered as a mistake of the client.
func TestPortsThatAreNone(t *testing.T) {
	s := newServer(t, func(c *Config) { c.Kubelets = newAuthority(t).kubelets(t, pkix.Name{CommonName: "api"}) })
	s.node(t, "n", "10.1.2.3", "10250")
	for _, port := range []string{"http", "-1", "65536", "80@127.0.0.1"} {
		for _, path := range []string{"/api/v1/namespaces/default/pods/n:", "/api/v1/nodes/n:", "/api/v1/namespaces/default/pods/https:n:"} {
			refused := s.must(t, 400, request{method: "GET", path: path + port + "/proxy/x", loopback: true})
			require.Contains(t, refused.body, "after the name comes a number up to 65535")
		}
	}
}
