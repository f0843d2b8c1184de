package front_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/internal/front"
	"github.com/logplane/logplane/internal/serving"
)

const objects = "/api/v1/namespaces/a/configmaps"

// start serves a front of servers at the URLs until the test ends, and returns its URL.
func start(t *testing.T, apis, watchers []string, change ...func(*front.Config)) string {
	t.Helper()
	c := front.Config{APIs: parsed(t, apis), Watchers: parsed(t, watchers)}
	for _, f := range change {
		f(&c)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- serving.Serve(ctx, listener, front.New(c), serving.Config{RequestTimeout: front.Deadline})
	}()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-served)
	})
	return "http://" + listener.Addr().String()
}

func parsed(t *testing.T, urls []string) (all []*url.URL) {
	t.Helper()
	for _, u := range urls {
		one, err := url.Parse(u)
		require.NoError(t, err)
		all = append(all, one)
	}
	return all
}

// server runs a handler until the test ends.
func server(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func named(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }
}

// dead returns a URL where nothing listens.
func dead(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	return "http://" + listener.Addr().String()
}

type answer struct {
	code   int
	header http.Header
	body   string
}

func send(t *testing.T, method, url, body string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	got, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	require.NoError(t, err)
	return answer{got.StatusCode, got.Header, string(text)}
}

func (a answer) status(t *testing.T) metav1.Status {
	t.Helper()
	var s metav1.Status
	require.NoError(t, json.Unmarshal([]byte(a.body), &s), a.body)
	require.Equal(t, "Status", s.Kind)
	require.EqualValues(t, a.code, s.Code)
	return s
}

// Every form of request that 'api' would redirect goes to the watcher, and no other request does.
func TestDestinations(t *testing.T) {
	at := start(t, []string{server(t, named("api")).URL}, []string{server(t, named("watcher")).URL})
	for path, want := range map[string]string{
		objects:                                   "api",
		objects + "?watch=false":                  "api",
		objects + "?watch=true":                   "watcher",
		objects + "?watch=1&resourceVersion=5":    "watcher",
		"/api/v1/watch/namespaces/a/configmaps":   "watcher",
		"/apis/apps/v1/deployments?watch=true":    "watcher",
		"/apis?watch=true":                        "api",
		"/clusters/a" + objects + "?watch=true":   "watcher",
		"/clusters/a" + objects:                   "api",
		"/clusters/a/at/5" + objects + "?watch=1": "api",
		"/version":                          "api",
		"/metrics":                          "api",
		objects + "?watch=true&limit=x;%zz": "watcher", // the query has no meaning, as both servers say
		objects + "?watch=" + long("true&a=", 64): "api", // too long for any server of a cell
	} {
		require.Equal(t, want, send(t, "GET", at+path, "").body, path)
	}
	require.Equal(t, "api", send(t, "POST", at+objects+"?watch=true", "{}").body, "a write is no watch")
}

func long(text string, kib int) string { return text + strings.Repeat("x", kib<<9) }

// A server sees the request as the client sent it, and the client's address as the front knows it.
func TestRequestIsKept(t *testing.T) {
	type seen struct{ method, uri, host, token, from, realIP, body string }
	var got atomic.Pointer[seen]
	api := server(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got.Store(&seen{r.Method, r.RequestURI, r.Host, r.Header.Get("Authorization"), r.Header.Get("X-Forwarded-For"), r.Header.Get("X-Real-Ip"), string(body)})
	})
	at := start(t, []string{api.URL}, []string{api.URL})
	uri := objects + "/a%2Fb?fieldSelector=a%3Db;c&x"
	r, err := http.NewRequestWithContext(t.Context(), "PATCH", at+uri, strings.NewReader("{}"))
	require.NoError(t, err)
	r.Host = "cell.example:443"
	r.Header.Set("Authorization", "Bearer x")
	r.Header.Set("X-Forwarded-For", "10.9.8.7")
	r.Header.Set("X-Real-Ip", "10.9.8.7")
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, seen{"PATCH", uri, "cell.example:443", "Bearer x", "127.0.0.1", "", "{}"}, *got.Load())
}

