package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"github.com/spf13/pflag"

	"github.com/logplane/logplane/internal/apiserver"
	serve "github.com/logplane/logplane/internal/serving"
)

// serving is a listener with its certificate and its way to know users, as flags.
type serving struct {
	listen                  string
	certFile, keyFile       string
	clientCAFile, tokenFile string
	authorizationMode       string
	externalAddress         string
}

func (s *serving) register(flags *pflag.FlagSet) {
	flags.StringVar(&s.listen, "listen", "127.0.0.1:7373", "address to serve on; beyond loopback only with authentication")
	flags.StringVar(&s.certFile, "tls-cert-file", "", "certificate to serve HTTPS with")
	flags.StringVar(&s.keyFile, "tls-private-key-file", "", "private key of --tls-cert-file")
	flags.StringVar(&s.clientCAFile, "client-ca-file", "", "authenticate clients by certificates of these authorities")
	flags.StringVar(&s.tokenFile, "token-auth-file", "", "authenticate clients by the tokens in this file, as kube-apiserver reads it")
	flags.StringVar(&s.authorizationMode, "authorization-mode", "RBAC", "'RBAC' or 'AlwaysAllow'")
	flags.StringVar(&s.externalAddress, "external-address", "", "host and port that clients reach this API under; --listen by default")
}

// check refuses a listener that anyone on the network could use as an administrator.
func (s *serving) check() error {
	if (s.certFile == "") != (s.keyFile == "") {
		return errors.New("--tls-cert-file and --tls-private-key-file must be given together")
	}
	if s.clientCAFile != "" && s.certFile == "" {
		return errors.New("--client-ca-file needs HTTPS: give --tls-cert-file and --tls-private-key-file")
	}
	if !s.authenticated() && !serve.IsLoopback(s.listen) {
		return fmt.Errorf("--listen is '%s': beyond loopback, --token-auth-file or --client-ca-file must be given", s.listen)
	}
	return nil
}

func (s *serving) authenticated() bool { return s.clientCAFile != "" || s.tokenFile != "" }

// open connects to the cell and configures an apiserver on it. The caller closes the cell.
func (s *serving) open(ctx context.Context, where *connection) (*cell, apiserver.Config, error) {
	if err := s.check(); err != nil {
		return nil, apiserver.Config{}, err
	}
	opened, err := where.open(ctx)
	if err != nil {
		return nil, apiserver.Config{}, err
	}
	c := where.apiserver(opened)
	s.configure(&c)
	return opened, c, nil
}

// configure fills what the flags say into the apiserver's configuration.
func (s *serving) configure(c *apiserver.Config) {
	c.ExternalAddress = s.externalAddress
	if c.ExternalAddress == "" {
		c.ExternalAddress = s.listen
	}
	c.LoopbackOnly = !s.authenticated()
	c.Authentication = apiserver.Authentication{TokenFile: s.tokenFile, ClientCAFile: s.clientCAFile}
	c.Authorization = apiserver.Authorization{Mode: s.authorizationMode}
}

// serve serves the handler until ctx ends, then lets streams end and requests in flight finish.
func (s *serving) serve(ctx context.Context, handler http.Handler, streams serve.Streams) error {
	secure, err := s.tls()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", s.listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	slog.Info("serving", "address", listener.Addr().String(), "https", secure != nil)
	return serve.Serve(ctx, listener, handler, secure, streams)
}

// tls is nil for plain HTTP.
func (s *serving) tls() (*tls.Config, error) {
	if s.certFile == "" {
		return nil, nil
	}
	certificate, err := tls.LoadX509KeyPair(s.certFile, s.keyFile)
	if err != nil {
		return nil, fmt.Errorf("load --tls-cert-file: %w", err)
	}
	c := &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	if s.clientCAFile == "" {
		return c, nil
	}
	// The authenticator verifies the certificate, so that another way to authenticate stays open.
	c.ClientAuth = tls.RequestClientCert
	return c, nil
}
