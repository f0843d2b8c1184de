package apiserver

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/util/proxy"
	webhookclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	policyclient "k8s.io/client-go/kubernetes/typed/policy/v1"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	"k8s.io/kubernetes/pkg/probe"
	"k8s.io/kubernetes/pkg/registry/core/componentstatus"
	endpointsstore "k8s.io/kubernetes/pkg/registry/core/endpoint/storage"
	limitrangestore "k8s.io/kubernetes/pkg/registry/core/limitrange/storage"
	nodestore "k8s.io/kubernetes/pkg/registry/core/node/storage"
	pvstore "k8s.io/kubernetes/pkg/registry/core/persistentvolume/storage"
	pvcstore "k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim/storage"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"
	podtemplatestore "k8s.io/kubernetes/pkg/registry/core/podtemplate/storage"
	controllerstore "k8s.io/kubernetes/pkg/registry/core/replicationcontroller/storage"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"
	accountstore "k8s.io/kubernetes/pkg/registry/core/serviceaccount/storage"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/apiserver/services"
	"github.com/logplane/logplane/internal/apiserver/tokens"
	"github.com/logplane/logplane/internal/calls"
	"github.com/logplane/logplane/internal/reload"
)

// coreProvider serves the core group as upstream's legacy provider does, but without the allocators that write bitmaps
// to etcd and repair them in the background. Here, claims hold addresses and ports (package services). coreProvider
// starts no goroutine.
type coreProvider struct {
	corerest.GenericConfig
	authorizer authorizer.Authorizer
	services   services.Config
	addresses  []string
	// kubelets is nil if the server has no credentials for kubelets.
	kubelets *reload.Value[kubeletTransports]
	// pods carries requests to programs in Pods. Pods are addressed by IP, so their certificates cannot be verified.
	pods http.RoundTripper
}

// newCoreStorage builds the core group without reading anything.
func newCoreStorage(s *Server) (genericapiserver.APIGroupInfo, error) {
	pods := controlplaneapiserver.CreateProxyTransport()
	pods.DialContext, pods.MaxResponseHeaderBytes = calls.Upgrading(s.dialer.DialContext), calls.MostHeaders
	p := &coreProvider{
		GenericConfig: corerest.GenericConfig{
			StorageFactory:       s.stores.Factory(),
			EventTTL:             eventTTL,
			LoopbackClientConfig: s.loopback,
			Informers:            s.listers,
			ServiceAccountIssuer: noIssuer{},
		},
		authorizer: s.generic.Authorization.Authorizer,
		addresses:  s.config.Kubelets.AddressTypes,
		kubelets:   s.kubelets,
		pods:       pods,
		services: services.Config{
			Cell: s.config.Cell, Ranges: s.config.Services, CIDRs: s.listers.Networking().V1().ServiceCIDRs().Lister(),
		},
	}
	if s.tokens.Issues() {
		p.ServiceAccountIssuer, p.APIAudiences, p.ServiceAccountMaxExpiration = s.tokens, s.tokens.Audiences(), s.tokens.MaxExpiration()
		p.ExtendExpiration, p.MaxExtendedExpiration = s.tokens.Extends(), tokens.MaxExtendedExpiration
	}
	return p.build(s.generic.MergedResourceConfig, s.stores)
}

// build makes every resource of core/v1.
func (p *coreProvider) build(enabled serverstorage.APIResourceConfigSource, opts generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	group, err := p.GenericConfig.NewRESTStorage(enabled, opts)
	if err != nil {
		return genericapiserver.APIGroupInfo{}, err
	}
	storage := group.VersionedResourcesStorageMap["v1"]
	for _, add := range []func(map[string]rest.Storage, generic.RESTOptionsGetter) error{
		p.addPods, p.addServices, p.addRest,
	} {
		if err := add(storage, opts); err != nil {
			return genericapiserver.APIGroupInfo{}, err
		}
	}
	return group, nil
}

