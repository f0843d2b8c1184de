package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/server/flagz"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/apiserver/access"
	"github.com/logplane/logplane/internal/apiserver/aggregation"
	"github.com/logplane/logplane/internal/apiserver/gate"
	"github.com/logplane/logplane/internal/apiserver/tokens"
	serve "github.com/logplane/logplane/internal/serving"
)

// serving has the flags of a listener and of the authentication of its users.
type serving struct {
	listening
	clientCAFile, tokenFile string
	authenticationConfig    string
	reviews                 access.ReviewsConfig
	authorizationMode       string
	authorizationConfig     string
	externalAddress         string
	lambda                  bool // nothing listens
	watcherURL              string
	accounts                tokens.Config
	admission               apiserver.Admission
	requests                gate.RequestLimits
	extend                  bool
	goawayChance            float64
	hsts                    []string
	tracing                 string
	audit                   access.Audit
	flags                   *pflag.FlagSet
	proxying                proxying
	trust                   aggregation.Trust
	kubelets                apiserver.Kubelets
}

func (s *serving) register(flags *pflag.FlagSet) {
	s.flags = flags
	s.listening.register(flags)
	flags.StringVar(&s.clientCAFile, "client-ca-file", "", "authenticate clients by certificates of these authorities; it and --token-auth-file are read again when they change")
	flags.StringVar(&s.tokenFile, "token-auth-file", "", "authenticate clients by the tokens in this file, as kube-apiserver reads it")
	flags.StringArrayVar(&s.accounts.Issuers, "service-account-issuer", nil, "URL that names who issues tokens of service accounts; repeated, the first issues and tokens of all are good. None by default: service accounts have no tokens")
	flags.StringVar(&s.accounts.SigningKeyFile, "service-account-signing-key-file", "", "private key that signs tokens of service accounts, the same for every process of the cell; it and --service-account-key-file are read again when they change")
	flags.StringArrayVar(&s.accounts.KeyFiles, "service-account-key-file", nil, "key that verifies tokens of service accounts besides the signing key, for example one that has signed before; may be repeated")
	flags.StringSliceVar(&s.accounts.Audiences, "api-audiences", nil, "audiences of this API, one of which a service account's token must have; --service-account-issuer by default")
	flags.DurationVar(&s.accounts.MaxExpiration, "service-account-max-token-expiration", 0, "the longest life of a service account's token that may be asked for; no limit by default")
	flags.BoolVar(&s.extend, "service-account-extend-token-expiration", true, "give a Pod's token of an hour a year, for clients that read it once")
	flags.StringVar(&s.accounts.JWKSURI, "service-account-jwks-uri", "", "https URL of the public keys in the issuer's discovery document; --external-address by default")
	flags.StringVar(&s.authenticationConfig, "authentication-config", "", "authenticate clients by tokens of the issuers in this file, an AuthenticationConfiguration of kube-apiserver's; it, --authorization-config and --authentication-token-webhook-config-file are read again when they change, and the files that they name")
	flags.StringVar(&s.reviews.File, "authentication-token-webhook-config-file", "", "kubeconfig that leads to a webhook, which is asked whose a token is that nobody else knows")
	flags.StringVar(&s.reviews.Version, "authentication-token-webhook-version", "v1beta1", "version of the TokenReview that the webhook understands, 'v1' or 'v1beta1'")
	flags.DurationVar(&s.reviews.TTL, "authentication-token-webhook-cache-ttl", 2*time.Minute, "how long the webhook's answers are kept; 0 keeps none")
	flags.StringVar(&s.authorizationMode, "authorization-mode", "", "'RBAC', the default, 'Node,RBAC', where nodes have users of their own, or 'AlwaysAllow'")
	flags.StringVar(&s.authorizationConfig, "authorization-config", "", "instead of a mode: who decides what clients may do, webhooks, Node and RBAC, an AuthorizationConfiguration of kube-apiserver's")
	flags.StringSliceVar(&s.admission.Enable, "enable-admission-plugins", nil, "admission plugins that are on besides those that are by default (docs/api.md)")
	flags.StringSliceVar(&s.admission.Disable, "disable-admission-plugins", nil, "admission plugins that are off although they are on by default")
	flags.StringVar(&s.admission.ConfigFile, "admission-control-config-file", "", "configuration of admission plugins, as kube-apiserver reads it")
	flags.IntVar(&s.requests.InFlight, "max-requests-inflight", 400, "requests that read which this process serves at once; one user of several gets an eighth of them, what waits too long is 429")
	flags.IntVar(&s.requests.Mutating, "max-mutating-requests-inflight", 200, "requests other than watches, and than those of --max-requests-inflight, which this process serves at once")
	flags.DurationVar(&s.requests.Timeout, "request-timeout", requestDeadline, "how long a request other than a watch may take, its body half of that; at most 1m")
	flags.Float64Var(&s.goawayChance, "goaway-chance", 0, "fraction of requests, at most 0.02, after which a client of HTTP/2 is sent to connect anew, to any process behind the same address")
	flags.StringVar(&s.tracing, "tracing-config-file", "", "send spans of requests to an OpenTelemetry collector as this file says, as kube-apiserver reads it; not on AWS Lambda")
	flags.StringSliceVar(&s.hsts, "strict-transport-security-directives", nil, "directives for HSTS, for example 'max-age=31536000,includeSubDomains'; none by default")
	flags.StringVar(&s.audit.PolicyFile, "audit-policy-file", "", "which requests are recorded, as kube-apiserver reads it; none by default")
	flags.StringVar(&s.audit.LogPath, "audit-log-path", "", "file that records are appended to, '-' for standard output; it may be moved away at any time to rotate it")
	flags.StringVar(&s.audit.LogFormat, "audit-log-format", "json", "'json' or 'legacy'")
	flags.StringVar(&s.audit.LogMode, "audit-log-mode", "blocking", "'blocking', or 'blocking-strict' to refuse requests that cannot be recorded there")
	flags.StringVar(&s.audit.WebhookConfigFile, "audit-webhook-config-file", "", "kubeconfig that says where records are posted to; a request waits for it, 10s at most for each record")
	flags.StringVar(&s.audit.WebhookMode, "audit-webhook-mode", "blocking", "'blocking', or 'blocking-strict' to refuse requests that cannot be posted there")
	s.proxying.register(flags)
	registerTrust(flags, &s.trust)
	registerKubelets(flags, &s.kubelets)
	flags.StringVar(&s.externalAddress, "external-address", "", "host and port that clients reach this API under; --listen by default")
}

