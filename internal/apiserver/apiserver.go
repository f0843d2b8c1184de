// Package apiserver is the HTTP layer: upstream's registries over kubestore, with nothing in the background.
//
// Nouns. A Server serves one cluster. A group is one API group, built on first use. The stores make the
// storage.Interface of every resource. A lister answers from the newest view at request time. The
// loopback is a client of the Server in its own process.
//
// A request's path through the package:
//
//  1. filters.go resolves what is asked for and who asks, receives the body (bodies.go), waits for a place (places.go), catches up
//     with the log once and authorizes.
//  2. dispatch chooses a group, the custom resources, discovery, OpenAPI, health or metrics.
//  3. groups.go builds the group if this is its first request, and upstream's handlers take over.
//  4. admission.go, authz.go and upstream's own lookups read through listers.
//  5. The registry reads and writes through its store (storage.go), which is kubestore's.
package apiserver

import (
	"context"
	"log/slog"
	"net/http"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/internal/apiserver/bootstrap"
	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/description"
	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/apiserver/roles"
	"github.com/logplane/logplane/internal/apiserver/services"
	"github.com/logplane/logplane/internal/kubestore"
)

// Config of the apiserver of one cluster.
type Config struct {
	Cell   kubestore.Cell
	Logger *slog.Logger
	// ExternalAddress with a port, for discovery.
	ExternalAddress string
	// WatcherURL, if set, is where a watch is redirected to (307); without it and without a Feed a watch is 405.
	WatcherURL string
	// LoopbackOnly refuses a Host that is not loopback and an Origin that is not the Host, so that no web
	// page can use a server that trusts everyone on this machine.
	LoopbackOnly bool
	// Authentication and Authorization say who may do what; their zero values let everybody do everything.
	Authentication Authentication
	Authorization  Authorization
	// EncryptionConfigFile is kube-apiserver's --encryption-provider-config; empty for none.
	EncryptionConfigFile string
	// Services says which addresses and node ports Services may have.
	Services services.Ranges
	// Requests bounds the requests of this process that are not watches, Watches those that are.
	Requests RequestLimits
	Watches  WatchLimits
	// GoawayChance and HSTSDirectives are kube-apiserver's --goaway-chance and --strict-transport-security-directives.
	GoawayChance   float64
	HSTSDirectives []string
	// Writers, if set, counts the requests that may write.
	Writers *kubestore.Writers
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
	// loopback is the configuration of a client, as system:apiserver, that calls Handler in process.
	loopback *rest.Config
	// client uses loopback with protobuf.
	client kubernetes.Interface
	groups map[string]*group
	// definitions reads CustomResourceDefinitions.
	definitions *customresources.Reader
	// watches that are open.
	watches *watches
	// reads, writes, heavy (among them) and starts (of watches) are the places of requests, bodies the bytes that requests have sent.
	reads, writes, heavy, starts *places
	bodies                       bodies
	// health answers checks of the health.
	health *mux.PathRecorderMux

	// crds serves custom resources, discovery '/api', '/apis' and what is below them down to a group's
	// version, openapi '/openapi/…'. Each also answers what it does not know.
	crds               *customresources.Handler
	discovery, openapi http.Handler
}

// New builds the handler; API groups are built on first use.
func New(c Config) (*Server, error) {
	enableFeatures()
	registerUpstreamMetrics()
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	s := &Server{config: c, watches: newWatches(c.Watches), bodies: bodies{by: map[string]int64{}}}
	if err := s.configure(); err != nil {
		return nil, err
	}
	s.groups = newGroups(s)
	var err error
	if s.crds, err = newCustomResources(s); err != nil {
		return nil, err
	}
	s.health = newHealth(s)
	d := description.Config{
		Definitions: s.definitions, ExternalAddress: s.generic.ExternalAddress, Paths: append(s.health.ListedPaths(), "/metrics", "/version"),
		NotServed: s.notServed(), Fail: s.fail, Logger: s.config.Logger,
	}
	if s.discovery, err = description.NewDiscovery(d); err != nil {
		return nil, err
	}
	if s.openapi, err = description.NewOpenAPI(d); err != nil {
		return nil, err
	}
	s.Handler = s.withFilters(http.HandlerFunc(s.dispatch))
	return s, nil
}

// Loopback is the configuration of a client, as system:apiserver in system:masters, that calls the server
// in its own process. It does not watch.
func (s *Server) Loopback() *rest.Config { return rest.CopyConfig(s.loopback) }

// Bootstrap writes the objects that kube-apiserver makes when it starts, as far as they are missing. It is idempotent,
// and any number of processes may call it at once.
func (s *Server) Bootstrap(ctx context.Context) error {
	return bootstrap.Write(ctx, bootstrap.Config{
		Cell: s.config.Cell, Stores: s.stores, Ranges: s.config.Services, Loopback: s.loopback,
		Version: s.generic.EffectiveVersion.BinaryVersion().String(),
	})
}
