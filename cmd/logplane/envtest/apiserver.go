package envtest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	apiserverconfig "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/apiserver/pkg/server/flagz"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/apiserver/access"
	"github.com/logplane/logplane/internal/apiserver/aggregation"
	"github.com/logplane/logplane/internal/apiserver/gate"
	"github.com/logplane/logplane/internal/apiserver/services"
	"github.com/logplane/logplane/internal/apiserver/tokens"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/reload"
	"github.com/logplane/logplane/internal/serving"
	"github.com/logplane/logplane/localstack"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/filesystem"
	"github.com/logplane/logplane/projection/cache"
	"github.com/logplane/logplane/watcher"
)

const (
	// controllersVariable says that the lifecycle runs.
	controllersVariable = "LOGPLANE_ENVTEST_CONTROLLERS"
	// commitCadence is how often new events are committed. Uncommitted events are in the log, so nothing depends on it.
	commitCadence = 5 * time.Second
	// drainTimeout is how long clients of watches may take to receive their last bookmarks when the process stops.
	drainTimeout = 200 * time.Millisecond
	cacheBytes   = 32 << 20
)

// heeded are the flags that have their upstream meaning here. Other flags of upstream's are accepted with a warning.
var heeded = []string{
	"admission-control-config-file", "allow-privileged", "anonymous-auth", "api-audiences", "audit-log-format", "audit-log-mode", "audit-log-path",
	"audit-policy-file", "audit-webhook-config-file", "audit-webhook-mode", "authentication-config", "authentication-token-webhook-cache-ttl",
	"authentication-token-webhook-config-file", "authentication-token-webhook-version", "authorization-config", "authorization-mode",
	"bind-address", "cert-dir", "client-ca-file", "disable-admission-plugins", "enable-admission-plugins", "encryption-provider-config",
	"etcd-servers", "external-hostname", "feature-gates", "goaway-chance", "max-mutating-requests-inflight", "max-requests-inflight",
	"oidc-ca-file", "oidc-client-id", "oidc-groups-claim", "oidc-groups-prefix", "oidc-issuer-url", "oidc-required-claim",
	"oidc-username-claim", "oidc-username-prefix", "proxy-client-cert-file", "proxy-client-key-file", "request-timeout",
	"requestheader-allowed-names", "requestheader-client-ca-file", "secure-port", "service-account-extend-token-expiration",
	"service-account-issuer", "service-account-jwks-uri", "service-account-key-file", "service-account-max-token-expiration",
	"service-account-signing-key-file", "service-cluster-ip-range", "service-node-port-range", "tls-cert-file", "tls-private-key-file",
	"token-auth-file", "tracing-config-file", "v",
}

func newAPIServer() *cobra.Command {
	o := options.NewServerRunOptions()
	sets := o.Flags()
	cmd := standIn(&cobra.Command{
		Use:   "kube-apiserver",
		Short: "Serve the Kubernetes API of a test from Logplane's etcd",
		Long:  "Stands in for kube-apiserver where a test framework starts etcd and kube-apiserver. It takes kube-apiserver's flags.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			warnOfIgnored(cmd.Flags())
			return serve(cmd.Context(), o, flagz.NamedFlagSetsReader{FlagSets: sets})
		},
	}, "Kubernetes "+apiserver.Version().GitVersion)
	for _, set := range sets.FlagSets {
		cmd.Flags().AddFlagSet(set)
	}
	cliflag.SetUsageAndHelpFunc(cmd, sets, 0)
	return cmd
}

// warnOfIgnored names the flags on the command line that change nothing.
func warnOfIgnored(flags *pflag.FlagSet) {
	var names []string
	flags.Visit(func(f *pflag.Flag) {
		if !slices.Contains(heeded, f.Name) {
			names = append(names, "--"+f.Name)
		}
	})
	if len(names) > 0 {
		slog.Warn("flags of kube-apiserver that change nothing here", "flags", strings.Join(names, " "))
	}
}

