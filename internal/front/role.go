package front

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

const (
	dialTimeout = 3 * time.Second
	// idleTimeout is shorter than the servers' own idle timeout, so that no request meets a connection that the server
	// is closing.
	idleTimeout = 90 * time.Second
	// idleConnections is how many connections to one server stay open for later requests.
	idleConnections = 256
	// tries is the greatest number of servers to which a request may be sent.
	tries = 3
	// failedFor is how long a server that has failed is used only if all other servers have failed too.
	failedFor = 5 * time.Second
)

// role holds the servers that do the same work, and the proxy to them.
type role struct {
	name  string
	hosts []*host
	next  atomic.Uint64 // counts requests
	proxy *httputil.ReverseProxy
}

// newRole makes a role. Each answer is passed on through a buffer of the given size, which the answer holds until its
// end.
func newRole(name string, urls []*url.URL, config *tls.Config, buffer int) *role {
	to := &role{name: name}
	for _, u := range urls {
		to.hosts = append(to.hosts, newHost(u, config))
	}
	to.proxy = &httputil.ReverseProxy{
		Transport: to, Rewrite: rewrite, FlushInterval: -1, BufferPool: newBuffers(buffer), ErrorHandler: to.fail,
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug), // mostly clients that have gone away
	}
	return to
}

// rewrite sets the headers that say where a request comes from, and ignores the client's own values of these headers.
// The rest of the request stays, except headers that would make net/http send a write again.
func rewrite(r *httputil.ProxyRequest) {
	r.Out.Header.Del("X-Real-Ip")
	r.Out.Header.Del("Idempotency-Key") // with either header net/http would send a write again
	r.Out.Header.Del("X-Idempotency-Key")
	r.SetXForwarded()
	r.Out.Host = r.In.Host
	r.Out.URL.RawQuery = r.In.URL.RawQuery // unparsed, so that the server sees the same query as the front
}

// RoundTrip implements http.RoundTripper.
func (to *role) RoundTrip(r *http.Request) (*http.Response, error) {
	err := errNoAddress
	for _, s := range to.turn(r.Context()) {
		var answer *http.Response
		if answer, err = s.roundTrip(r); err == nil {
			answered.WithLabelValues(to.name, fmt.Sprint(answer.StatusCode)).Inc()
			s.recover(to.name)
			return answer, nil
		}
		if r.Context().Err() == context.Canceled {
			return nil, err // the client has gone, which says nothing about the server
		}
		if errors.As(err, &clientError{}) {
			return nil, err
		}
		s.fail(to.name, err)
		if r.Context().Err() != nil || !wasUnsent(err) && !onlyReads(r) {
			break
		}
	}
	return nil, err
}

// turn returns the servers to try for a request, the best first.
func (to *role) turn(ctx context.Context) []*server {
	var all, failed []*server
	for _, h := range to.hosts {
		for _, s := range h.servers(ctx) {
			if s.hasFailed() {
				failed = append(failed, s)
			} else {
				all = append(all, s)
			}
		}
	}
	n := int(to.next.Add(1) % (1 << 30))
	all, failed = rotate(all, n), rotate(failed, n)
	all = append(all, failed...)
	return all[:min(len(all), tries)]
}

func rotate(all []*server, n int) []*server {
	if len(all) == 0 {
		return nil
	}
	n %= len(all)
	return append(all[n:len(all):len(all)], all[:n]...)
}

// unsent is the error of a request that reached no server.
type unsent struct{ error }

var errNoAddress error = unsent{errors.New("no address of a server is known")}

func wasUnsent(err error) bool { return errors.As(err, &unsent{}) }

// onlyReads is true for a request that may safely be sent twice.
func onlyReads(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.Body == nil && r.Header.Get("Upgrade") == ""
}

// host is the host of a URL. One host may stand for any number of servers.
type host struct {
	url       *url.URL
	transport *http.Transport
	// fresh makes a new connection for each request. On a reused connection, net/http would send a GET again by itself,
	// and a GET may be an exec.
	fresh *http.Transport
	known atomic.Pointer[[]*server]

	mu     sync.Mutex // held while a goroutine looks up the name
	looked time.Time  // by mu: the time of the last lookup
}

// lookupEvery is how long the addresses of a name are used.
const lookupEvery = 5 * time.Second

