package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/logplane/logplane/cmd/logplane/values"
	"github.com/logplane/logplane/internal/reload"
	serve "github.com/logplane/logplane/internal/serving"
)

// listening has the flags of a listener and its certificate.
type listening struct {
	listen            string
	certFile, keyFile string
	insecurePlainHTTP bool
	maxStreams        int

	socket net.Listener // nil until the process listens
}

// defaultListen is the default address: on loopback, unless a platform gives a port.
func defaultListen(port string) string {
	if port != "" {
		return ":" + port
	}
	return "127.0.0.1:7373"
}

func (l *listening) register(flags *pflag.FlagSet) {
	flags.StringVar(&l.listen, "listen", defaultListen(os.Getenv("PORT")), "address to serve on, ':$PORT' where that variable is set; beyond loopback only with TLS or --insecure-plain-http, and where clients are authenticated")
	flags.StringVar(&l.certFile, "tls-cert-file", "", "certificate to serve HTTPS with; it and --tls-private-key-file are read again when they change")
	flags.StringVar(&l.keyFile, "tls-private-key-file", "", "private key of --tls-cert-file")
	flags.BoolVar(&l.insecurePlainHTTP, "insecure-plain-http", false, "serve beyond loopback without TLS, behind something that ends it, and lead there without TLS: tokens pass in clear")
	flags.IntVar(&l.maxStreams, "http2-max-streams-per-connection", 100, "requests, watches too, that one connection of HTTP/2 may have open, at least 1: beyond it a client opens another connection")
}

// checkListen comes before all other checks of the address.
func (l *listening) checkListen() error {
	if err := l.takeSocket(); err != nil {
		return err
	}
	return values.CheckAddress("--listen", l.listen)
}

func (l *listening) checkStreams() error {
	return values.AtLeast("--http2-max-streams-per-connection", l.maxStreams, 1)
}

func (l *listening) checkCertificate() error {
	return values.Together("--tls-cert-file", l.certFile, "--tls-private-key-file", l.keyFile)
}

// checkPlainHTTP refuses a listener that would expose tokens on the network.
func (l *listening) checkPlainHTTP() error {
	if serve.IsLoopback(l.listen) || l.certFile != "" || l.insecurePlainHTTP {
		return nil
	}
	return fmt.Errorf("--listen is '%s': beyond loopback, tokens would pass in clear: give --tls-cert-file and --tls-private-key-file, "+
		"or --insecure-plain-http if something in front of this process ends TLS", l.listen)
}

// serve serves the handler until ctx ends, as serve.Serve does.
func (l *listening) serve(ctx context.Context, handler http.Handler, c serve.Config, askClients bool) error {
	var err error
	if c.TLS, err = l.tls(askClients); err != nil {
		return err
	}
	c.MaxStreams = l.maxStreams
	if err := l.bind(); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var notifying sync.WaitGroup
	notifying.Go(func() { notify(ctx, handler) })
	defer notifying.Wait()
	defer stop()
	slog.Info("serving", "address", l.socket.Addr().String(), "https", c.TLS != nil)
	return serve.Serve(ctx, l.socket, handler, c)
}

// bind listens, unless the process listens already. Clients that connect wait until it serves.
func (l *listening) bind() (err error) {
	if l.socket == nil {
		l.socket, err = listen("--listen", l.listen)
	}
	return err
}

// listen listens on the address of a flag.
func listen(flag, address string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s is '%s', where another process listens: stop that process, or give another address: %w", flag, address, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s is '%s': %w", flag, address, err)
	}
	return listener, nil
}

// checkLeadsTo refuses a server to which tokens would travel unencrypted.
func (l *listening) checkLeadsTo(flag string, server *url.URL) error {
	if server.Scheme == "https" || l.insecurePlainHTTP || serve.IsLoopback(net.JoinHostPort(server.Hostname(), "80")) {
		return nil
	}
	return fmt.Errorf("%s is '%s': clients' tokens would travel there in clear: give an 'https://' URL, or --insecure-plain-http", flag, server)
}

// tls returns the listener's TLS configuration, nil for plain HTTP.
func (l *listening) tls(askClients bool) (*tls.Config, error) {
	if l.certFile == "" {
		return nil, nil
	}
	certificate, err := reload.New(func() (tls.Certificate, error) { return tls.LoadX509KeyPair(l.certFile, l.keyFile) }, l.certFile, l.keyFile)
	if err != nil {
		return nil, fmt.Errorf("load --tls-cert-file: %w", err)
	}
	return serve.TLS(certificate.Get, askClients), nil
}