// serve serves the API until ctx ends.
func serve(ctx context.Context, o *options.ServerRunOptions, shown flagz.Reader) error {
	if err := o.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return err
	}
	c, err := o.Complete(ctx)
	if err != nil {
		return err
	}
	if err := utilerrors.NewAggregate(c.Validate()); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(c.SecureServing.BindAddress.String(), strconv.Itoa(c.SecureServing.BindPort)))
	if err != nil {
		return fmt.Errorf("--secure-port is %d: %w", c.SecureServing.BindPort, err)
	}
	defer listener.Close()
	log, folder, err := connect(ctx, c.Etcd.StorageConfig.Transport.ServerList[0])
	if err != nil {
		return err
	}
	defer log.Conn.Close()
	cell, err := openCell(ctx, log, folder)
	if err != nil {
		return err
	}
	config, err := configOf(c, folder)
	if err != nil {
		return err
	}
	config.Cell, config.Flagz, config.Writers = cell, shown, &kubestore.Writers{}
	config.Bare = os.Getenv(controllersVariable) != "1"
	server, err := watcher.New(watcher.Config{Config: config, Grace: drainTimeout})
	if err != nil {
		return err
	}
	defer server.StopTracing()
	if err := server.Bootstrap(ctx); err != nil {
		return fmt.Errorf("create the objects every cluster has: %w", err)
	}
	if err := server.Publish(ctx, trustOf(c)); err != nil {
		return err
	}
	certificate, err := certificateOf(c)
	if err != nil {
		return err
	}
	// Another API server may still write into a namespace that is being deleted. The lifecycle deletes such an object
	// as a leftover.
	return explain(localstack.Whole{
		Cell: cell, Server: server, Writers: config.Writers, Cadence: commitCadence, ServerOnly: config.Bare,
		Serve: func(ctx context.Context, handler http.Handler) error {
			slog.Info("serving", "address", listener.Addr().String(), "https", true)
			return serving.Serve(ctx, listener, handler, serving.Config{
				TLS: certificate, RequestTimeout: config.Requests.Timeout, Drain: server.Drain,
			})
		},
	}.Run(ctx))
}

// errAnotherState explains eventlog.ErrDiverged here: the test has started 'etcd' with another folder.
var errAnotherState = errors.New("etcd was started again without the state that this process has served: start kube-apiserver again too")

func explain(err error) error {
	if errors.Is(err, eventlog.ErrDiverged) {
		return errAnotherState
	}
	return err
}

// openCell opens the cell of 'etcd', and makes it if there is none.
func openCell(ctx context.Context, c eventlog.Config, folder string) (kubestore.Cell, error) {
	log, err := eventlog.Open(ctx, c)
	if err != nil {
		return kubestore.Cell{}, err
	}
	b, err := filesystem.Open(filepath.Join(folder, "bucket"))
	if err != nil {
		return kubestore.Cell{}, err
	}
	cell, err := kubestore.Open(projection.Config{
		Log: log, Bucket: bucket.Count(b), Budget: cache.NewBudget(cacheBytes), LogRetention: 10 * time.Minute, Retention: time.Hour,
	}, cluster)
	if err == nil {
		_, err = cell.Projection.Begin(ctx)
	}
	return cell, err
}

// configOf translates upstream's flags.
func configOf(c options.CompletedOptions, folder string) (apiserver.Config, error) {
	users, err := usersOf(c, folder)
	if err != nil {
		return apiserver.Config{}, err
	}
	generic, audit, plugins := c.GenericServerRunOptions, c.Audit, c.Admission.GenericAdmission
	config := apiserver.Config{
		Logger:          slog.Default(),
		ExternalAddress: net.JoinHostPort(generic.ExternalHost, strconv.Itoa(c.SecureServing.BindPort)),
		Authentication:  users,
		Authorization:   access.Authorization{Mode: modeOf(c), ConfigFile: c.Authorization.AuthorizationConfigurationFile},
		Admission:       apiserver.Admission{Enable: plugins.EnablePlugins, Disable: plugins.DisablePlugins, ConfigFile: plugins.ConfigFile},
		Audit: access.Audit{
			PolicyFile: audit.PolicyFile,
			LogPath:    audit.LogOptions.Path, LogFormat: audit.LogOptions.Format, LogMode: audit.LogOptions.BatchOptions.Mode,
			WebhookConfigFile: audit.WebhookOptions.ConfigFile, WebhookMode: audit.WebhookOptions.BatchOptions.Mode,
		},
		EncryptionConfigFile: c.Etcd.EncryptionProviderConfigFilepath,
		ForbidPrivileged:     !c.AllowPrivileged,
		Services:             services.Ranges{CIDR: c.PrimaryServiceClusterIPRange.String(), NodePorts: c.ServiceNodePortRange},
		Requests: gate.RequestLimits{
			InFlight: generic.MaxRequestsInFlight, Mutating: generic.MaxMutatingRequestsInFlight, Timeout: generic.RequestTimeout,
		},
		GoawayChance: generic.GoawayChance, TracingConfigFile: c.Traces.ConfigFile,
		ProxyClientCertFile: c.ProxyClientCertFile, ProxyClientKeyFile: c.ProxyClientKeyFile,
	}
	if config.Audit.WebhookConfigFile == "" || config.Audit.WebhookMode == "batch" { // here nothing collects records
		config.Audit.WebhookMode = ""
	}
	if config.Audit.LogPath == "" && config.Audit.WebhookConfigFile == "" {
		config.Audit.PolicyFile = "" // upstream too records nothing then
	}
	return config, config.Audit.Check()
}