// addPods adds nodes and pods, which find each other through the kubelet's address. Without credentials for kubelets,
// log, exec, attach, portforward and proxy are registered only for discovery and authorization. An earlier filter then
// answers requests for these subresources with 405.
func (p *coreProvider) addPods(storage map[string]rest.Storage, opts generic.RESTOptionsGetter) error {
	nodes, err := nodestore.NewStorage(opts, kubeletclient.KubeletClientConfig{Port: kubeletPort, PreferredAddressTypes: p.addresses}, p.pods)
	if err != nil {
		return err
	}
	if p.kubelets != nil {
		nodes.KubeletConnectionInfo = kubelets{nodes.KubeletConnectionInfo, p.kubelets}
	}
	nodes.Proxy.Connection = nodes.KubeletConnectionInfo
	disruptions, err := policyclient.NewForConfig(p.LoopbackClientConfig)
	if err != nil {
		return err
	}
	pods, err := podstore.NewStorage(opts, nodes.KubeletConnectionInfo, p.pods, disruptions, p.authorizer)
	if err != nil {
		return err
	}
	storage["nodes"] = nodes.Node
	storage["nodes/proxy"] = nodes.Proxy
	storage["nodes/status"] = nodes.Status

	storage["pods"] = pods.Pod
	storage["pods/attach"] = pods.Attach
	storage["pods/status"] = pods.Status
	storage["pods/log"] = pods.Log
	storage["pods/exec"] = pods.Exec
	storage["pods/portforward"] = pods.PortForward
	storage["pods/proxy"] = pods.Proxy
	storage["pods/binding"] = pods.Binding
	storage["pods/eviction"] = evictionREST{pods.Eviction, pods.Pod}
	storage["pods/ephemeralcontainers"] = pods.EphemeralContainers
	storage["pods/resize"] = pods.Resize
	storage["bindings"] = pods.LegacyBinding

	// NewRESTStorage's registry of service accounts does not know Pods, so this registry replaces it, as in upstream.
	// Without an issuer, an earlier filter answers requests for a token with 405.
	webhooks, err := webhookclient.NewForConfig(p.LoopbackClientConfig)
	if err != nil {
		return err
	}
	accounts, err := accountstore.NewREST(opts, p.ServiceAccountIssuer, p.APIAudiences, p.authorizer, p.ServiceAccountMaxExpiration, pods.Pod.Store, storage["secrets"].(rest.Getter),
		nodes.Node.Store, webhooks.ValidatingWebhookConfigurations(), webhooks.MutatingWebhookConfigurations(), p.ExtendExpiration, p.MaxExtendedExpiration)
	if err != nil {
		return err
	}
	storage["serviceaccounts"] = accounts
	storage["serviceaccounts/token"] = accounts.Token
	return nil
}

// noIssuer stands in for an issuer, so that discovery lists the subresource 'token'.
type noIssuer struct{ serviceaccount.TokenGenerator }

// addServices adds services. It needs the storage of pods for the proxy of services.
func (p *coreProvider) addServices(storage map[string]rest.Storage, opts generic.RESTOptionsGetter) error {
	endpoints, err := endpointsstore.NewREST(opts)
	if err != nil {
		return err
	}
	slices, err := proxy.NewEndpointSliceListerGetter(p.Informers.Discovery().V1().EndpointSlices().Lister())
	if err != nil {
		return err
	}
	service, status, proxied, err := services.NewREST(p.services, opts, slices, storage["pods"].(rest.Getter), p.pods)
	if err != nil {
		return err
	}
	storage["endpoints"] = endpoints
	storage["services"] = service
	storage["services/status"] = status
	storage["services/proxy"] = proxied
	return nil
}

func (p *coreProvider) addRest(storage map[string]rest.Storage, opts generic.RESTOptionsGetter) error {
	volumes, volumeStatus, err := pvstore.NewREST(opts)
	if err != nil {
		return err
	}
	claims, claimStatus, err := pvcstore.NewREST(opts)
	if err != nil {
		return err
	}
	resources.DecorateShared(claims.Store)
	storage["persistentvolumes"] = volumes
	storage["persistentvolumes/status"] = volumeStatus
	storage["persistentvolumeclaims"] = claims
	storage["persistentvolumeclaims/status"] = claimStatus

	controllers, err := controllerstore.NewStorage(opts)
	if err != nil {
		return err
	}
	storage["replicationcontrollers"] = controllers.Controller
	storage["replicationcontrollers/status"] = controllers.Status
	storage["replicationcontrollers/scale"] = controllers.Scale

	templates, err := podtemplatestore.NewREST(opts)
	if err != nil {
		return err
	}
	limits, err := limitrangestore.NewREST(opts)
	if err != nil {
		return err
	}
	storage["podtemplates"] = templates
	storage["limitranges"] = limits

	// Upstream lists the servers of etcd, and a scheduler and a controller manager on its own machine. Here the log
	// takes etcd's place. This process does not know whether and where a scheduler and a controller manager run.
	storage["componentstatuses"] = componentstatus.NewStorage(func() map[string]componentstatus.Server {
		return map[string]componentstatus.Server{"log": logHealth{p.services.Cell.Log}}
	})
	return nil
}

// logHealth checks the log by asking for its extent.
type logHealth struct{ log *eventlog.Log }

// DoServerCheck implements componentstatus.Server.
func (h logHealth) DoServerCheck() (probe.Result, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), logHealthTimeout)
	defer cancel()
	if _, err := h.log.Extent(ctx); err != nil {
		slog.Warn("the log is not healthy", "error", err)
		return probe.Failure, "", errors.New("the log does not answer")
	}
	return probe.Success, "ok", nil
}

// logHealthTimeout is shorter than a request's timeout, so that the answer can still report the failure.
const logHealthTimeout = 10 * time.Second
