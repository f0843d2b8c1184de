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
	// answerGrace is how long after its request's deadline the rest of an answer may take.
	answerGrace = 5 * time.Second
	// defaultStreams is kube-apiserver's default.
	defaultStreams = 100
)

// Config of a listener's connections. A value of 0 means the default.
type Config struct {
	// TLS is nil for plain HTTP.
	TLS *tls.Config
	// RequestTimeout is the deadline of requests, a minute by default. A client that has not received its answer soon
	// after that is cut off. A stream sets deadlines of its own.
	RequestTimeout time.Duration
	// MaxStreams is how many requests one connection of HTTP/2 may have open, 100 by default.
	MaxStreams int
	// Drain ends the streams when the process stops, while it still answers; nil if there are no streams.
	Drain func(context.Context)
	// Patience is how long a connection of HTTP/2 may receive nothing of what is waiting for it, 30 s by default. Then
	// it is closed with all of its streams. The streams' own deadlines cannot end them while nothing can be written.
	Patience time.Duration
}

// TLS serves the newest certificate. If it asks clients for theirs, the
// authenticator verifies them: a client may also authenticate in another way.
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

// maxHeader bounds a request's line and headers, in bytes. It is enough for a query of 32 KiB, a long token and the
// groups of an impersonated user. Each connection of a stranger may hold as much.
const maxHeader = 64 << 10

// Serve serves until ctx ends. Then it lets streams end, gives
// ordinary requests a moment to finish, and cuts off what is left.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, c Config) error {
	requests, endRequests := context.WithCancel(context.Background())
	defer endRequests()
	server := &http.Server{
		Handler: handler, TLSConfig: c.TLS, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		WriteTimeout: cmp.Or(c.RequestTimeout, time.Minute) + answerGrace,
		BaseContext:  func(net.Listener) context.Context { return requests },
		ConnContext:  WithConnection,
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

// stopWhenDone lets streams and then ordinary requests finish. It cuts off what is left after that.
func stopWhenDone(ctx context.Context, server *http.Server, endRequests func(), drain func(context.Context)) error {
	<-ctx.Done()
	// Connections close with their requests, so that clients come back through whatever chooses a process for them.
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
		// For HTTP/2, net/http tells only the connections that existed when it began
		// to shut down. A connection whose handshake ended later is idle and stays.
		return server.Close()
	}
	return err
}

// How long requests in flight may take before their contexts end.
const (
	watchGrace = time.Second // watches use all of it
	// drainedGrace is for a server whose drain has ended its watches. What is left ends by itself. Also a watch that
	// came too late to be drained: it must be told to try again. Its client would list again after any other failure.
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
