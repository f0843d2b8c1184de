package serve

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/logplane/logplane/cmd/logplane/values"
	"github.com/logplane/logplane/internal/front"
	serve "github.com/logplane/logplane/internal/serving"
)

func newFront() *cobra.Command {
	var (
		how            listening
		watched        probes
		apis, watchers []string
		caFile         string
		patience       time.Duration
	)
	cmd := &cobra.Command{
		Use:   "front",
		Short: "Serve 'api' and 'watcher' under one address",
		Long: "Passes watches on to --watcher and every other request to --api, so that clients need no redirect. It ends TLS:\n" +
			"clients show tokens, and a client's certificate counts for nothing here. Any number of these may run, and each\n" +
			"may be started before the servers.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := cmp.Or(how.checkListen(), how.checkStreams(), how.checkCertificate(), how.checkPlainHTTP(), values.AtLeast("--slow-client", patience, time.Millisecond))
			if err != nil {
				return err
			}
			c := front.Config{Patience: patience}
			if c.APIs, err = how.serverURLs("--api", apis); err != nil {
				return err
			}
			if c.Watchers, err = how.serverURLs("--watcher", watchers); err != nil {
				return err
			}
			if c.TLS, err = trusting(caFile); err != nil {
				return err
			}
			f := front.New(c)
			return watched.alongside(cmd.Context(), f.Ready, func(ctx context.Context) error {
				return how.serve(ctx, f, serve.Config{RequestTimeout: front.Deadline, Patience: patience}, false)
			})
		},
	}
	how.register(cmd.Flags())
	watched.register(cmd.Flags())
	cmd.Flags().StringArrayVar(&apis, "api", nil, "URL of 'api' processes: requests are spread over all addresses of its name; may be repeated")
	cmd.Flags().StringArrayVar(&watchers, "watcher", nil, "URL of 'watcher' processes: watches are spread over all addresses of its name; may be repeated")
	cmd.Flags().StringVar(&caFile, "api-ca-file", "", "CA certificates that the servers of --api and --watcher must be signed by, instead of the system's")
	cmd.Flags().DurationVar(&patience, "slow-client", 30*time.Second, "how long a client may take to receive what a watch sends before it is cut off; at least 1ms")
	return cmd
}

// serverURLs refuses a value that is not just scheme and host, and a server to which tokens would travel unencrypted.
func (l *listening) serverURLs(flag string, given []string) ([]*url.URL, error) {
	if len(given) == 0 {
		return nil, fmt.Errorf("%s is missing: give for example 'https://HOST:7373'", flag)
	}
	var urls []*url.URL
	for _, value := range given {
		u, err := values.URL(flag, value)
		if err != nil {
			return nil, err
		}
		if u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" {
			return nil, fmt.Errorf("%s is '%s': it must be 'https://' or 'http://', a host, and a port where it is another", flag, value)
		}
		u.Path = ""
		if err := l.checkLeadsTo(flag, u); err != nil {
			return nil, err
		}
		urls = append(urls, u)
	}
	return urls, nil
}

// trusting returns the TLS configuration of a client that trusts the authorities in the file. Without a file it returns
// nil, and the client trusts the system's authorities.
func trusting(file string) (*tls.Config, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read --api-ca-file: %w", err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	if !c.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--api-ca-file is '%s': it has no certificate", file)
	}
	return c, nil
}
