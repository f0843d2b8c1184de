package admission

import (
	"fmt"
	"net"
	"net/url"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/generic"
	"k8s.io/apiserver/pkg/util/proxy"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers/admissionregistration"
	"k8s.io/client-go/informers/internalinterfaces"
	corelisters "k8s.io/client-go/listers/core/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/logplane/logplane/internal/apiserver/listers"
)

// initialize gives upstream's plugin what it reads. The plugin keeps what it has made of the frozen configurations.
func (d *Dynamic) initialize(w *generic.Webhook, f *frozen) error {
	w.SetExternalKubeClientSet(d.config.Client)
	w.SetExternalKubeInformerFactory(f)
	w.SetAuthorizer(d.config.Authorizer)
	w.SetServiceResolver(d.services)
	return w.ValidateInitialization()
}

// frozen is a factory whose webhook configurations are those of one moment. Everything else is exact.
type frozen struct {
	*listers.Factory
	mutating, validating toolscache.Indexer
}

// Admissionregistration implements informers.SharedInformerFactory.
func (f *frozen) Admissionregistration() admissionregistration.Interface {
	return admissionregistration.New(f, "", nil)
}

// InformerFor implements internalinterfaces.SharedInformerFactory.
func (f *frozen) InformerFor(object runtime.Object, make internalinterfaces.NewInformerFunc) toolscache.SharedIndexInformer {
	switch object.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		return &listers.Informer{Indexer: f.mutating}
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		return &listers.Informer{Indexer: f.validating}
	}
	return f.Factory.InformerFor(object, make)
}

// snapshotOf holds the objects of the newest view.
func snapshotOf(i *listers.Indexer) (toolscache.Indexer, error) {
	objects, err := i.All()
	if err != nil {
		return nil, err
	}
	snapshot := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{})
	for _, object := range objects {
		if err := snapshot.Add(object); err != nil {
			return nil, err
		}
	}
	return snapshot, nil
}

// services finds a server that is named by its Service: at one of the Service's endpoints. Upstream asks the cluster IP
// by default, which leads nowhere without a kube-proxy beside the process.
type services struct {
	services  corelisters.ServiceLister
	endpoints proxy.EndpointSliceGetter
}

// NewServices returns what finds endpoints of Services, for webhooks and for remote API servers. An endpoint is an
// address, and never one that names this machine: validation refuses those. A name could stand for any.
func NewServices(f *listers.Factory) (webhookutil.ServiceResolver, error) {
	endpoints, err := proxy.NewEndpointSliceListerGetter(f.Discovery().V1().EndpointSlices().Lister())
	if err != nil {
		return nil, fmt.Errorf("find the endpoints of Services: %w", err)
	}
	return services{f.Core().V1().Services().Lister(), endpoints}, nil
}

// ResolveEndpoint implements webhookutil.ServiceResolver.
func (s services) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	found, err := proxy.ResolveEndpoint(s.services, s.endpoints, namespace, name, port)
	if err == nil && net.ParseIP(found.Hostname()) == nil {
		return nil, fmt.Errorf("an endpoint of Service %s/%s is the name '%s': give its EndpointSlice addresses", namespace, name, found.Hostname())
	}
	return found, err
}
