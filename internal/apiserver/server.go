package apiserver

import (
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/eventlog"
	dynamic "github.com/logplane/logplane/internal/apiserver/admission"
	"github.com/logplane/logplane/internal/apiserver/aggregation"
	"github.com/logplane/logplane/internal/apiserver/customresources"
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

// Config of the apiserver of one cluster.
type Config struct {
	Cell   kubestore.Cell
	Logger *slog.Logger
	// ExternalAddress with a port, for discovery.
	ExternalAddress string
	// WatcherURL, if set, is where a watch is redirected to (307); without it and without a Feed a watch is 405.
	WatcherURL string
	// LoopbackOnly refuses a Host that is not loopback and an Origin that is not the Host, so that no web page can use
	// a server that trusts everyone on this machine.
	LoopbackOnly bool
	// BeyondLoopback says that others than this machine reach the server. Then no object may name a webhook or a node
	// whose address means this machine.
	BeyondLoopback bool
	// Authentication and Authorization say who may do what; their zero values let everybody do everything.
	Authentication Authentication
	Authorization  Authorization
	Admission      Admission
	// TracingConfigFile is kube-apiserver's --tracing-config-file; empty for no traces.
	TracingConfigFile string
	// RootCAFile is the PEM of the authority that signs this API's certificate, kube-controller-manager's
	// --root-ca-file. Each namespace gets it in a ConfigMap, for its Pods to trust. Empty for none.
	RootCAFile string
	// Audit says which requests are recorded.
	Audit Audit
	// EncryptionConfigFile is kube-apiserver's --encryption-provider-config; empty for none.
	EncryptionConfigFile string
	// Kubelets says how nodes are reached, and whether they are.
	Kubelets Kubelets
	// ForbidPrivileged refuses Pods with privileged containers, and what makes such Pods: kube-apiserver's
	// --allow-privileged=false. Upstream keeps it for the whole process, and there the first server decides for all.
	ForbidPrivileged bool
	// Services says which addresses and node ports Services may have.
	Services services.Ranges
	// Requests bounds the requests of this process that are not watches, Watches those that are.
	Requests RequestLimits
	Watches  WatchLimits
	// GoawayChance and HSTSDirectives are kube-apiserver's --goaway-chance and --strict-transport-security-directives.
	GoawayChance   float64
	HSTSDirectives []string
	// Flagz, if set, tells authorized users the flags of this process.
	Flagz flagz.Reader
	// Writers, if set, counts the requests that may write.
	Writers *kubestore.Writers
	// ProxyClientCertFile and ProxyClientKeyFile hold the certificate by which the servers of remote APIServices know
	// this one. They are empty for none, and are read again when they change.
	ProxyClientCertFile, ProxyClientKeyFile string
}

// RequestLimits bounds requests other than watches. A limit of 0 is as in kube-apiserver.
type RequestLimits struct {
	// InFlight is how many requests that read are served at once, 400 by default. Mutating is how many others, 200 by
	// default. A negative number is no bound.
	InFlight, Mutating int
	// Timeout bounds each, a minute by default. The log must keep its events for longer than twice that.
	Timeout time.Duration
}

// Server is the http.Handler of one cluster. It starts no goroutine that outlives a request.
type Server struct {
	http.Handler

	config  Config
	generic *genericapiserver.Config
	stores  *resources.Stores
	// listers answer from the newest view.
	listers *listers.Factory
	// rules are RBAC's, for who may do what and who may grant it.
	rules *roles.Index
	// nodes says what nodes may do.
	nodes *nodes.Authorizer
	// kubelets connects to nodes, nil if it does not.
	kubelets *reload.Value[kubeletTransports]
	// dialer connects to whom objects name.
	dialer *net.Dialer
	// servers finds webhooks and remote API servers that are named by a Service.
	servers dynamic.Services
	// dynamic decides by webhooks and policies.
	dynamic *dynamic.Dynamic
	// rootCA is the content of Config.RootCAFile.
	rootCA []byte
	// namespaces and quotas decide about writes, and add to them (beside.go).
	namespaces *namespaces.Namespaces
	quotas     *quotas.Quotas
	// tokens issues those of service accounts, nil if it has no issuer. Credentials says whose credentials a request
	// shows, also those that a TokenReview asks about.
	tokens      *tokens.Tokens
	credentials authenticator.Request
	// loopback is the configuration of a client, as system:apiserver, that calls Handler in process.
	loopback *rest.Config
	// client uses loopback with protobuf.
	client kubernetes.Interface
	groups map[string]*group
	// definitions reads CustomResourceDefinitions.
	definitions *customresources.Reader
	// lives are those of what rights are of, by the revision of the newest version.
	lives *lru.Cache[eventlog.Revision, life]
	// aggregator forwards requests to the servers of remote APIServices.
	aggregator *aggregation.Aggregator
	// watches that are open.
	watches *watches
	// reads, writes and starts (of watches) are the places of requests. heavy are the places of those among them that
	// keep a processor busy. bodies are the bytes that requests have sent.
	reads, writes, heavy, starts *places
	bodies                       bodies
	// health answers checks of the health. Once initialized is true, the cluster has been made.
	health      *mux.PathRecorderMux
	initialized atomic.Bool
	// zpages answers '/flagz' and '/statusz'.
	zpages func() http.Handler

	// crds serves custom resources. discovery serves '/api', '/apis' and what is below them, down to a group's version.
	// openapi serves '/openapi/…'. Each also answers requests that it does not know.
	crds               *customresources.Handler
	discovery, openapi http.Handler
}