// check refuses a listener that anyone on the network could use as an administrator, a listener that would expose
// tokens on the network, and meaningless limits.
func (s *serving) check() error {
	if err := cmp.Or(s.checkLimits(), s.checkAddresses()); err != nil {
		return err
	}
	if err := s.accounts.Check(); err != nil {
		return err
	}
	if s.authorizationMode != "" && s.authorizationConfig != "" {
		return errors.New("give either --authorization-mode or --authorization-config")
	}
	if err := atLeast("--authentication-token-webhook-cache-ttl", s.reviews.TTL, 0); err != nil {
		return err
	}
	if err := s.audit.Check(); err != nil {
		return err
	}
	if err := s.proxying.check(); err != nil {
		return err
	}
	if err := checkKubelets(s.kubelets); err != nil {
		return err
	}
	if len(s.trust.AllowedNames) > 0 && s.trust.RequestHeaderCAFile == "" {
		return errors.New("--requestheader-allowed-names needs --requestheader-client-ca-file")
	}
	if err := s.checkCertificate(); err != nil {
		return err
	}
	if s.clientCAFile != "" && s.certFile == "" {
		return errors.New("--client-ca-file needs HTTPS: give --tls-cert-file and --tls-private-key-file")
	}
	if err := s.checkWatcherURL(); err != nil {
		return err
	}
	if s.lambda && !s.authenticated() {
		return errors.New("nobody could use this function: on AWS Lambda, --token-auth-file must be given, or another way to authenticate clients")
	}
	if s.lambda && s.tracing != "" {
		return errTracedOnLambda
	}
	if s.lambda || serve.IsLoopback(s.listen) {
		return nil
	}
	if !s.authenticated() {
		return fmt.Errorf("--listen is '%s': beyond loopback, --token-auth-file or --client-ca-file must be given, or another way to authenticate clients", s.listen)
	}
	return s.checkPlainHTTP()
}

