package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/server/flagz"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/logplane/logplane/cmd/logplane/cells"
	"github.com/logplane/logplane/cmd/logplane/values"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/apiserver/aggregation"
	serve "github.com/logplane/logplane/internal/serving"
)

// serving has the flags of a listener, and of an apiserver and its users.
type serving struct {
	listening
	apiserver.Config
	watcherURL string
	trust      aggregation.Trust
	extend     bool // tokens of Pods
	lambda     bool // nothing listens
	flags      *pflag.FlagSet
}

func (s *serving) register(flags *pflag.FlagSet) {
	s.flags = flags
	s.listening.register(flags)
	users := &s.Authentication
	flags.StringVar(&users.ClientCAFile, "client-ca-file", "", "authenticate clients by certificates of these authorities; it and --token-auth-file are read again when they change")
	flags.StringVar(&users.TokenFile, "token-auth-file", "", "authenticate clients by the tokens in this file, as kube-apiserver reads it")
	flags.StringArrayVar(&users.ServiceAccounts.Issuers, "service-account-issuer", nil, "URL that names who issues tokens of service accounts; repeated, the first issues and tokens of all are good. Without it, service accounts have no tokens, and serve names its own address")
	flags.StringVar(&users.ServiceAccounts.SigningKeyFile, "service-account-signing-key-file", "", "private key that signs tokens of service accounts, the same for every process of the cell; it and --service-account-key-file are read again when they change")
	flags.StringArrayVar(&users.ServiceAccounts.KeyFiles, "service-account-key-file", nil, "key that verifies tokens of service accounts besides the signing key, for example one that has signed before; may be repeated")
	flags.StringSliceVar(&users.ServiceAccounts.Audiences, "api-audiences", nil, "audiences of this API, one of which a service account's token must have; without them, --service-account-issuer")
	flags.DurationVar(&users.ServiceAccounts.MaxExpiration, "service-account-max-token-expiration", 0, "the longest life of a service account's token that may be asked for; 0 for no limit")
	flags.BoolVar(&s.extend, "service-account-extend-token-expiration", true, "make a Pod's token of an hour good for a year, for clients that read it once")
	flags.StringVar(&users.ServiceAccounts.JWKSURI, "service-account-jwks-uri", "", "https URL of the public keys in the issuer's discovery document; without it, at --external-address")
	flags.StringVar(&users.ConfigFile, "authentication-config", "", "authenticate clients by tokens of the issuers in this file, an AuthenticationConfiguration of kube-apiserver's. It, --authorization-config and --authentication-token-webhook-config-file are read again when they change, and the files that they name")
	flags.StringVar(&users.Reviews.File, "authentication-token-webhook-config-file", "", "kubeconfig that leads to a webhook, which is asked about tokens that nobody else knows")
	flags.StringVar(&users.Reviews.Version, "authentication-token-webhook-version", "v1beta1", "version of the TokenReview that the webhook understands, 'v1' or 'v1beta1'")
	flags.DurationVar(&users.Reviews.TTL, "authentication-token-webhook-cache-ttl", 2*time.Minute, "how long the webhook's answers are kept; 0 keeps none")
	flags.StringVar(&s.Authorization.Mode, "authorization-mode", "", "who decides what clients may do: 'RBAC', which is the default, 'Node,RBAC', where nodes have users of their own, or 'AlwaysAllow'")
	flags.StringVar(&s.Authorization.ConfigFile, "authorization-config", "", "webhooks, Node and RBAC in the order in which they decide, instead of --authorization-mode: an AuthorizationConfiguration of kube-apiserver's")
	flags.StringSliceVar(&s.Admission.Enable, "enable-admission-plugins", nil, "admission plug-ins that are on besides those that are by default (docs/api.md#admission-plug-ins)")
	flags.StringSliceVar(&s.Admission.Disable, "disable-admission-plugins", nil, "admission plug-ins that are off although they are on by default (docs/api.md#admission-plug-ins)")
	flags.StringVar(&s.Admission.ConfigFile, "admission-control-config-file", "", "configuration of admission plug-ins, as kube-apiserver reads it")
	flags.IntVar(&s.Requests.InFlight, "max-requests-inflight", 400, "requests that read which this process serves at once, at least 1: a user has an eighth of these seats, but no more than eight for each processor, and what waits too long is 429")
	flags.IntVar(&s.Requests.Mutating, "max-mutating-requests-inflight", 200, "all other requests but watches that this process serves at once, at least 1: a user has an eighth of these seats")
	flags.DurationVar(&s.Requests.Timeout, "request-timeout", cells.RequestDeadline, "how long a request other than a watch may take, from 1s to 1m: its body may take half of that, and it may wait for a seat for a quarter")
	flags.Float64Var(&s.GoawayChance, "goaway-chance", 0, "fraction of requests, from 0 to 0.02, after which a client of HTTP/2 connects anew, to any process behind the same address; 0 for none")
	flags.StringVar(&s.TracingConfigFile, "tracing-config-file", "", "send spans to an OpenTelemetry collector as this file says, as kube-apiserver reads it; not on AWS Lambda (docs/run/watch.md#traces)")
	flags.StringSliceVar(&s.HSTSDirectives, "strict-transport-security-directives", nil, "directives for browsers in the header of HSTS, for example 'max-age=31536000,includeSubDomains'; without them, no header")
	flags.StringVar(&s.Audit.PolicyFile, "audit-policy-file", "", "the policy that says which requests are recorded, and how much of each, as kube-apiserver reads it; without it, none. It is read at the start")
	flags.StringVar(&s.Audit.LogPath, "audit-log-path", "", "file that records are appended to, '-' for standard output; it may be moved away at any time to rotate it, and the next record makes a new one")
	flags.StringVar(&s.Audit.LogFormat, "audit-log-format", "json", "'json', or 'legacy' for a line of text")
	flags.StringVar(&s.Audit.LogMode, "audit-log-mode", "blocking", "'blocking' counts a record that cannot be written in apiserver_audit_error_total, and 'blocking-strict' answers 500 instead of serving a request that cannot be recorded when it comes")
	flags.StringVar(&s.Audit.WebhookConfigFile, "audit-webhook-config-file", "", "kubeconfig that says where records are posted to; a request waits for it, 10s at most for each record. It is read at the start")
	flags.StringVar(&s.Audit.WebhookMode, "audit-webhook-mode", "blocking", "'blocking' or 'blocking-strict', as for --audit-log-mode")
	registerProxy(flags, &s.Config)
	flags.StringVar(&s.trust.RequestHeaderCAFile, "requestheader-client-ca-file", "", "authorities of --proxy-client-cert-file, published for the servers of remote APIServices; this process itself takes no proxy's word")
	flags.StringSliceVar(&s.trust.AllowedNames, "requestheader-allowed-names", nil, "common names that --proxy-client-cert-file may have, published too; without them, any")
	flags.StringVar(&s.Kubelets.CertFile, "kubelet-client-certificate", "", "certificate by which kubelets know this process; with it, log, exec, attach, port-forward and proxy are served. It, its key and --kubelet-certificate-authority are read again when they change")
	flags.StringVar(&s.Kubelets.KeyFile, "kubelet-client-key", "", "private key of --kubelet-client-certificate")
	flags.StringVar(&s.Kubelets.CAFile, "kubelet-certificate-authority", "", "authorities of the kubelets' own certificates; without it, they are not verified")
	flags.StringSliceVar(&s.Kubelets.AddressTypes, "kubelet-preferred-address-types", addressTypes, "addresses of a node that are called, the best type first")
	flags.StringVar(&s.ExternalAddress, "external-address", "", "host and port that clients reach this API under; without them, --listen")
}

