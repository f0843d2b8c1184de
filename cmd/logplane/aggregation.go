package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/spf13/pflag"

	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/apiserver/aggregation"
)

// proxying has the flags of the certificate by which other API servers know this process.
type proxying struct{ certFile, keyFile string }

func (p *proxying) register(flags *pflag.FlagSet) {
	flags.StringVar(&p.certFile, "proxy-client-cert-file", "", "certificate by which the servers of remote APIServices know this process; it and its key are read again when they change")
	flags.StringVar(&p.keyFile, "proxy-client-key-file", "", "private key of --proxy-client-cert-file")
}

func (p *proxying) check() error {
	return together("--proxy-client-cert-file", p.certFile, "--proxy-client-key-file", p.keyFile)
}

// configure copies the flags into the apiserver's configuration.
func (p *proxying) configure(c *apiserver.Config) {
	c.ProxyClientCertFile, c.ProxyClientKeyFile = p.certFile, p.keyFile
}

// registerTrust adds the flags for what is published to remote API servers.
func registerTrust(flags *pflag.FlagSet, trust *aggregation.Trust) {
	flags.StringVar(&trust.RequestHeaderCAFile, "requestheader-client-ca-file", "", "authorities of --proxy-client-cert-file, published for the servers of remote APIServices; this process itself takes no proxy's word")
	flags.StringSliceVar(&trust.AllowedNames, "requestheader-allowed-names", nil, "common names that --proxy-client-cert-file may have, published too; any by default")
}

// publishTimeout bounds what a process publishes before it serves.
const publishTimeout = 10 * time.Second

// publish writes what remote servers must know of this process. If it fails the process serves all the same: another
// process may have published it, and the next start tries again.
func publish(ctx context.Context, server interface {
	Publish(context.Context, aggregation.Trust) error
}, trust aggregation.Trust) {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	if err := server.Publish(ctx, trust); err != nil {
		slog.Error("remote API servers may not trust this process: run 'logplane init' if the cluster is new, then start this process again", "error", err)
	}
}
