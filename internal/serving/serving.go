// Package serving runs an http.Handler on a listener until it is told to stop.
package serving

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"time"
)

// Deadlines of a connection; a request's own deadline is the apiserver's.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	shutdownTimeout   = 10 * time.Second
)

// Serve serves until ctx ends, then refuses new requests, ends watches (they resume elsewhere from their
// last revision) and waits for the other requests in flight. A nil TLS configuration is plain HTTP.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, secure *tls.Config) error {
	requests, endRequests := context.WithCancel(context.Background())
	defer endRequests()
	server := &http.Server{
		Handler: handler, TLSConfig: secure, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout,
		BaseContext: func(net.Listener) context.Context { return requests },
	}
	stopped := make(chan error, 1)
	go func() { stopped <- stopWhenDone(ctx, server, endRequests) }()
	var err error
	if secure != nil {
		err = server.ServeTLS(listener, "", "")
	} else {
		err = server.Serve(listener)
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

// stopWhenDone lets ordinary requests finish first; what is left after that are watches.
func stopWhenDone(ctx context.Context, server *http.Server, endRequests func()) error {
	<-ctx.Done()
	grace, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	endWatches := time.AfterFunc(watchGrace, endRequests)
	defer endWatches.Stop()
	return server.Shutdown(grace)
}

// watchGrace is how long requests in flight may take before their contexts end; watches use all of it.
const watchGrace = time.Second

// IsLoopback says whether an address to listen on can be reached from this machine only.
func IsLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