func newHost(u *url.URL, config *tls.Config) *host {
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	config = config.Clone()
	config.ServerName = u.Hostname() // needed because the request's URL has the address
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
	h := &host{url: u, transport: &http.Transport{
		DialContext: dialer.DialContext, TLSClientConfig: config, TLSHandshakeTimeout: 2 * dialTimeout,
		MaxIdleConnsPerHost: idleConnections, IdleConnTimeout: idleTimeout, DisableCompression: true,
	}}
	h.fresh = h.transport.Clone()
	h.fresh.DisableKeepAlives = true
	if net.ParseIP(u.Hostname()) != nil {
		h.know([]string{u.Hostname()})
	}
	return h
}

// servers returns the servers that the name resolves to. The first caller that finds the addresses too old looks the
// name up again. Other callers do not wait for the lookup, unless no address is known yet.
func (h *host) servers(ctx context.Context) []*server {
	if net.ParseIP(h.url.Hostname()) != nil {
		return *h.known.Load()
	}
	if h.known.Load() == nil {
		h.mu.Lock()
	} else if !h.mu.TryLock() {
		return *h.known.Load()
	}
	defer h.mu.Unlock()
	if time.Since(h.looked) > lookupEvery {
		h.look(ctx)
	}
	if known := h.known.Load(); known != nil {
		return *known
	}
	return nil
}

// look looks up the name. It requires mu. If the name does not resolve, the known servers stay.
func (h *host) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialTimeout) // other requests use the result too
	defer cancel()
	found, err := net.DefaultResolver.LookupHost(ctx, h.url.Hostname())
	if err != nil {
		slog.Warn("a name does not resolve: the addresses that it had are used on", "host", h.url.Hostname(), "error", err)
	} else {
		h.know(found)
	}
	h.looked = time.Now()
}

// know replaces the servers, and keeps the failures of the servers that remain.
func (h *host) know(addresses []string) {
	before := map[string]*server{}
	if known := h.known.Load(); known != nil {
		for _, s := range *known {
			before[s.address] = s
		}
	}
	port := h.url.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[h.url.Scheme]
	}
	now := make([]*server, 0, len(addresses))
	for _, ip := range addresses {
		address := net.JoinHostPort(ip, port)
		s, ok := before[address]
		if !ok {
			s = &server{host: h, address: address}
		}
		now = append(now, s)
	}
	h.known.Store(&now)
}

// server is one address of a host.
type server struct {
	host    *host
	address string
	failed  atomic.Pointer[time.Time] // when it last failed; nil if it has answered since
}

func (s *server) hasFailed() bool {
	at := s.failed.Load()
	return at != nil && time.Since(*at) < failedFor
}

// fail records a failure, and logs the first of several failures.
func (s *server) fail(role string, err error) {
	failures.WithLabelValues(role).Inc()
	now := time.Now()
	if s.failed.Swap(&now) == nil {
		slog.Warn("a server does not answer: for a while others are asked first", "role", role, "server", s.address, "error", err)
	}
}

// recover trusts an answer only some time after the failure, because a failing server may still answer now and then.
func (s *server) recover(role string) {
	if at := s.failed.Load(); at != nil && !s.hasFailed() && s.failed.CompareAndSwap(at, nil) {
		slog.Info("a server answers again", "role", role, "server", s.address)
	}
}

// roundTrip sends the request to this server.
func (s *server) roundTrip(r *http.Request) (*http.Response, error) {
	out, at, body := *r, *r.URL, &sent{Reader: r.Body}
	at.Scheme, at.Host = s.host.url.Scheme, s.address
	out.URL = &at
	if r.Body != nil {
		out.Body = body
	}
	transport := s.host.transport
	if r.Header.Get("Upgrade") != "" {
		transport = s.host.fresh
	}
	connected := false
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }}
	answer, err := transport.RoundTrip(out.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
	switch {
	case err != nil && body.broken.Load():
		return nil, clientError{err}
	case err != nil && !connected:
		return nil, unsent{err}
	}
	return answer, err
}

// buffers are the buffers for proxied answers.
type buffers struct{ sync.Pool }

func newBuffers(size int) *buffers {
	return &buffers{sync.Pool{New: func() any { return make([]byte, size) }}}
}

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte { return b.Pool.Get().([]byte) }

// Put implements httputil.BufferPool.
func (b *buffers) Put(buffer []byte) { b.Pool.Put(buffer) } //nolint:staticcheck // the slice's head is small next to it
