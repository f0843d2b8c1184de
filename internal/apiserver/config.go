package apiserver

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/controlplane"

	"github.com/logplane/logplane/internal/apiserver/access"
	dynamic "github.com/logplane/logplane/internal/apiserver/admission"
	"github.com/logplane/logplane/internal/apiserver/aggregation"
	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/cost"
	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/gate"
	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/apiserver/lists"
	"github.com/logplane/logplane/internal/apiserver/loopback"
	"github.com/logplane/logplane/internal/apiserver/namespaces"
	"github.com/logplane/logplane/internal/apiserver/nodes"
	"github.com/logplane/logplane/internal/apiserver/quotas"
	"github.com/logplane/logplane/internal/apiserver/requests"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/apiserver/roles"
	"github.com/logplane/logplane/internal/apiserver/services"
	"github.com/logplane/logplane/internal/apiserver/tokens"
	"github.com/logplane/logplane/internal/calls"
)

// eventTTL is kube-apiserver's --event-ttl.
const eventTTL = time.Hour

const defaultRequestTimeout = time.Minute

// defaultAddress is the address of a server that nobody outside of its process calls.
const defaultAddress = "localhost:443"

// enableFeatures sets the process-wide feature gates before the first group is built, since codecs depend on them.
var enableFeatures = sync.OnceFunc(func() {
	err := utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{
		string(features.CBORServingAndStorage): true,
		// Upstream would announce gzip for a watch whose bytes our watch writer sends past upstream's compressor.
		string(features.WatchListCompression): false,
	})
	if err != nil {
		panic(err)
	}
})

// configure makes the parts that all groups share.
func (s *Server) configure() error {
	c := genericapiserver.NewConfig(answers.Codecs())
	c.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	c.FeatureGate = utilfeature.DefaultFeatureGate
	c.ExternalAddress = cmp.Or(s.config.ExternalAddress, defaultAddress)
	// Nothing that upstream would run in the background is started (architecture.md).
	c.FlowControl, c.StorageObjectCountTracker = nil, nil
	c.EnableIndex, c.EnableProfiling, c.EnableMetrics, c.EnableDiscovery = false, false, false, false
	c.SkipOpenAPIInstallation = true
	limits := s.config.Requests
	c.RequestTimeout = cmp.Or(limits.Timeout, defaultRequestTimeout)
	c.MaxRequestsInFlight = cmp.Or(limits.InFlight, c.MaxRequestsInFlight)
	c.MaxMutatingRequestsInFlight = cmp.Or(limits.Mutating, c.MaxMutatingRequestsInFlight)
	if s.gate = s.main.gate; s.gate == nil {
		s.gate = gate.New(gate.Config{
			Requests: gate.RequestLimits{InFlight: c.MaxRequestsInFlight, Mutating: c.MaxMutatingRequestsInFlight, Timeout: c.RequestTimeout},
			Watches:  s.config.Watches, Authenticated: s.config.Authentication.Configured(), MaxBody: c.MaxRequestBodyBytes,
			Caches: s.config.Cell.Projection.Budget().Limit(), Writers: s.config.Writers, Logger: s.config.Logger,
		})
	}
	atomic.StoreInt64(&jsonpatch.AccumulatedCopySizeLimit, c.JSONPatchMaxCopyBytes) // as genericapiserver's New does
	c.MergedResourceConfig = controlplane.DefaultAPIResourceConfigSource()
	s.generic = c

	var err error
	if s != s.main {
		c.AuditBackend, c.AuditPolicyRuleEvaluator = s.main.generic.AuditBackend, s.main.generic.AuditPolicyRuleEvaluator
	} else if c.AuditBackend, c.AuditPolicyRuleEvaluator, err = s.config.Audit.Open(); err != nil {
		return err
	}

	s.cost = cost.New(cost.Config{Builtin: s.serves, Example: s.example, Logger: s.config.Logger})
	transformers, err := resources.ReadEncryption(s.config.EncryptionConfigFile)
	if err != nil {
		return err
	}
	s.stores, err = resources.New(resources.Config{
		Cell: s.config.Cell, Version: c.EffectiveVersion, Served: c.MergedResourceConfig, Transformers: transformers,
		Claims: map[schema.GroupResource]resources.ClaimsFunc{
			api.Resource("services"): services.Claims(s.config.Cell.Cluster, transformers.For(networkingv1.Resource("ipaddresses"))),
		},
		Complete:  s.complete,
		Alongside: s.alongside,
		Within:    s.withinReach,
		Wrap:      func(store storage.Interface) storage.Interface { return s.cost.Patchable(lists.Store(store)) },
	})
	if err != nil {
		return fmt.Errorf("make stores: %w", err)
	}
	c.RESTOptionsGetter = s.stores
	c.EquivalentResourceRegistry = s.stores.Equivalents()

	s.loopback = loopback.New(s)
	c.LoopbackClientConfig = s.loopback
	if s != s.main {
		c.TracerProvider = s.main.generic.TracerProvider
	} else if err := s.startTracing(c); err != nil {
		return err
	}
	if s.client, err = kubernetes.NewForConfig(s.loopback); err != nil {
		return fmt.Errorf("make the loopback client: %w", err)
	}
	s.listers = listers.New(listers.Config{Projection: s.config.Cell.Projection, Cluster: s.config.Cell.Cluster, Storage: s.stores, Logger: s.config.Logger})

	s.dialer = calls.NewDialer(s.config.BeyondLoopback)
	if s != s.main { // whose credentials and place in the network are not for the administrators of other clusters
		s.dialer = calls.NoDialer(errCallsNobody)
	}
	if s.servers, err = dynamic.NewServices(s.listers, s.dialer); err != nil {
		return err
	}
	s.definitions = customresources.NewReader(s.listers, s.config.Cell.Projection)
	if s.config.RootCAFile != "" {
		if s.rootCA, err = os.ReadFile(s.config.RootCAFile); err != nil {
			return fmt.Errorf("read the root certificate: %w", err)
		}
	}
	s.namespaces = namespaces.New(namespaces.Config{Stores: s.stores, Listers: s.listers, RootCA: s.rootCA, Bare: s.config.Bare})
	if s.quotas, err = quotas.New(quotas.Config{Stores: s.stores, Listers: s.listers}); err != nil {
		return err
	}
	if s.aggregator, err = newAggregator(s); err != nil {
		return fmt.Errorf("configure aggregation: %w", err)
	}

	if s.kubelets, err = s.config.Kubelets.open(s.dialer); err != nil {
		return err
	}
	s.nodes = nodes.New(s.config.Cell.Projection, s.listers)
	s.rules = roles.New(roles.Config{Projection: s.config.Cell.Projection, Listers: s.listers})

	var accounts authenticator.Token
	if s.tokens, accounts, err = newTokens(s); err != nil {
		return fmt.Errorf("configure authentication: %w", err)
	}
	c.Authentication.APIAudiences = s.tokens.Audiences()
	s.access, err = access.New(access.Config{
		Authentication: s.config.Authentication, Authorization: s.config.Authorization, IsOwn: s.isOwn,
		Accounts: accounts, Audiences: c.Authentication.APIAudiences, Rules: s.rules, Nodes: s.nodes,
	})
	if err != nil {
		return err
	}
	c.Authentication.Authenticator = s.access.Authenticator
	c.Authorization.Authorizer, c.RuleResolver = s.access.Authorizer, s.access.Rules
	if c.AdmissionControl, err = newAdmission(s); err != nil {
		return fmt.Errorf("make admission: %w", err)
	}
	c.RequestInfoResolver = requests.Infos
	return nil
}

