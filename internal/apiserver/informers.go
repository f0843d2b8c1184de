package apiserver

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/informers/admissionregistration"
	"k8s.io/client-go/informers/apiserverinternal"
	"k8s.io/client-go/informers/apps"
	"k8s.io/client-go/informers/autoscaling"
	"k8s.io/client-go/informers/batch"
	"k8s.io/client-go/informers/certificates"
	"k8s.io/client-go/informers/coordination"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/discovery"
	"k8s.io/client-go/informers/events"
	"k8s.io/client-go/informers/extensions"
	"k8s.io/client-go/informers/flowcontrol"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/networking"
	"k8s.io/client-go/informers/node"
	"k8s.io/client-go/informers/policy"
	"k8s.io/client-go/informers/rbac"
	"k8s.io/client-go/informers/resource"
	"k8s.io/client-go/informers/scheduling"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/informers/storagemigration"
	"k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/logplane/logplane/projection/cache"
)

// informers is a SharedInformerFactory that informs nobody: each typed informer's indexer reads the
// newest view when it is asked, so that every lister of upstream's is consistent at request time. It
// has no goroutine, and is safe for concurrent use.
type informers struct {
	kubeinformers.SharedInformerFactory // nil; an accessor that is not overridden is a programming error
	stores                              *stores
	// decoded holds objects by revision, which is unique in a cell. Listers' objects are shared by contract.
	decoded *cache.Cache[decodedKey, runtime.Object]
	// complaints are the revisions of objects that were found to be unreadable, so that each is logged once.
	complaints *lru.Cache[uint64, struct{}]

	mu     sync.Mutex
	byType map[reflect.Type]*informer // by mu
}

type decodedKey struct {
	target   reflect.Type
	revision uint64
}

// decodedBytes bounds the cache of every lister together, namespaces, classes, CRDs, by the size of what is encoded;
// decodedOverhead is what an object costs beside it, roughly.
const (
	decodedBytes    = 64 << 20
	decodedOverhead = 512
)

// keptComplaints is how many objects that cannot be decoded are known not to be logged again.
const keptComplaints = 1024

func newInformers(s *stores) *informers {
	complaints, _ := lru.New[uint64, struct{}](keptComplaints) // fails only for a size below one
	return &informers{stores: s, decoded: cache.New[decodedKey, runtime.Object](decodedBytes), complaints: complaints, byType: map[reflect.Type]*informer{}}
}

// InformerFor returns the one informer of obj's type.
func (f *informers) InformerFor(obj runtime.Object, _ internalinterfaces.NewInformerFunc) toolscache.SharedIndexInformer {
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
	resource, _ := meta.UnsafeGuessKindToResource(kinds[0])
	i := &informer{indexer: newIndexer(f, target, resource)}
	f.byType[target] = i
	return i
}

// ForResource is the untyped form.
func (f *informers) ForResource(resource schema.GroupVersionResource) (kubeinformers.GenericInformer, error) {
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

func (f *informers) InformerName() *toolscache.InformerName                 { return nil }
func (f *informers) Start(<-chan struct{})                                  {}
func (f *informers) StartWithContext(context.Context)                       {}
func (f *informers) Shutdown()                                              {}
func (f *informers) WaitForCacheSync(<-chan struct{}) map[reflect.Type]bool { return nil }
func (f *informers) WaitForCacheSyncWithContext(context.Context) toolscache.SyncResult {
	return toolscache.SyncResult{}
}

func (f *informers) Admissionregistration() admissionregistration.Interface {
	return admissionregistration.New(f, "", nil)
}
func (f *informers) Internal() apiserverinternal.Interface { return apiserverinternal.New(f, "", nil) }
func (f *informers) Apps() apps.Interface                  { return apps.New(f, "", nil) }
func (f *informers) Autoscaling() autoscaling.Interface    { return autoscaling.New(f, "", nil) }
func (f *informers) Batch() batch.Interface                { return batch.New(f, "", nil) }
func (f *informers) Certificates() certificates.Interface  { return certificates.New(f, "", nil) }
func (f *informers) Coordination() coordination.Interface  { return coordination.New(f, "", nil) }
func (f *informers) Core() core.Interface                  { return core.New(f, "", nil) }
func (f *informers) Discovery() discovery.Interface        { return discovery.New(f, "", nil) }
func (f *informers) Events() events.Interface              { return events.New(f, "", nil) }
func (f *informers) Extensions() extensions.Interface      { return extensions.New(f, "", nil) }
func (f *informers) Flowcontrol() flowcontrol.Interface    { return flowcontrol.New(f, "", nil) }
func (f *informers) Networking() networking.Interface      { return networking.New(f, "", nil) }
func (f *informers) Node() node.Interface                  { return node.New(f, "", nil) }
func (f *informers) Policy() policy.Interface              { return policy.New(f, "", nil) }
func (f *informers) Rbac() rbac.Interface                  { return rbac.New(f, "", nil) }
func (f *informers) Resource() resource.Interface          { return resource.New(f, "", nil) }
func (f *informers) Scheduling() scheduling.Interface      { return scheduling.New(f, "", nil) }
func (f *informers) Storage() storage.Interface            { return storage.New(f, "", nil) }
func (f *informers) Storagemigration() storagemigration.Interface {
	return storagemigration.New(f, "", nil)
}

// informer has been synced for ever and never calls its handlers.
type informer struct{ indexer toolscache.Indexer }

func (i *informer) AddEventHandler(toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	return synced{}, nil
}

func (i *informer) AddEventHandlerWithResyncPeriod(toolscache.ResourceEventHandler, time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return synced{}, nil
}

func (i *informer) AddEventHandlerWithOptions(toolscache.ResourceEventHandler, toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return synced{}, nil
}

func (i *informer) RemoveEventHandler(toolscache.ResourceEventHandlerRegistration) error { return nil }
func (i *informer) GetStore() toolscache.Store                                           { return i.indexer }
func (i *informer) GetController() toolscache.Controller                                 { return nil }
func (i *informer) Run(<-chan struct{})                                                  {}
func (i *informer) RunWithContext(context.Context)                                       {}
func (i *informer) HasSynced() bool                                                      { return true }
func (i *informer) HasSyncedChecker() toolscache.DoneChecker                             { return synced{} }
func (i *informer) LastSyncResourceVersion() string                                      { return "" }
func (i *informer) SetWatchErrorHandler(toolscache.WatchErrorHandler) error              { return nil }
func (i *informer) SetWatchErrorHandlerWithContext(toolscache.WatchErrorHandlerWithContext) error {
	return nil
}
func (i *informer) SetTransform(toolscache.TransformFunc) error { return nil }
func (i *informer) IsStopped() bool                             { return false }
func (i *informer) AddIndexers(x toolscache.Indexers) error     { return i.indexer.AddIndexers(x) }
func (i *informer) GetIndexer() toolscache.Indexer              { return i.indexer }

// synced is a registration and a checker that are done.
type synced struct{}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (synced) HasSynced() bool                          { return true }
func (synced) HasSyncedChecker() toolscache.DoneChecker { return synced{} }
func (synced) Name() string                             { return "view" }
func (synced) Done() <-chan struct{}                    { return closed }