// An event reaches the client while its watch is still open, and the end of the client's watch reaches the watcher.
func TestEventsPassAtOnce(t *testing.T) {
	ended := make(chan struct{})
	events := make(chan string)
	watcher := server(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case e := <-events:
				_, _ = io.WriteString(w, e)
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	})
	at := start(t, []string{watcher.URL}, []string{watcher.URL})
	ctx, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "GET", at+objects+"?watch=true", nil)
	require.NoError(t, err)
	got, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer got.Body.Close()
	lines := bufio.NewReader(got.Body)
	for range 3 {
		events <- "event\n"
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "event\n", line)
	}
	leave()
	<-ended
}

// If a server breaks off in the middle of its answer, the client sees the break, whether or not the server had
// announced a length. No second server adds to the answer.
func TestBrokenAnswers(t *testing.T) {
	for _, path := range []string{objects, objects + "?watch=true"} {
		var asked atomic.Int32
		broken := server(t, func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			_, _ = io.WriteString(w, "{")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		})
		at := start(t, []string{broken.URL, broken.URL}, []string{broken.URL, broken.URL})
		got, err := http.Get(at + path)
		require.NoError(t, err)
		defer got.Body.Close()
		body, err := io.ReadAll(got.Body)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%s: %s", path, body)
		require.EqualValues(t, 1, asked.Load())
	}
}

// Nothing is lost while a server is down: requests that cannot be sent go to another server, even writes.
func TestDeadServersAreLeftOut(t *testing.T) {
	var served atomic.Int32
	api := server(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		served.Add(1)
		_, _ = w.Write(body)
	})
	at := start(t, []string{dead(t), api.URL, dead(t)}, []string{dead(t)})
	for range 20 {
		got := send(t, "POST", at+objects, `{"a":1}`)
		require.Equal(t, http.StatusOK, got.code, got.body)
		require.Equal(t, `{"a":1}`, got.body)
	}
	require.EqualValues(t, 20, served.Load())

	got := send(t, "GET", at+objects+"?watch=true", "")
	require.Equal(t, http.StatusServiceUnavailable, got.code)
	require.Equal(t, "1", got.header.Get("Retry-After"))
	require.Equal(t, metav1.StatusReasonServiceUnavailable, got.status(t).Reason)
	require.NotContains(t, got.body, "127.0.0.1", "where servers are is nobody's business")
	require.Contains(t, got.status(t).Message, "no 'watcher' of this cell can be reached")
}

// A server that breaks off before it answers may have done the request. So a write is not sent again, neither by the
// front nor by the client: the answer has no Retry-After. A request that only reads goes to another server.
func TestServersThatDieAreNotTrustedTwice(t *testing.T) {
	var writes, reads atomic.Int32
	dying := func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		if r.Method == "GET" {
			reads.Add(1)
		} else {
			writes.Add(1)
		}
		panic(http.ErrAbortHandler)
	}
	one, two := server(t, dying), server(t, dying)
	at := start(t, []string{one.URL, two.URL}, []string{one.URL})
	got := send(t, "POST", at+objects, "{}")
	require.Equal(t, http.StatusBadGateway, got.code, got.body)
	require.Empty(t, got.header.Get("Retry-After"))
	require.Contains(t, got.status(t).Message, "the 'api' broke off before it answered: the outcome is unknown")
	require.EqualValues(t, 1, writes.Load())

	got = send(t, "GET", at+objects, "")
	require.Equal(t, http.StatusServiceUnavailable, got.code, got.body)
	require.Equal(t, "1", got.header.Get("Retry-After"))
	require.Contains(t, got.status(t).Message, "the 'api' broke off before it answered: try again")
	require.EqualValues(t, 2, reads.Load())

	got = send(t, "GET", at+objects+"?watch=true", "")
	require.Equal(t, http.StatusServiceUnavailable, got.code, got.body)
	require.Contains(t, got.status(t).Message, "the 'watcher' broke off before it answered: try again")
}