// checkWatcherURL refuses to send clients to a URL where their tokens would travel unencrypted.
func (s *serving) checkWatcherURL() error {
	if s.watcherURL == "" {
		return nil
	}
	u, err := parseServerURL("--watcher-url", s.watcherURL)
	if err != nil {
		return err
	}
	if !s.authenticated() {
		return nil
	}
	return s.checkLeadsTo("--watcher-url", u)
}

func (s *serving) checkAddresses() error {
	if !s.lambda {
		if err := s.checkListen(); err != nil {
			return err
		}
	}
	if s.externalAddress == "" {
		return nil
	}
	return checkAddress("--external-address", s.externalAddress)
}

func (s *serving) checkLimits() error {
	if err := cmp.Or(
		atLeast("--max-requests-inflight", s.requests.InFlight, 1), atLeast("--max-mutating-requests-inflight", s.requests.Mutating, 1),
		s.checkStreams(),
	); err != nil {
		return err
	}
	if t := s.requests.Timeout; t < time.Second || t > requestDeadline {
		return fmt.Errorf("--request-timeout is %s: it must be from 1s to %s, for which --log-retention is laid out", t, requestDeadline)
	}
	if s.goawayChance < 0 || s.goawayChance > 0.02 {
		return fmt.Errorf("--goaway-chance is %v: it must be from 0 to 0.02", s.goawayChance)
	}
	for _, directive := range s.hsts {
		if directive != "includeSubDomains" && directive != "preload" && !maxAge.MatchString(directive) {
			return fmt.Errorf("--strict-transport-security-directives has '%s': it must be 'max-age=SECONDS', 'includeSubDomains' or 'preload'", directive)
		}
	}
	return nil
}

var maxAge = regexp.MustCompile(`^max-age=[0-9]+$`)

func (s *serving) authenticated() bool { return s.authentication().Configured() }

func (s *serving) authentication() access.Authentication {
	return access.Authentication{
		TokenFile: s.tokenFile, ClientCAFile: s.clientCAFile, ConfigFile: s.authenticationConfig, Reviews: s.reviews, ServiceAccounts: s.accounts,
	}
}

// open connects to the cell and configures an apiserver on it. The caller closes the cell.
func (s *serving) open(ctx context.Context, where *connection) (*cell, apiserver.Config, error) {
	if err := cmp.Or(s.check(), s.trust.Check()); err != nil {
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

// configure copies the flags into the apiserver's configuration.
func (s *serving) configure(c *apiserver.Config) {
	c.ExternalAddress = s.externalAddress
	if c.ExternalAddress == "" {
		c.ExternalAddress = s.listen
	}
	c.LoopbackOnly = !s.authenticated()
	c.BeyondLoopback = s.lambda || !serve.IsLoopback(s.listen)
	s.accounts.NoExtension = !s.extend
	c.Authentication = s.authentication()
	c.Authorization = access.Authorization{Mode: s.authorizationMode, ConfigFile: s.authorizationConfig}
	if s.authorizationMode == "" && s.authorizationConfig == "" {
		c.Authorization.Mode = "RBAC"
	}
	c.Admission = s.admission
	c.Flagz = flagzOf(s.flags)
	c.TracingConfigFile = s.tracing
	c.Requests, c.GoawayChance, c.HSTSDirectives, c.Audit = s.requests, s.goawayChance, s.hsts, s.audit
	s.proxying.configure(c)
	c.Kubelets = s.kubelets
	s.trust.ClientCAFile = s.clientCAFile
}

// flagzOf returns what '/flagz' shows.
func flagzOf(flags *pflag.FlagSet) flagz.Reader {
	return flagz.NamedFlagSetsReader{FlagSets: cliflag.NamedFlagSets{FlagSets: map[string]*pflag.FlagSet{"logplane": flags}}}
}

// serve adds the flags to the configuration, and serves the handler until ctx ends. Then it lets streams end and
// requests in flight finish.
func (s *serving) serve(ctx context.Context, handler http.Handler, c serve.Config) error {
	c.RequestTimeout = s.requests.Timeout
	if !s.authenticated() {
		slog.Warn("nobody is asked for credentials: whoever reaches this address, also through a proxy, is an administrator; give --token-auth-file or --client-ca-file")
	}
	return s.listening.serve(ctx, handler, c, s.clientCAFile != "")
}
