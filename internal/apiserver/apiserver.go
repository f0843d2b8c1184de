// Package apiserver is the HTTP layer: upstream's registries over kubestore, without background work.
//
// Nouns. A Server serves one cluster. A group is one API group, built on first use. The loopback is a client that calls
// the Server inside its own process. Each package below this one takes a small configuration and does not know Server.
//
// A request's path through the package:
//
//  1. filters.go finds out what the request asks for and who sent it, receives the body (gate/bodies.go), waits for a
//     seat (gate/seats.go), catches up with the log once, and authorizes.
//  2. dispatch.go chooses discovery, OpenAPI, metrics, or a resource; resource.go serves every request for a resource.
//  3. group.go builds the group if this is its first request (groups.go makes its registries), and upstream's handlers
//     take over.
//  4. admission.go, roles and upstream's own lookups read through listers, at the newest view.
//  5. The registry reads and writes through its store, which is one of kubestore's (resources).
package apiserver

import (
	"context"
	"log/slog"
	"net/http"
	"slices"

	lru "github.com/hashicorp/golang-lru/v2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	restregistry "k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/capabilities"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/bootstrap"
	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/description"
)

// New makes the server of a cell: of the configuration's cluster, and of all other clusters below '/clusters/'. API
// groups are built on first use.
func New(c Config) (*Server, error) { return serverOf(c, nil) }

// serverOf makes the server of one cluster. main is nil for main itself.
func serverOf(c Config, main *Server) (*Server, error) {
	enableFeatures()
	capabilities.Setup(!c.ForbidPrivileged, 0) // process-wide; later calls do nothing
	registerUpstreamMetrics()
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	s := &Server{config: c, main: main}
	if main == nil {
		s.main, s.others = s, newOthers(c.Cell.Projection.Budget().Limit())
	} else {
		s.others = main.others
	}
	s.lives, _ = lru.New[eventlog.Revision, life](knownLives) // fails only for a size below one
	if err := s.configure(); err != nil {
		return nil, err
	}
	s.groups = newGroups(s)
	s.crds = newCustomResources(s)
	s.health, s.zpages = newHealth(s), newZPages(s)
	d := description.Config{
		Definitions: s.definitions, Remotes: s.aggregator, ExternalAddress: s.generic.ExternalAddress, Paths: append(s.processPaths(), s.tokens.Paths()...),
		Root: s.root(), Serves: s.serves, Logger: s.config.Logger,
	}
	s.discovery, s.openapi = description.NewDiscovery(d), description.NewOpenAPI(d)
	s.Handler = s.withFilters(http.HandlerFunc(s.dispatch))
	if main == nil {
		s.Handler = s.withClusters(s.Handler)
	}
	return s, nil
}

// Loopback is the configuration of a client that calls the server inside its own process, as user system:apiserver in
// system:masters. The client cannot watch.
func (s *Server) Loopback() *rest.Config { return rest.CopyConfig(s.loopback) }

// Bootstrap writes the objects that kube-apiserver makes when it starts, except for objects that exist already. It is
// idempotent, and any number of processes may call it at once.
func (s *Server) Bootstrap(ctx context.Context) error {
	return bootstrap.Write(ctx, bootstrap.Config{
		Cell: s.config.Cell, Stores: s.stores, Ranges: s.config.Services, RootCA: s.rootCA, Bare: s.config.Bare, Loopback: s.loopback,
		Version: s.generic.EffectiveVersion.BinaryVersion().String(),
	})
}

// RootCA is the certificate that is copied to every namespace, empty if there is no such certificate. The lifecycle
// restores a copy that was lost.
func (s *Server) RootCA() []byte { return s.rootCA }

// newCustomResources makes the handler for the objects that CustomResourceDefinitions define.
func newCustomResources(s *Server) *customresources.Handler {
	return customresources.NewHandler(customresources.Config{
		Cell:        s.config.Cell,
		Stores:      s.stores,
		Definitions: s.definitions,
		Registry: func() (restregistry.Watcher, error) {
			built, err := s.groups[customresources.Resource.Group].get()
			if err != nil {
				return nil, err
			}
			return built.info.VersionedResourcesStorageMap["v1"][customresources.Resource.Resource].(restregistry.Watcher), nil
		},
		WithWatchWriter:     withWatchWriter,
		Admission:           s.generic.AdmissionControl,
		Authorizer:          s.generic.Authorization.Authorizer,
		Calls:               s.servers.Calls,
		RequestTimeout:      s.generic.RequestTimeout,
		MinRequestTimeout:   s.minRequestTimeout(),
		MaxRequestBodyBytes: s.generic.MaxRequestBodyBytes,
		Logger:              s.config.Logger,
	})
}

// Definitions returns the summary of every CRD as of now. It leaves out CRDs that cannot be decoded.
func (s *Server) Definitions(ctx context.Context) ([]customresources.Summary, error) {
	if _, err := s.config.Cell.Consistent(ctx); err != nil {
		return nil, err
	}
	set, err := s.definitions.AllFor(ctx)
	return slices.Concat(set.Definitions, set.Reserved), err
}

// Instances is the storage of a CRD's instances, in the CRD's storage version, whichever versions are served. The
// lifecycle deletes the instances through this storage.
func (s *Server) Instances(crd *apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error) {
	return s.crds.Instances(crd)
}

// StopWatches is StopWatches of gate.Gate.
func (s *Server) StopWatches() (ends []func(), ended <-chan struct{}) { return s.gate.StopWatches() }

// Shrink drops most of the caches' contents, and the servers of clusters other than main. An idle process calls Shrink.
func (s *Server) Shrink() {
	s.others.Purge()
	s.config.Cell.Shrink()
	s.listers.Shrink()
	s.rules.Shrink()
	s.nodes.Shrink()
	s.crds.Shrink()
	s.aggregator.Shrink()
}