// Requests are spread over all servers.
func TestSpread(t *testing.T) {
	var one, two atomic.Int32
	count := func(n *atomic.Int32) http.HandlerFunc {
		return func(http.ResponseWriter, *http.Request) { n.Add(1) }
	}
	a, b := server(t, count(&one)), server(t, count(&two))
	at := start(t, []string{a.URL, b.URL}, []string{a.URL})
	for range 20 {
		require.Equal(t, http.StatusOK, send(t, "GET", at+objects, "").code)
	}
	require.EqualValues(t, 10, one.Load())
	require.EqualValues(t, 10, two.Load())
}

// A connection that switches protocols, as for 'kubectl exec', passes in both directions.
func TestUpgrades(t *testing.T) {
	api := server(t, func(w http.ResponseWriter, r *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+r.Header.Get("Upgrade")+"\r\n\r\n")
		_, _ = io.Copy(conn, buffered)
	})
	at := start(t, []string{api.URL}, []string{dead(t)})
	conn, err := net.Dial("tcp", strings.TrimPrefix(at, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "POST /api/v1/namespaces/a/pods/p/exec?command=ls HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
	require.NoError(t, err)
	in := bufio.NewReader(conn)
	got, err := http.ReadResponse(in, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, got.StatusCode)
	require.Equal(t, "SPDY/3.1", got.Header.Get("Upgrade"))
	for range 3 {
		_, err = io.WriteString(conn, "hello\n")
		require.NoError(t, err)
		line, err := in.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "hello\n", line)
	}
}

// A server is trusted if the authority has signed its name, whatever address the name has. Other servers receive no
// request.
func TestServersAreVerified(t *testing.T) {
	s := httptest.NewTLSServer(named("api"))
	t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	require.NoError(t, err)
	trust := func(c *front.Config) { c.TLS = &tls.Config{RootCAs: x509.NewCertPool()} }
	strangers := start(t, []string{s.URL}, []string{s.URL}, trust)
	got := send(t, "POST", strangers+objects, "{}")
	require.Equal(t, http.StatusServiceUnavailable, got.code, got.body)

	trusted := func(c *front.Config) {
		trust(c)
		c.TLS.RootCAs.AddCert(s.Certificate())
	}
	require.Equal(t, "api", send(t, "POST", start(t, []string{s.URL}, []string{s.URL}, trusted)+objects, "{}").body)
	// The certificate is for 127.0.0.1 and not for the name 'localhost', which has that address.
	other := start(t, []string{"https://localhost:" + port}, []string{s.URL}, trusted)
	require.Equal(t, http.StatusServiceUnavailable, send(t, "POST", other+objects, "{}").code)
}

// The front is alive by itself, and ready while servers of both roles are ready.
func TestHealth(t *testing.T) {
	ready := server(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			w.WriteHeader(http.StatusNotFound)
		}
	})
	unready := server(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	both := start(t, []string{dead(t), ready.URL}, []string{ready.URL})
	require.Equal(t, http.StatusOK, send(t, "GET", both+"/readyz", "").code)
	without := start(t, []string{ready.URL}, []string{unready.URL})
	got := send(t, "GET", without+"/readyz", "")
	require.Equal(t, http.StatusInternalServerError, got.code)
	require.Contains(t, got.body, "[+]api ok")
	require.Contains(t, got.body, "[-]watcher failed")
	for _, path := range []string{"/livez", "/healthz"} {
		require.Equal(t, http.StatusOK, send(t, "GET", without+path, "").code)
	}
}

