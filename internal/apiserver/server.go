package apiserver

import (
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"

	lru "github.com/hashicorp/golang-lru/v2"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/access"
	dynamic "github.com/logplane/logplane/internal/apiserver/admission"
	"github.com/logplane/logplane/internal/apiserver/aggregation"
	"github.com/logplane/logplane/internal/apiserver/cost"
	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/gate"
	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/apiserver/namespaces"
	"github.com/logplane/logplane/internal/apiserver/nodes"
	"github.com/logplane/logplane/internal/apiserver/quotas"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/apiserver/roles"
	"github.com/logplane/logplane/internal/apiserver/services"
	"github.com/logplane/logplane/internal/apiserver/tokens"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/reload"
)

// Config configures the apiserver of one cluster.
type Config struct {
	Cell   kubestore.Cell
	Logger *slog.Logger
	// ExternalAddress is a host with a port, for discovery.
	ExternalAddress string
	// LiveWatches, if set, answers all watches except watches of the past. If it is nil, this server serves such
	// watches from the Feed of its Cell, or answers 405 without a Feed.
	LiveWatches http.Handler
	// LoopbackOnly refuses a Host that is not loopback, and an Origin that differs from the Host. So no web page can
	// use a server that trusts everyone on this machine.
	LoopbackOnly bool
	// BeyondLoopback says that other machines can reach the server. Then no object may name a webhook or a node whose
	// address means this machine.
	BeyondLoopback bool
	// Authentication says who a user is, and Authorization what a user may do. With their zero values, everybody may do
	// everything.
	Authentication access.Authentication
	Authorization  access.Authorization
	Admission      Admission
	// TracingConfigFile is kube-apiserver's --tracing-config-file; empty for no traces.
	TracingConfigFile string
	// RootCAFile is the PEM of the authority that signs this API's certificate: kube-controller-manager's
	// --root-ca-file. Each namespace gets the certificate in a ConfigMap, so that the namespace's Pods trust this API.
	// Empty for none.
	RootCAFile string
	// Bare leaves out what upstream's kube-controller-manager gives a new namespace: its account and its certificate.
	Bare bool
	// Audit says which requests are recorded.
	Audit access.Audit
	// EncryptionConfigFile is kube-apiserver's --encryption-provider-config; empty for none.
	EncryptionConfigFile string
	// Kubelets says whether and how nodes are reached.
	Kubelets Kubelets
	// ForbidPrivileged refuses Pods with privileged containers, and objects that make such Pods: kube-apiserver's
	// --allow-privileged=false. Upstream has one setting per process, which the first Server sets.
	ForbidPrivileged bool
	// Services says which addresses and node ports Services may have.
	Services services.Ranges
	// Requests bounds this process's requests other than watches. Watches bounds this process's watches.
	Requests gate.RequestLimits
	Watches  gate.WatchLimits
	// GoawayChance and HSTSDirectives are kube-apiserver's --goaway-chance and --strict-transport-security-directives.
	GoawayChance   float64
	HSTSDirectives []string
	// Flagz, if set, shows the flags of this process to authorized users.
	Flagz flagz.Reader
	// Writers, if set, counts the requests that may write.
	Writers *kubestore.Writers
	// ProxyClientCertFile and ProxyClientKeyFile hold the certificate that this server shows to the servers of remote
	// APIServices. Empty for none. The files are read again when they change.
	ProxyClientCertFile, ProxyClientKeyFile string
}

// Server is the http.Handler of one cluster. It starts no goroutine that outlives a request.
type Server struct {
	http.Handler

	config Config
	// main is the server of the cell's main cluster, and others has those of all other clusters.
	main   *Server
	others *others

	generic *genericapiserver.Config
	stores  *resources.Stores
	// listers answer from the newest view.
	listers *listers.Factory
	// rules are the RBAC rules. They say which rights a user has and may grant.
	rules *roles.Index
	// nodes has the rights of nodes.
	nodes *nodes.Authorizer
	// kubelets are connections to nodes, nil if nodes are not reached.
	kubelets *reload.Value[kubeletTransports]
	// dialer connects to addresses that objects name.
	dialer *net.Dialer
	// servers finds the webhooks and remote API servers that are named by a Service.
	servers dynamic.Services
	// dynamic is the part of admission that webhooks and policies decide.
	dynamic *dynamic.Dynamic
	// rootCA is the content of Config.RootCAFile.
	rootCA []byte
	// namespaces and quotas check writes, and add other writes to them (alongside.go).
	namespaces *namespaces.Namespaces
	quotas     *quotas.Quotas
	// tokens issues tokens of service accounts, nil if there is no issuer.
	tokens *tokens.Tokens
	// access says who clients are and what they may do.
	access *access.Access
	// loopback is the configuration of a client, as system:apiserver, that calls Handler inside this process.
	loopback *rest.Config
	// client uses loopback, with protobuf.
	client kubernetes.Interface
	groups map[string]*group
	// definitions reads CustomResourceDefinitions.
	definitions *customresources.Reader
	// lives are the lives of objects that rights depend on, by the revision of the object's newest version.
	lives *lru.Cache[eventlog.Revision, life]
	// aggregator forwards requests to the servers of remote APIServices.
	aggregator *aggregation.Aggregator
	// gate decides when requests are served. cost bounds the work that one request may cause.
	gate *gate.Gate
	cost *cost.Meter
	// health answers health checks. initialized is true once this process has seen that the cluster is initialized.
	health      *mux.PathRecorderMux
	initialized atomic.Bool
	// zpages answers '/flagz' and '/statusz'.
	zpages func() http.Handler

	// crds serves custom resources. discovery serves '/api', '/apis' and the paths below, down to a group's version.
	// openapi serves '/openapi/…'. Each also answers unknown paths in its part.
	crds               *customresources.Handler
	discovery, openapi http.Handler
}
