package apiserver

import (
	"context"
	"fmt"
	"mime"
	"net/http"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	lru "github.com/hashicorp/golang-lru/v2"
	"go.opentelemetry.io/otel/trace/noop"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	crdlisters "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/recognizer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

var crdGroupResource = apiextensionsv1.Resource("customresourcedefinitions")

// servedCRDs bounds how many CRDs' handlers one process keeps; a handler holds schemas, validators and
// compiled rules, and is made again in some 15 ms.
const servedCRDs = 256

// customResources serves the objects of every CRD. Each CRD has a handler of upstream's that was built
// for one state of it and knows no other, so that a whole request sees one state: the newest when it came.
// A changed CRD gets a new handler; the old one ends with its last request. It is safe for concurrent use.
type customResources struct {
	server *Server
	crds   *crdReader

	mu       sync.Mutex
	handlers *lru.Cache[string, *crdHandler] // by mu; by name of the CRD
}

// newCRDs serves custom resources.
func newCRDs(s *Server) (http.Handler, error) {
	handlers, err := lru.New[string, *crdHandler](servedCRDs)
	if err != nil {
		return nil, err
	}
	return &customResources{server: s, crds: newCRDReader(s), handlers: handlers}, nil
}

// ServeHTTP serves a resource request of a group that is not built in.
func (c *customResources) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info, ok := apirequest.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest {
		c.server.fail(w, r, notServed(r))
		return
	}
	if refused := refuseProtobuf(r, info.Verb); refused != nil {
		c.server.fail(w, r, refused)
		return
	}
	seen := c.server.config.Cell.Projection.Current() // the CRD is read at this revision or later
	crd, err := c.crds.get(info.Resource + "." + info.APIGroup)
	if err != nil {
		c.fail(w, r, fmt.Errorf("read a CustomResourceDefinition: %w", err))
		return
	}
	if crd == nil {
		c.server.fail(w, r, notServed(r))
		return
	}
	h, err := c.handlerOf(crd)
	if err != nil {
		c.fail(w, r, fmt.Errorf("serve CustomResourceDefinition %s: %w", crd.Name, err))
		return
	}
	if info.Verb == "watch" && c.server.config.Cell.Feed != nil {
		// The handler returns before the watch is served (filters.go), so the end of the request cancels.
		ctx, cancel := context.WithCancel(r.Context())
		context.AfterFunc(r.Context(), cancel)
		if err := c.endWithCRD(ctx, cancel, crd, seen.Revision()); err != nil {
			cancel()
			c.fail(w, r, err)
			return
		}
		r = r.WithContext(ctx)
	}
	h.ServeHTTP(w, r)
}

// refuseProtobuf answers a custom resource sent as protobuf, for which upstream's handler has no strict decoder: it panics.
func refuseProtobuf(r *http.Request, verb string) error {
	sent, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || sent != runtime.ContentTypeProtobuf || verb != "create" && verb != "update" {
		return nil
	}
	return negotiation.NewUnsupportedMediaTypeError([]string{runtime.ContentTypeJSON, runtime.ContentTypeYAML, runtime.ContentTypeCBOR})
}

// endWithCRD ends a watch when its CRD changes or goes, as upstream does: the handler that serves it knows
// only this state of the CRD, and the objects to come may be of another. Clients watch again. Since is a
// revision at or before that at which the CRD was read; its own may be older than the log goes back.
func (c *customResources) endWithCRD(ctx context.Context, end context.CancelFunc, crd *apiextensionsv1.CustomResourceDefinition, since projection.Revision) error {
	built, err := c.server.groups[apiextensionsv1.GroupName].get()
	if err != nil {
		return err
	}
	registry := built.info.VersionedResourcesStorageMap["v1"][crdGroupResource.Resource].(rest.Watcher)
	ctx = kubestore.WithEnd(ctx, nil) // the client's watch ends first, with a last bookmark
	changes, err := registry.Watch(ctx, &internalversion.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", crd.Name), ResourceVersion: strconv.FormatUint(uint64(since), 10),
	})
	if err != nil {
		return fmt.Errorf("watch CustomResourceDefinition %s: %w", crd.Name, err)
	}
	go func() { // ends with the request
		defer end()
		defer changes.Stop()
		for event := range changes.ResultChan() {
			now, err := meta.Accessor(event.Object) // one that many watches share is not of the type itself
			if err != nil || event.Type == watch.Deleted || now.GetUID() != crd.UID || now.GetGeneration() != crd.Generation {
				return
			}
		}
	}()
	return nil
}