// check refuses a listener that anyone on the network could use as an administrator, a listener that would expose
// tokens on the network, and meaningless values.
func (s *serving) check() error {
	users := s.Authentication
	if err := cmp.Or(
		s.checkLimits(), s.checkAddresses(), users.ServiceAccounts.Check(),
		values.AtLeast("--authentication-token-webhook-cache-ttl", users.Reviews.TTL, 0),
		s.Audit.Check(), checkProxy(s.Config), checkKubelets(s.Kubelets), s.checkCertificate(), s.checkWatcherURL(), s.trust.Check(),
	); err != nil {
		return err
	}
	switch {
	case s.Authorization.Mode != "" && s.Authorization.ConfigFile != "":
		return errors.New("--authorization-mode and --authorization-config both say who decides: give either of them")
	case len(s.trust.AllowedNames) > 0 && s.trust.RequestHeaderCAFile == "":
		return errors.New("--requestheader-allowed-names are of certificates that --requestheader-client-ca-file has signed: give both")
	case users.ClientCAFile != "" && s.certFile == "":
		return errors.New("--client-ca-file needs HTTPS: give --tls-cert-file and --tls-private-key-file")
	case s.lambda && !users.Configured():
		return errors.New("nobody could use this function, because it cannot authenticate clients: give --token-auth-file, or another way to do so")
	case s.lambda && s.TracingConfigFile != "":
		return errTracedOnLambda
	case s.lambda || serve.IsLoopback(s.listen):
		return nil
	case !users.Configured():
		return fmt.Errorf("--listen is '%s': beyond loopback, clients must be authenticated: give --token-auth-file or --client-ca-file, or another way to do so", s.listen)
	}
	return s.checkPlainHTTP()
}

// registerProxy adds the flags of the certificate by which other API servers know this process.
func registerProxy(flags *pflag.FlagSet, c *apiserver.Config) {
	flags.StringVar(&c.ProxyClientCertFile, "proxy-client-cert-file", "", "certificate by which the servers of remote APIServices know this process; it and its key are read again when they change")
	flags.StringVar(&c.ProxyClientKeyFile, "proxy-client-key-file", "", "private key of --proxy-client-cert-file")
}

func checkProxy(c apiserver.Config) error {
	return values.Together("--proxy-client-cert-file", c.ProxyClientCertFile, "--proxy-client-key-file", c.ProxyClientKeyFile)
}

