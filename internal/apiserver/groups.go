package apiserver

import (
	"context"
	"fmt"
	"strings"

	"github.com/emicklei/go-restful/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	admissionregistrationrest "k8s.io/kubernetes/pkg/registry/admissionregistration/rest"
	apiserverinternalrest "k8s.io/kubernetes/pkg/registry/apiserverinternal/rest"
	appsrest "k8s.io/kubernetes/pkg/registry/apps/rest"
	authorizationrest "k8s.io/kubernetes/pkg/registry/authorization/rest"
	autoscalingrest "k8s.io/kubernetes/pkg/registry/autoscaling/rest"
	batchrest "k8s.io/kubernetes/pkg/registry/batch/rest"
	certificatesrest "k8s.io/kubernetes/pkg/registry/certificates/rest"
	coordinationrest "k8s.io/kubernetes/pkg/registry/coordination/rest"
	discoveryrest "k8s.io/kubernetes/pkg/registry/discovery/rest"
	eventsrest "k8s.io/kubernetes/pkg/registry/events/rest"
	networkingrest "k8s.io/kubernetes/pkg/registry/networking/rest"
	noderest "k8s.io/kubernetes/pkg/registry/node/rest"
	policyrest "k8s.io/kubernetes/pkg/registry/policy/rest"
	resourcerest "k8s.io/kubernetes/pkg/registry/resource/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"
	storagerest "k8s.io/kubernetes/pkg/registry/storage/rest"
	svmrest "k8s.io/kubernetes/pkg/registry/storagemigration/rest"

	"github.com/logplane/logplane/internal/apiserver/aggregation"
	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/clusters"
	"github.com/logplane/logplane/internal/apiserver/cost"
	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/apiserver/plans"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/apiserver/services"
	"github.com/logplane/logplane/internal/kubestore"
)

//go:generate go test . -run TestSpecIsCurrent -update

// storageBuilder makes the registries of one group.
type storageBuilder func(s *Server) (genericapiserver.APIGroupInfo, error)

// storageProvider is the interface of upstream's types that make a group's registries.
type storageProvider interface {
	GroupName() string
	NewRESTStorage(serverstorage.APIResourceConfigSource, generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error)
}

// builtin is a group that kube-apiserver serves by default.
type builtin struct {
	name  string
	build storageBuilder
}