func (c *customResources) fail(w http.ResponseWriter, r *http.Request, err error) {
	c.server.config.Logger.ErrorContext(r.Context(), "a custom resource could not be served", "error", err)
	c.server.fail(w, r, apierrors.NewInternalError(err))
}

// handlerOf returns the handler of this state of the CRD. A request that began before the newest change
// may still ask for an older state: it gets the newer, which it could have seen as well.
func (c *customResources) handlerOf(crd *apiextensionsv1.CustomResourceDefinition) (*crdHandler, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, ok := c.handlers.Get(crd.Name)
	if ok && (revisionOf(old.crd.Load()) >= revisionOf(crd) || old.follow(crd)) {
		return old, nil
	}
	h, err := c.newHandler(crd)
	if err != nil {
		return nil, err
	}
	c.handlers.Add(crd.Name, h)
	return h, nil
}

// Instances is the storage of a CRD's instances, by its storage version and whatever versions are served: where the
// lifecycle deletes them.
func (s *Server) Instances(crd *apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error) {
	h, err := s.crds.(*customResources).handlerOf(crd)
	if err != nil {
		return nil, err
	}
	return h.Handler.(finalizer.CRClientGetter).GetCustomResourceListerCollectionDeleter(crd)
}

func revisionOf(crd *apiextensionsv1.CustomResourceDefinition) uint64 {
	revision, _ := strconv.ParseUint(crd.ResourceVersion, 10, 64)
	return revision
}

// crdHandler is upstream's handler of every CRD, given one.
type crdHandler struct {
	http.Handler
	crd atomic.Pointer[apiextensionsv1.CustomResourceDefinition]
}

func (c *customResources) newHandler(crd *apiextensionsv1.CustomResourceDefinition) (*crdHandler, error) {
	s := c.server
	h := &crdHandler{}
	h.crd.Store(established(crd))
	upstream, err := crdserver.NewCustomResourceDefinitionHandler(
		nil, nil, // discovery is ours
		h,
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.fail(w, r, notServed(r)) }),
		crdOptions{s},
		s.generic.AdmissionControl,
		nil, // nothing is left to establish
		webhook.NewDefaultServiceResolver(),
		webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, s.loopback, noop.NewTracerProvider()),
		1,
		s.generic.Authorization.Authorizer,
		s.generic.RequestTimeout,
		s.minRequestTimeout(),
		// Upstream reads only whether there is one: the schema of metadata comes with each CRD's own.
		map[string]*spec.Schema{},
		s.generic.MaxRequestBodyBytes,
	)
	if err != nil {
		return nil, err
	}
	h.Handler = upstream
	return h, nil
}

// established back-dates the condition: upstream delays creates for two seconds after it, for the sake of
// other servers that have not heard of the CRD, and here there is none.
func established(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	crd = crd.DeepCopy()
	for i := range crd.Status.Conditions {
		if c := &crd.Status.Conditions[i]; c.Type == apiextensionsv1.Established {
			c.LastTransitionTime = metav1.Unix(0, 0)
		}
	}
	return crd
}

// follow moves on to a newer state that differs in conditions or metadata only, for which storage and
// schemas stay (and watches go on); it reports whether it could.
func (h *crdHandler) follow(crd *apiextensionsv1.CustomResourceDefinition) bool {
	old := h.crd.Load()
	if old.UID != crd.UID || !apiequality.Semantic.DeepEqual(old.Spec, crd.Spec) ||
		!apiequality.Semantic.DeepEqual(old.Status.AcceptedNames, crd.Status.AcceptedNames) {
		return false
	}
	h.crd.Store(established(crd))
	return true
}

// Informer and Lister make the handler the informer of its one CRD, which never changes, so that upstream
// never tears down what it built: stores own nothing here, and the handler goes with its last request.
func (h *crdHandler) Informer() cache.SharedIndexInformer { return &listers.Informer{} }

// Lister is upstream's interface.
func (h *crdHandler) Lister() crdlisters.CustomResourceDefinitionLister { return crdLister{h} }

type crdLister struct{ h *crdHandler }