func checkKubelets(k apiserver.Kubelets) error {
	if err := values.Together("--kubelet-client-certificate", k.CertFile, "--kubelet-client-key", k.KeyFile); err != nil {
		return err
	}
	if k.CAFile != "" && !k.Configured() {
		return errors.New("--kubelet-certificate-authority is of no use without --kubelet-client-certificate: give both")
	}
	for _, name := range k.AddressTypes {
		if !slices.Contains(addressTypes, name) {
			return fmt.Errorf("--kubelet-preferred-address-types has '%s': it must be one of '%s'", name, strings.Join(addressTypes, "', '"))
		}
	}
	return nil
}

// addressTypes are the types of a Node's addresses, in upstream's order.
var addressTypes = []string{"Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"}

// checkWatcherURL refuses to send clients to a URL where their tokens would travel unencrypted.
func (s *serving) checkWatcherURL() error {
	if s.watcherURL == "" {
		return nil
	}
	u, err := values.ServerURL("--watcher-url", s.watcherURL)
	if err != nil || !s.Authentication.Configured() {
		return err
	}
	return s.checkLeadsTo("--watcher-url", u)
}

func (s *serving) checkAddresses() error {
	if !s.lambda {
		if err := s.checkListen(); err != nil {
			return err
		}
	}
	if s.ExternalAddress == "" {
		return nil
	}
	return values.CheckAddress("--external-address", s.ExternalAddress)
}

func (s *serving) checkLimits() error {
	if err := cmp.Or(
		values.AtLeast("--max-requests-inflight", s.Requests.InFlight, 1), values.AtLeast("--max-mutating-requests-inflight", s.Requests.Mutating, 1),
		s.checkStreams(),
	); err != nil {
		return err
	}
	if t := s.Requests.Timeout; t < time.Second || t > cells.RequestDeadline {
		return fmt.Errorf("--request-timeout is %s: it must be from 1s to %s, for which --log-retention is laid out", t, cells.RequestDeadline)
	}
	if s.GoawayChance < 0 || s.GoawayChance > 0.02 {
		return fmt.Errorf("--goaway-chance is %v: it must be from 0 to 0.02", s.GoawayChance)
	}
	for _, directive := range s.HSTSDirectives {
		if directive != "includeSubDomains" && directive != "preload" && !maxAge.MatchString(directive) {
			return fmt.Errorf("--strict-transport-security-directives has '%s': it must be 'max-age=SECONDS', 'includeSubDomains' or 'preload'", directive)
		}
	}
	return nil
}

var maxAge = regexp.MustCompile(`^max-age=[0-9]+$`)

// open connects to the cell and completes the apiserver's configuration on it. The caller closes the cell.
func (s *serving) open(ctx context.Context, where *cells.Connection) (*cells.Cell, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	opened, err := where.Open(ctx)
	if err != nil {
		return nil, err
	}
	where.Configure(&s.Config, opened)
	s.complete()
	return opened, nil
}

// complete computes the settings that follow from several flags.
func (s *serving) complete() {
	s.ExternalAddress = cmp.Or(s.ExternalAddress, s.listen)
	s.LoopbackOnly = !s.Authentication.Configured()
	s.BeyondLoopback = s.lambda || !serve.IsLoopback(s.listen)
	s.Authentication.ServiceAccounts.NoExtension = !s.extend
	if s.Authorization.ConfigFile == "" {
		s.Authorization.Mode = cmp.Or(s.Authorization.Mode, "RBAC")
	}
	s.Flagz = flagzOf(s.flags)
	s.trust.ClientCAFile = s.Authentication.ClientCAFile
}

// publishTimeout bounds the time that a process takes to publish before it serves.
const publishTimeout = 10 * time.Second

// publish writes the facts that remote servers must know of this process. If publish fails, the process serves
// nevertheless: another process may have published the same facts, and the next start tries again.
func (s *serving) publish(ctx context.Context, server *apiserver.Server) {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	if err := server.Publish(ctx, s.trust); err != nil {
		slog.Error("remote API servers may not trust this process: run 'logplane init' if the cluster is new, then start this process again", "error", err)
	}
}

// flagzOf returns the reader of the flags that '/flagz' shows.
func flagzOf(flags *pflag.FlagSet) flagz.Reader {
	return flagz.NamedFlagSetsReader{FlagSets: cliflag.NamedFlagSets{FlagSets: map[string]*pflag.FlagSet{"logplane": flags}}}
}

// serve adds the flags to the configuration, and serves the handler until ctx ends. Then it lets streams end and
// requests in flight finish.
func (s *serving) serve(ctx context.Context, handler http.Handler, c serve.Config) error {
	c.RequestTimeout = s.Requests.Timeout
	if !s.Authentication.Configured() {
		slog.Warn("nobody is asked for credentials: whoever reaches this address, also through a proxy, is an administrator; give --token-auth-file or --client-ca-file")
	}
	return s.listening.serve(ctx, handler, c, s.Authentication.ClientCAFile != "")
}