// modeOf returns the authorization mode as Authorization names it.
func modeOf(c options.CompletedOptions) string {
	if c.Authorization.AuthorizationConfigurationFile != "" {
		return ""
	}
	chosen := slices.Clone(c.Authorization.Modes)
	slices.Sort(chosen) // Node comes first, which decides only about nodes
	return strings.Join(chosen, ",")
}

func usersOf(c options.CompletedOptions, folder string) (access.Authentication, error) {
	from := c.Authentication
	users := access.Authentication{
		ClientCAFile: from.ClientCert.ClientCA, TokenFile: from.TokenFile.TokenFile, ConfigFile: from.AuthenticationConfigFile,
		Reviews: access.ReviewsConfig{File: from.WebHook.ConfigFile, Version: from.WebHook.Version, TTL: from.WebHook.CacheTTL},
		ServiceAccounts: tokens.Config{
			Issuers: from.ServiceAccounts.Issuers, SigningKeyFile: c.ServiceAccountSigningKeyFile, KeyFiles: from.ServiceAccounts.KeyFiles,
			Audiences: from.APIAudiences, MaxExpiration: from.ServiceAccounts.MaxExpiration, NoExtension: !from.ServiceAccounts.ExtendExpiration,
			JWKSURI: from.ServiceAccounts.JWKSURI,
		},
	}
	if users.ConfigFile != "" {
		return users, nil
	}
	computed, err := from.ToAuthenticationConfig()
	if err != nil {
		return users, err
	}
	computed.AuthenticationConfig.Anonymous = &computed.Anonymous
	content, err := encode(computed.AuthenticationConfig)
	if err != nil {
		return users, err
	}
	users.ConfigFile = filepath.Join(folder, "authentication-"+strconv.Itoa(c.SecureServing.BindPort)+".json")
	return users, os.WriteFile(users.ConfigFile, content, 0o600)
}

// encode turns the flags about issuers and anonymous requests into the file that has the same meaning.
func encode(c *apiserverconfig.AuthenticationConfiguration) ([]byte, error) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return runtime.Encode(serializer.NewCodecFactory(scheme).LegacyCodec(apiserverv1.SchemeGroupVersion), c) // in JSON
}

func trustOf(c options.CompletedOptions) aggregation.Trust {
	proxy := c.Authentication.RequestHeader
	return aggregation.Trust{RequestHeaderCAFile: proxy.ClientCAFile, ClientCAFile: c.Authentication.ClientCert.ClientCA, AllowedNames: proxy.AllowedNames}
}

// certificateOf returns the TLS configuration for the given certificate, or for the one in --cert-dir, which Complete
// has made if it was missing.
func certificateOf(c options.CompletedOptions) (*tls.Config, error) {
	pair := c.SecureServing.ServerCert.CertKey
	certificate, err := reload.New(func() (tls.Certificate, error) { return tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile) }, pair.CertFile, pair.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("load the certificate of --cert-dir or --tls-cert-file: %w", err)
	}
	return serving.TLS(certificate.Get, true), nil
}