// builtins are the groups in the order in which discovery lists them. A provider is made only when its group is built,
// because it needs the server's listers and clients.
func builtins() []builtin {
	from := func(f func(s *Server) storageProvider) storageBuilder {
		return func(s *Server) (genericapiserver.APIGroupInfo, error) {
			return f(s).NewRESTStorage(s.generic.MergedResourceConfig, s.stores)
		}
	}
	static := func(p storageProvider) storageBuilder { return from(func(*Server) storageProvider { return p }) }
	return []builtin{
		{"", newCoreStorage},
		{"apiextensions.k8s.io", func(s *Server) (genericapiserver.APIGroupInfo, error) {
			return customresources.NewStorage(s.config.Cell.Cluster, s.stores, s.definitions)
		}},
		{"apiregistration.k8s.io", func(s *Server) (genericapiserver.APIGroupInfo, error) {
			return aggregation.NewStorage(s.stores, s.definitions)
		}},
		{"internal.apiserver.k8s.io", static(apiserverinternalrest.StorageProvider{})},
		{"authentication.k8s.io", func(s *Server) (genericapiserver.APIGroupInfo, error) {
			return s.access.NewStorage(s.generic.MergedResourceConfig, s.stores)
		}},
		{"authorization.k8s.io", from(func(s *Server) storageProvider {
			return authorizationrest.RESTStorageProvider{Authorizer: s.generic.Authorization.Authorizer, RuleResolver: s.generic.RuleResolver}
		})},
		{"autoscaling", static(autoscalingrest.RESTStorageProvider{})},
		{"batch", static(batchrest.RESTStorageProvider{})},
		{"certificates.k8s.io", from(func(s *Server) storageProvider {
			return certificatesrest.RESTStorageProvider{Authorizer: s.generic.Authorization.Authorizer}
		})},
		{"coordination.k8s.io", static(coordinationrest.RESTStorageProvider{})},
		{"discovery.k8s.io", static(discoveryrest.StorageProvider{})},
		{"networking.k8s.io", func(s *Server) (genericapiserver.APIGroupInfo, error) {
			info, err := networkingrest.RESTStorageProvider{}.NewRESTStorage(s.generic.MergedResourceConfig, s.stores)
			services.GuardAddresses(&info, s.serviceNamed)
			return info, err
		}},
		{"node.k8s.io", static(noderest.RESTStorageProvider{})},
		{"policy", static(policyrest.RESTStorageProvider{})},
		{"rbac.authorization.k8s.io", func(s *Server) (genericapiserver.APIGroupInfo, error) {
			return s.rules.NewStorage(s.generic.Authorization.Authorizer, s.generic.MergedResourceConfig, s.stores)
		}},
		{"scheduling.k8s.io", static(schedulingrest.RESTStorageProvider{})},
		{"storage.k8s.io", static(storagerest.RESTStorageProvider{})},
		{"storagemigration.k8s.io", static(svmrest.RESTStorageProvider{})},
		{"flowcontrol.apiserver.k8s.io", newFlowControlStorage},
		{"apps", static(appsrest.StorageProvider{})},
		{"admissionregistration.k8s.io", from(func(s *Server) storageProvider {
			return admissionregistrationrest.RESTStorageProvider{Authorizer: s.generic.Authorization.Authorizer, DiscoveryClient: s.client.Discovery()}
		})},
		{"events.k8s.io", static(eventsrest.RESTStorageProvider{TTL: eventTTL})},
		{history.GroupName, func(s *Server) (genericapiserver.APIGroupInfo, error) {
			config := history.Config{Cell: s.config.Cell, Stores: s.stores, Definitions: s.definitions, Serves: s.serves,
				Authorizer: s.generic.Authorization.Authorizer, ByName: s.config.Authorization.ConfigFile != "", Moment: s.momentNamed,
				ReachOf: func(ctx context.Context, a authorizer.Attributes) (history.Reach, error) {
					r, err := s.reachOf(ctx, a)
					return r.covers, err
				},
				Serve: s.serveCaller, ResourceOf: s.resourceOf, Transactions: &kubestore.Transactions{Cell: s.config.Cell, Decides: s.decides}}
			return history.NewStorage(config, map[string]rest.Storage{"plans": &plans.Storage{Config: config}}), nil
		}},
		{clusters.GroupName, func(s *Server) (genericapiserver.APIGroupInfo, error) {
			return clusters.NewStorage(clusters.Config{Stores: s.stores, Begins: s.begins})
		}},
		{"resource.k8s.io", from(func(s *Server) storageProvider {
			return resourcerest.RESTStorageProvider{NamespaceClient: s.client.CoreV1().Namespaces(), Authorizer: s.generic.Authorization.Authorizer}
		})},
	}
}

func newGroups(s *Server) map[string]*group {
	groups := map[string]*group{}
	for _, b := range builtins() {
		if b.name == clusters.GroupName && s.config.Cell.Cluster != clusters.Main {
			continue
		}
		groups[b.name] = &group{builtin: b, server: s}
	}
	return groups
}

// serves says whether this server serves a built-in group.
func (s *Server) serves(group string) bool { return s.groups[group] != nil }

// install makes a group's registries.
func (s *Server) install(name string, build storageBuilder) (*builtGroup, error) {
	info, err := build(s)
	if err != nil {
		return nil, err
	}
	if err := s.removeUnavailable(name, &info); err != nil {
		return nil, err
	}
	for _, byName := range info.VersionedResourcesStorageMap {
		for _, storage := range byName {
			cost.BoundMistakes(storage)
		}
	}
	route := func(resource string) (*restful.Container, error) {
		return s.route(&info, func(name string) bool { return name == resource })
	}
	return &builtGroup{info: info, route: route, routes: map[string]*restful.Container{}}, nil
}

