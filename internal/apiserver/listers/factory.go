package listers

import (
	"fmt"
	"reflect"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/informers/admissionregistration"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/discovery"
	"k8s.io/client-go/informers/flowcontrol"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/networking"
	"k8s.io/client-go/informers/node"
	"k8s.io/client-go/informers/rbac"
	"k8s.io/client-go/informers/resource"
	"k8s.io/client-go/informers/scheduling"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// Factory is a SharedInformerFactory whose informers never call a handler. Each informer's indexer reads the newest
// view in each call. A Factory has no goroutine, and is safe for concurrent use.
type Factory struct {
	kubeinformers.SharedInformerFactory // nil; calling an accessor that is not overridden is a programming error
	shared                              *shared

	mu     sync.Mutex
	byType map[reflect.Type]*Informer // by mu
}

// New makes a factory. Making it reads nothing.
func New(c Config) *Factory {
	return &Factory{shared: newShared(c), byType: map[reflect.Type]*Informer{}}
}

// Shrink drops most decoded objects.
func (f *Factory) Shrink() { f.shared.decoded.Shrink() }

// InformerFor returns the one informer of obj's type.
func (f *Factory) InformerFor(obj runtime.Object, _ internalinterfaces.NewInformerFunc) toolscache.SharedIndexInformer {
	f.mu.Lock()
	defer f.mu.Unlock()
	target := reflect.TypeOf(obj)
	if i, ok := f.byType[target]; ok {
		return i
	}
	kinds, _, err := scheme.Scheme.ObjectKinds(obj)
	if err != nil {
		panic(fmt.Sprintf("a lister of a type that is not built in: %v", err))
	}
	guess, _ := meta.UnsafeGuessKindToResource(kinds[0])
	resource := guess.GroupResource()
	i := &Informer{Indexer: f.NewIndexer(Source{
		Object: obj, Resource: resource, Prefix: f.shared.Storage.Prefix(resource),
		Decoder: newDecoder(guess.GroupVersion()), Lenient: resource.Group == rbacv1.GroupName,
	})}
	f.byType[target] = i
	return i
}

// decoder decodes objects to one version, regardless of the version in which they are stored.
type decoder struct {
	runtime.Decoder
	version schema.GroupVersion
}

func newDecoder(version schema.GroupVersion) decoder {
	return decoder{legacyscheme.Codecs.UniversalDecoder(version), version}
}

// Decode implements runtime.Decoder. Upstream's decoder does not convert directly between two external versions, so
// Decode goes through the internal version.
func (d decoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	object, stored, err := d.Decoder.Decode(data, defaults, into)
	if err == nil || stored == nil || stored.GroupVersion() == d.version {
		return object, stored, err
	}
	internal, stored, err := legacyscheme.Codecs.UniversalDecoder().Decode(data, defaults, nil)
	if err != nil {
		return nil, stored, err
	}
	object, err = legacyscheme.Scheme.UnsafeConvertToVersion(internal, d.version)
	return object, stored, err
}

// IndexerOf returns the indexer of obj's type, for callers that need more than upstream's interface.
func (f *Factory) IndexerOf(obj runtime.Object) *Indexer {
	return f.InformerFor(obj, nil).GetIndexer().(*Indexer)
}

// Source names the objects that an Indexer reads.
type Source struct {
	// Object is an example: every object has the same type as Object.
	Object   runtime.Object
	Resource schema.GroupResource
	// Prefix is upstream's storage prefix without slashes at its ends.
	Prefix  string
	Decoder runtime.Decoder
	// Lenient says that lists leave out objects that cannot be decoded. This is safe only for objects whose absence
	// allows less, such as bindings and definitions. Lenient must not be set for limits: a missing limit allows more.
	Lenient bool
}

// NewIndexer makes an indexer of a type that need not be built in.
func (f *Factory) NewIndexer(s Source) *Indexer {
	return &Indexer{
		shared:      f.shared,
		target:      reflect.TypeOf(s.Object),
		decoder:     s.Decoder,
		transformer: f.shared.Storage.Transformer(s.Resource),
		prefix:      f.shared.Cluster + "/" + s.Prefix + "/",
		lenient:     s.Lenient,
		indexers:    toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc},
	}
}

// ForResource returns the informer of a resource, without its Go type.
func (f *Factory) ForResource(resource schema.GroupVersionResource) (kubeinformers.GenericInformer, error) {
	kinds := scheme.Scheme.AllKnownTypes()
	for kind := range kinds {
		guess, _ := meta.UnsafeGuessKindToResource(kind)
		if guess != resource {
			continue
		}
		obj, err := scheme.Scheme.New(kind)
		if err != nil {
			return nil, err
		}
		return genericInformer{f.InformerFor(obj, nil), resource.GroupResource()}, nil
	}
	return nil, fmt.Errorf("no informer for %v", resource)
}

type genericInformer struct {
	informer toolscache.SharedIndexInformer
	resource schema.GroupResource
}

func (g genericInformer) Informer() toolscache.SharedIndexInformer { return g.informer }
func (g genericInformer) Lister() toolscache.GenericLister {
	return toolscache.NewGenericLister(g.informer.GetIndexer(), g.resource)
}

func (f *Factory) Admissionregistration() admissionregistration.Interface {
	return admissionregistration.New(f, "", nil)
}
func (f *Factory) Core() core.Interface               { return core.New(f, "", nil) }
func (f *Factory) Discovery() discovery.Interface     { return discovery.New(f, "", nil) }
func (f *Factory) Flowcontrol() flowcontrol.Interface { return flowcontrol.New(f, "", nil) }
func (f *Factory) Networking() networking.Interface   { return networking.New(f, "", nil) }
func (f *Factory) Node() node.Interface               { return node.New(f, "", nil) }
func (f *Factory) Rbac() rbac.Interface               { return rbac.New(f, "", nil) }
func (f *Factory) Resource() resource.Interface       { return resource.New(f, "", nil) }
func (f *Factory) Scheduling() scheduling.Interface   { return scheduling.New(f, "", nil) }
func (f *Factory) Storage() storage.Interface         { return storage.New(f, "", nil) }

// Informer is always synced and never calls its handlers.
type Informer struct {
	toolscache.SharedIndexInformer // nil; calling a method that is not overridden is a programming error

	Indexer toolscache.Indexer
}

func (i *Informer) AddEventHandler(toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	return i, nil
}
func (i *Informer) HasSynced() bool                         { return true }
func (i *Informer) AddIndexers(x toolscache.Indexers) error { return i.Indexer.AddIndexers(x) }
func (i *Informer) GetIndexer() toolscache.Indexer          { return i.Indexer }
