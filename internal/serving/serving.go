// Package serving runs an http.Handler on a listener until it is told to stop.
package serving

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"time"
)

// Deadlines of a connection. The apiserver sets the deadlines of a request and of its body.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	shutdownTimeout   = 10 * time.Second
	defaultPatience   = 30 * time.Second
	// answerGrace is how long the rest of an answer may take after its request's deadline.
	answerGrace = 5 * time.Second
	// defaultStreams is kube-apiserver's default.
	defaultStreams = 100
)

// Config says how a listener treats its connections. A value of 0 means the default.
type Config struct {
	// TLS is nil for plain HTTP.
	TLS *tls.Config
	// RequestTimeout is the deadline of requests, a minute by default. A client that has not received its answer
	// shortly after the deadline is cut off. Streams set their own deadlines.
	RequestTimeout time.Duration
	// MaxStreams is how many requests one HTTP/2 connection may have open, 100 by default.
	MaxStreams int
	// Drain ends the streams when the process stops, while the process still answers. It is nil if there are no
	// streams.
	Drain func(context.Context)
	// Patience is how long an HTTP/2 connection may receive nothing although data waits for it, 30 s by default. Then
	// the connection is closed with all its streams. The streams' own deadlines cannot end the streams while nothing
	// can be written.
	Patience time.Duration
}

// TLS returns a configuration that always serves the newest certificate. With askClients, the server asks for a client
// certificate, but the authenticator verifies it, since a client may also authenticate in another way.
func TLS(certificate func() tls.Certificate, askClients bool) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		newest := certificate()
		return &newest, nil
	}
	if askClients {
		c.ClientAuth = tls.RequestClientCert
	}
	return c
}

// maxHeader bounds a request's line and headers, in bytes. It has room for a query of 32 KiB, a long token and the
// groups of an impersonated user. Any unauthenticated connection may take maxHeader bytes of memory.
const maxHeader = 64 << 10

// Serve serves until ctx ends. Then it lets streams end, gives other requests a moment to finish, and cuts off the
// rest.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, c Config) error {
	requests, endRequests := context.WithCancel(context.Background())
	defer endRequests()
	server := &http.Server{
		Handler: handler, TLSConfig: c.TLS, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		WriteTimeout: cmp.Or(c.RequestTimeout, time.Minute) + answerGrace,
		BaseContext:  func(net.Listener) context.Context { return requests },
		HTTP2: &http.HTTP2Config{
			WriteByteTimeout: cmp.Or(c.Patience, defaultPatience), MaxConcurrentStreams: cmp.Or(c.MaxStreams, defaultStreams),
		},
	}
	stopped := make(chan error, 1)
	go func() { stopped <- stopWhenDone(ctx, server, endRequests, c.Drain) }()
	var err error
	if c.TLS != nil {
		err = server.ServeTLS(listener, "", "")
	} else {
		err = server.Serve(listener)
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

// stopWhenDone lets streams, and then other requests, finish. After that it cuts off the rest.
func stopWhenDone(ctx context.Context, server *http.Server, endRequests func(), drain func(context.Context)) error {
	<-ctx.Done()
	// Connections close with their requests, so that clients reconnect through their load balancer.
	server.SetKeepAlivesEnabled(false)
	if drain != nil {
		drain(context.WithoutCancel(ctx))
	}
	grace, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	left := watchGrace
	if drain != nil {
		left = drainedGrace
	}
	endLeft := time.AfterFunc(left, endRequests)
	defer endLeft.Stop()
	err := server.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		// For HTTP/2, net/http announces the shutdown only on connections that existed when the shutdown began. A
		// connection whose handshake ended later is idle and stays open.
		return server.Close()
	}
	return err
}

// These are the times that requests in flight may take before their contexts end.
const (
	watchGrace = time.Second // watches use up all of it
	// drainedGrace is for a server whose drain has ended its watches. The remaining requests end by themselves. A watch
	// that came too late for the drain must be told to try again, because its client would list again after any other
	// failure.
	drainedGrace = 5 * time.Second
)

// IsLoopback says whether an address to listen on can be reached from this machine only.
func IsLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