// A client cannot make the front remove a header that something before the front has added.
func TestConnectionTakesNothingAway(t *testing.T) {
	at := start(t, []string{server(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("Impersonate-User"))
	}).URL}, []string{server(t, named("watcher")).URL})
	for connection, want := range map[string]int{
		"keep-alive": 200, "Keep-Alive, TE": 200, "close": 200, "Impersonate-User": 400, "close, authorization": 400, "X-Remote-User": 400,
	} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", at+objects, nil)
		require.NoError(t, err)
		r.Header.Set("Connection", connection)
		r.Header.Set("Impersonate-User", "somebody")
		got, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		body, err := io.ReadAll(got.Body)
		require.NoError(t, err)
		_ = got.Body.Close()
		require.Equal(t, want, got.StatusCode, "%s: %s", connection, body)
		if want == 200 {
			require.Equal(t, "somebody", string(body))
		}
	}
}

// breaking answers the first request of each connection, and breaks off when it has read the second request.
func breaking(t *testing.T) (url string, seen func() []string) {
	t.Helper()
	var mu sync.Mutex
	var all []string
	connections := map[net.Conn]bool{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn := r.Context().Value(connKey{}).(net.Conn)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, r.Method+" "+r.URL.Path)
		if connections[conn] {
			panic(http.ErrAbortHandler)
		}
		connections[conn] = true
	}))
	s.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
	s.Start()
	t.Cleanup(s.Close)
	return s.URL, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

type connKey struct{}

// A request that may change something is sent once, even where net/http would send it again by itself.
func TestNothingIsDoneTwice(t *testing.T) {
	for _, header := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		url, seen := breaking(t)
		at := start(t, []string{url}, []string{dead(t)})
		require.Equal(t, 200, send(t, "GET", at+"/version", "").code)
		r, err := http.NewRequestWithContext(t.Context(), "DELETE", at+objects, nil)
		require.NoError(t, err)
		r.Header.Set(header, "1")
		got, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		_ = got.Body.Close()
		require.Equal(t, http.StatusBadGateway, got.StatusCode)
		require.Equal(t, []string{"GET /version", "DELETE " + objects}, seen())
	}

	const exec = "/api/v1/namespaces/a/pods/p/exec"
	url, seen := breaking(t)
	at := start(t, []string{url}, []string{dead(t)})
	for range 2 { // an answer other than 101 leaves the connection for the next request
		r, err := http.NewRequestWithContext(t.Context(), "GET", at+exec, nil)
		require.NoError(t, err)
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "websocket")
		got, err := http.DefaultTransport.RoundTrip(r)
		require.NoError(t, err)
		_ = got.Body.Close()
		require.Equal(t, http.StatusOK, got.StatusCode)
	}
	require.Equal(t, []string{"GET " + exec, "GET " + exec}, seen())
}

// raw sends a request that no client of net/http would send, and returns the beginning of the answer.
func raw(t *testing.T, at, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(at, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = io.WriteString(conn, text)
	require.NoError(t, err)
	line, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(t, err)
	return line
}

// failures returns the number of failures of all servers so far.
func failures(t *testing.T) (n float64) {
	t.Helper()
	all := prometheus.NewRegistry()
	all.MustRegister(front.Collectors()...)
	families, err := all.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == "logplane_front_failures_total" {
			for _, m := range family.GetMetric() {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// A client's mistake does not count as a failure of the server that was asked.
func TestClientsBreakOff(t *testing.T) {
	url, _ := breaking(t)
	at := start(t, []string{url}, []string{dead(t)})
	before := failures(t)
	require.Contains(t, raw(t, at, "POST "+objects+" HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n"), " 400 ")
	require.Contains(t, raw(t, at, "G\"T / HTTP/1.1\r\nHost: a\r\n\r\n"), " 400 ")
	require.Contains(t, raw(t, at, "GET a:http://b"+objects+"?watch=1 HTTP/1.1\r\nHost: a\r\n\r\n"), " 400 ")
	require.Equal(t, before, failures(t))
}