// List is not used: upstream lists when it is told of a deletion.
func (l crdLister) List(labels.Selector) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	return []*apiextensionsv1.CustomResourceDefinition{l.h.crd.Load()}, nil
}

func (l crdLister) Get(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	if crd := l.h.crd.Load(); crd.Name == name {
		return crd, nil
	}
	return nil, apierrors.NewNotFound(crdGroupResource, name)
}

// crdOptions makes the stores of custom resources.
type crdOptions struct{ server *Server }

// customResourceCodec is upstream's: CBOR, and JSON understood.
var customResourceCodec = sync.OnceValue(func() runtime.Codec {
	c := cbor.NewSerializer(unstructuredscheme.NewUnstructuredCreator(), unstructuredscheme.NewUnstructuredObjectTyper())
	return runtime.NewCodec(c, recognizer.NewDecoder(c, unstructured.UnstructuredJSONScheme))
})

// GetRESTOptions implements generic.RESTOptionsGetter.
func (o crdOptions) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	config := &storagebackend.ConfigForResource{
		GroupResource: resource,
		Config:        storagebackend.Config{Codec: customResourceCodec()},
	}
	options := o.server.stores.Options(config, resource.Group+"/"+resource.Resource, runtime.ContentTypeCBOR, nil)
	store := options.Decorator
	options.Decorator = func(config *storagebackend.ConfigForResource, prefix string, keyFunc func(runtime.Object) (string, error),
		newFunc, newListFunc func() runtime.Object, attrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		explained := *config
		explained.Codec = storedVersions{config.Codec} // upstream's, which converts
		return store(&explained, prefix, keyFunc, newFunc, newListFunc, attrs, triggers, indexers)
	}
	return options, nil
}

// storedVersions says what to do about an object of a version that its CRD does not have any more. Upstream refuses to
// drop a version that `status.storedVersions` names, and believes whoever takes it from there.
type storedVersions struct{ runtime.Codec }

func (c storedVersions) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	object, kind, err := c.Codec.Decode(data, defaults, into)
	if err != nil && strings.HasPrefix(err.Error(), "request to convert CR from an invalid group/version") {
		err = fmt.Errorf("%w: the object is stored in a version that was dropped: add it to the `spec.versions` of the CustomResourceDefinition "+
			"again, where it need not be served, and update every object before you drop it", err)
	}
	return object, kind, err
}

// crdReader reads CustomResourceDefinitions from the newest view.
type crdReader struct{ rows *listers.Indexer }

func newCRDReader(s *Server) *crdReader {
	return &crdReader{s.listers.NewIndexer(listers.Source{
		Object:   &apiextensionsv1.CustomResourceDefinition{},
		Resource: crdGroupResource,
		Prefix:   crdPrefix,
		Decoder:  crdserver.Codecs.UniversalDecoder(apiextensionsv1.SchemeGroupVersion),
		Lenient:  true,
	})}
}

// get returns nil if there is none that is served. The object is shared.
func (c *crdReader) get(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	object, ok, err := c.rows.GetByKey(name)
	if err != nil || !ok {
		return nil, err
	}
	if crd := object.(*apiextensionsv1.CustomResourceDefinition); !reserved(crd.Spec.Group, crd.Spec.Names.Plural) {
		return crd, nil
	}
	return nil, nil
}

// crdSet is every CRD that may be served at one time. It must not be changed.
type crdSet struct {
	crds []*apiextensionsv1.CustomResourceDefinition // by name
	state
}

// state tells sets of CRDs apart: any change but a deletion brings a higher revision than ever was, and a
// deletion a lower count.
type state struct {
	revision uint64
	count    int
}

func (c *crdReader) all(context.Context) (crdSet, error) {
	objects, err := c.rows.All()
	if err != nil {
		return crdSet{}, fmt.Errorf("list CustomResourceDefinitions: %w", err)
	}
	set := crdSet{state: state{count: len(objects)}}
	for _, object := range objects {
		crd := object.(*apiextensionsv1.CustomResourceDefinition)
		if !reserved(crd.Spec.Group, crd.Spec.Names.Plural) { // one from before that was refused
			set.crds = append(set.crds, crd)
		}
		set.revision = max(set.revision, revisionOf(crd))
	}
	sort.Slice(set.crds, func(i, j int) bool { return set.crds[i].Name < set.crds[j].Name })
	return set, nil
}