// route makes the routes to the chosen resources of a group, in all versions.
func (s *Server) route(info *genericapiserver.APIGroupInfo, some func(resource string) bool) (*restful.Container, error) {
	container := newContainer()
	for _, version := range info.PrioritizedVersions {
		all := info.VersionedResourcesStorageMap[version.Version]
		if len(all) == 0 {
			continue
		}
		root := "/apis"
		if version.Group == "" {
			root = "/api"
		}
		v := s.groupVersion(info, root, version)
		v.TypeConverter, v.UnsafeConvertor = resources.ManagedBy(info.Scheme)
		if info.Scheme == history.Scheme { // its objects are not stored, so nobody manages their fields
			v.TypeConverter = managedfields.NewDeducedTypeConverter()
		}
		v.Storage = map[string]rest.Storage{}
		for name, storage := range all {
			if some(resourceOf(name)) {
				v.Storage[name] = storage
			}
		}
		if _, _, err := v.InstallREST(container); err != nil {
			return nil, fmt.Errorf("install %s: %w", version, err)
		}
	}
	return container, nil
}

// resourceOf returns the resource of a name such as 'pods' or 'pods/status'.
func resourceOf(name string) string {
	resource, _, _ := strings.Cut(name, "/")
	return resource
}

// removeUnavailable drops the kinds that upstream does not serve yet, or no longer serves, at this Kubernetes version.
func (s *Server) removeUnavailable(name string, info *genericapiserver.APIGroupInfo) error {
	version := s.generic.EffectiveVersion
	evaluator, err := genericapiserver.NewResourceExpirationEvaluatorFromOptions(genericapiserver.ResourceExpirationEvaluatorOptions{
		CurrentVersion: version.EmulationVersion(),
		Prerelease:     version.BinaryVersion().PreRelease(),
	})
	if err != nil {
		return err
	}
	return evaluator.RemoveUnavailableKinds(name, info.Scheme, info.VersionedResourcesStorageMap, s.generic.MergedResourceConfig)
}

// groupVersion is upstream's unexported newAPIGroupVersion for one version of a group, without its registries.
func (s *Server) groupVersion(info *genericapiserver.APIGroupInfo, root string, version schema.GroupVersion) *endpoints.APIGroupVersion {
	served := map[string][]string{}
	for v, resources := range info.VersionedResourcesStorageMap {
		for resource := range resources {
			served[resource] = append(served[resource], schema.GroupVersion{Group: version.Group, Version: v}.String())
		}
	}
	return &endpoints.APIGroupVersion{
		Root:                        root,
		GroupVersion:                version,
		AllServedVersionsByResource: served,
		OptionsExternalVersion:      info.OptionsExternalVersion,
		MetaGroupVersion:            info.MetaGroupVersion,
		ParameterCodec:              info.ParameterCodec,
		Serializer:                  info.NegotiatedSerializer,
		Creater:                     cost.Deepening(info.Scheme),
		Convertor:                   info.Scheme,
		ConvertabilityChecker:       info.Scheme,
		Defaulter:                   info.Scheme,
		Typer:                       info.Scheme,
		Namer:                       runtime.Namer(meta.NewAccessor()),
		EquivalentResourceRegistry:  s.generic.EquivalentResourceRegistry,
		Admit:                       s.generic.AdmissionControl,
		Authorizer:                  s.generic.Authorization.Authorizer,
		MinRequestTimeout:           s.minRequestTimeout(),
		MaxRequestBodyBytes:         s.generic.MaxRequestBodyBytes,
	}
}

// newContainer makes a container for the routes of one group. If the container itself refuses a request, the answer is
// a Status.
func newContainer() *restful.Container {
	c := restful.NewContainer()
	c.Router(restful.CurlyRouter{})
	c.DoNotRecover(true) // the filters recover
	c.ServiceErrorHandler(func(e restful.ServiceError, r *restful.Request, w *restful.Response) {
		err := apierrors.NewGenericServerResponse(e.Code, r.Request.Method, schema.GroupResource{}, "", e.Message, 0, false)
		responsewriters.ErrorNegotiated(err, answers.Codecs(), schema.GroupVersion{}, w, r.Request)
	})
	return c
}

// serviceNamed is the Service in the newest view. In a transaction, it is the Service in the transaction's view, which
// includes the transaction's own writes so far. The result is nil if the Service is missing.
func (s *Server) serviceNamed(ctx context.Context, namespace, name string) (*corev1.Service, error) {
	services := s.listers.IndexerOf(&corev1.Service{})
	v, err := services.View(ctx)
	if err != nil {
		return nil, err
	}
	object, found, err := services.GetAt(ctx, v, namespace+"/"+name)
	if err != nil || !found {
		return nil, err
	}
	return object.(*corev1.Service), nil
}