// newAggregator makes the aggregator, which forwards requests to other API servers.
func newAggregator(s *Server) (*aggregation.Aggregator, error) {
	return aggregation.New(aggregation.Config{
		Listers: s.listers, Services: s.servers, Dialer: s.dialer, CertFile: s.config.ProxyClientCertFile, KeyFile: s.config.ProxyClientKeyFile,
		Timeout: s.generic.RequestTimeout, Logger: s.config.Logger,
	})
}

// minRequestTimeout is the shortest lifetime of a watch that sets no timeout.
func (s *Server) minRequestTimeout() time.Duration {
	return time.Duration(s.generic.MinRequestTimeout) * time.Second
}

// isOwn says whether this server shows the certificate to kubelets or to remote API servers.
func (s *Server) isOwn(c *x509.Certificate) bool {
	is := func(own *tls.Certificate) bool { return own != nil && bytes.Equal(own.Certificate[0], c.Raw) }
	return is(s.aggregator.Certificate()) || s.kubelets != nil && is(s.kubelets.Get().certificate)
}

// newTokens makes the issuer and verifier of service accounts' tokens, nil if such tokens are not configured.
func newTokens(s *Server) (*tokens.Tokens, authenticator.Token, error) {
	c := s.config.Authentication.ServiceAccounts
	c.ExternalAddress = s.generic.ExternalAddress
	t, err := tokens.New(c)
	if t == nil || err != nil {
		return nil, nil, err
	}
	core, webhooks := s.listers.Core().V1(), s.listers.Admissionregistration().V1()
	return t, ownAccounts(t.Authenticator(tokens.Objects{
		Accounts: core.ServiceAccounts().Lister(), Pods: core.Pods().Lister(), Secrets: core.Secrets().Lister(), Nodes: core.Nodes().Lister(),
		ValidatingWebhooks: webhooks.ValidatingWebhookConfigurations().Lister(), MutatingWebhooks: webhooks.MutatingWebhookConfigurations().Lister(),
	}, s.catchUp)), nil
}

// catchUp reads the log so that a token can be verified, before the request has its view. If the log does not answer, a
// good token must not count as bad. Upstream answers 401 to every error, so catchUp reports its error in the way of a
// lister (listers.Fail).
func (s *Server) catchUp(ctx context.Context) error {
	if _, err := s.config.Cell.Consistent(ctx); err != nil {
		listers.Fail(ctx, err)
	}
	return nil
}
