package customresources

import (
	"context"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	crdlisters "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/apiserver/pkg/util/webhook"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/customresources/verbatim"
	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/apiserver/watchwriter"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/cache"
)

const (
	// handlerBytes is how much memory the CRD handlers of one process may take: enough for 400 small CRDs, or 40 CRDs
	// of 100 KB. A handler takes some 10 ms to rebuild.
	handlerBytes = 96 << 20
	// handlerOverhead is the memory that the handler of an empty CRD takes. A handler also takes handlerFactor times
	// the size of the decoded CRD: schemas, validators and compiled rules.
	handlerOverhead = 160 << 10
	handlerFactor   = 3
)

// Config of a Handler.
type Config struct {
	Cell        kubestore.Cell
	Stores      *resources.Stores
	Definitions *Reader
	// Registry returns the registry of CustomResourceDefinitions, on which a watch of custom resources depends.
	Registry func() (rest.Watcher, error)
	// WithWatchWriter gives a watch a writer to its client, unless the encoding is nil.
	WithWatchWriter func(*http.Request, *watchwriter.Encoding) *http.Request
	// Calls says how conversion webhooks are called.
	Calls webhook.AuthenticationInfoResolverWrapper
	// The fields from here to MaxRequestBodyBytes are as in upstream's configuration.
	Admission           admission.Interface
	Authorizer          authorizer.Authorizer
	RequestTimeout      time.Duration
	MinRequestTimeout   time.Duration
	MaxRequestBodyBytes int64
	Logger              *slog.Logger
}

// Handler serves the objects of every CRD. Each CRD has its own instance of upstream's handler, which is built for one
// state of the CRD and knows no other state. So a whole request sees one state: the newest when the request arrived. A
// changed CRD gets a new handler, and the old handler goes away with its last request. Handler is safe for concurrent
// use.
type Handler struct {
	config Config

	mu sync.Mutex // held while a handler is looked up or made
	// handlers are by name of the CRD. Handlers for requests of the past are by name and resourceVersion.
	handlers *cache.Cache[string, *definitionHandler]
}

// NewHandler returns a handler of custom resources.
func NewHandler(c Config) *Handler {
	return &Handler{config: c, handlers: cache.New[string, *definitionHandler](cache.NewBudget(handlerBytes))}
}

// ServeHTTP serves a resource request for a group that is not built in.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info, ok := apirequest.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest {
		answers.Unknown.ServeHTTP(w, r)
		return
	}
	if refused := refuseProtobuf(r, info.Verb); refused != nil {
		answers.Fail(w, r, refused)
		return
	}
	seen := h.config.Cell.Projection.Current() // the CRD is read at this revision or later
	past := kubestore.PastFrom(r.Context()) != nil
	crd, err := h.config.Definitions.Get(r.Context(), info.Resource+"."+info.APIGroup)
	if err != nil {
		h.fail(w, r, fmt.Errorf("read a CustomResourceDefinition: %w", err))
		return
	}
	if crd == nil {
		answers.Unknown.ServeHTTP(w, r)
		return
	}
	one, err := h.handlerOf(crd, past)
	if err != nil {
		h.fail(w, r, fmt.Errorf("serve CustomResourceDefinition %s: %w", crd.Name, err))
		return
	}
	if info.Verb == "watch" && h.config.Cell.Feed != nil && !past {
		// The context is canceled at the end of the request, and not by a defer, because this handler returns before
		// the watch is served.
		ctx, cancel := context.WithCancel(r.Context())
		context.AfterFunc(r.Context(), cancel)
		if err := h.endWithCRD(ctx, cancel, crd, seen.Revision()); err != nil {
			cancel()
			h.fail(w, r, err)
			return
		}
		r = r.WithContext(ctx)
	}
	if info.Verb == "list" || info.Verb == "watch" {
		r = r.WithContext(context.WithValue(r.Context(), servedKey{}, one))
	}
	if info.Verb == "watch" && info.Subresource == "" {
		one.schemas() // compiled here, because otherwise the feed would wait for the compilation
		r = h.config.WithWatchWriter(r, one.watchEncoding(r, info))
	}
	serve := http.Handler(one)
	if r.Method == http.MethodGet && callsService(crd) {
		serve = answers.Corrected(one) // answers to writes are corrected in any case
	}
	serve.ServeHTTP(w, r)
}

// callsService reports whether the CRD's objects are converted by a webhook that the CRD names by its Service.
func callsService(crd *apiextensionsv1.CustomResourceDefinition) bool {
	c := crd.Spec.Conversion
	return c != nil && c.Webhook != nil && c.Webhook.ClientConfig != nil && c.Webhook.ClientConfig.Service != nil
}

// refuseProtobuf refuses a custom resource that was sent as protobuf. Upstream's handler has no strict decoder for
// protobuf, and panics.
func refuseProtobuf(r *http.Request, verb string) error {
	sent, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || sent != runtime.ContentTypeProtobuf || verb != "create" && verb != "update" {
		return nil
	}
	return negotiation.NewUnsupportedMediaTypeError([]string{runtime.ContentTypeJSON, runtime.ContentTypeYAML, runtime.ContentTypeCBOR})
}

// endWithCRD ends a watch when its CRD changes or is deleted, as upstream does. The handler of the watch knows only
// this state of the CRD, and later objects may follow a newer state. Clients watch again. since is the revision at
// which the CRD was read, or an older revision. The CRD's own revision would be too old, because the log may no longer
// reach back to that revision.
func (h *Handler) endWithCRD(ctx context.Context, end context.CancelFunc, crd *apiextensionsv1.CustomResourceDefinition, since projection.Revision) error {
	registry, err := h.config.Registry()
	if err != nil {
		return err
	}
	own := kubestore.RequestOf(ctx)
	own.End, own.Seat, own.WatchWriter = nil, nil, nil           // this watch must outlast the client's watch, which ends with a last bookmark
	ctx = flowcontrol.WithInitializationSignal(own.In(ctx), nil) // the client's watch keeps its seat until that watch has started
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
			now, err := meta.Accessor(event.Object) // an object that many watches share is not of the CRD's Go type
			if err != nil || event.Type == watch.Deleted || now.GetUID() != crd.UID || now.GetGeneration() != crd.Generation {
				return
			}
		}
	}()
	return nil
}

func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	h.config.Logger.ErrorContext(r.Context(), "a custom resource could not be served", "error", err)
	answers.Fail(w, r, err)
}

// handlerOf returns the handler of this state of the CRD. A request that began before the newest change may still ask
// for an older state. Such a request gets the handler of the newer state, because the request could also have seen the
// newer state. A request of the past gets the handler of exactly the given state.
func (h *Handler) handlerOf(crd *apiextensionsv1.CustomResourceDefinition, past bool) (*definitionHandler, error) {
	key, owner := crd.Name, ""
	if past { // takes the room of the present only up to a share
		key, owner = crd.Name+"@"+crd.ResourceVersion, "past"
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	old, ok := h.handlers.Get(key)
	if ok && (revisionOf(old.crd.Load()) >= revisionOf(crd) || old.follow(crd)) {
		return old, nil
	}
	one, err := h.newHandler(crd)
	if err != nil {
		return nil, err
	}
	h.handlers.Remove(key)
	return h.handlers.Add(key, owner, one, handlerOverhead+handlerFactor*kubestore.Size(crd)), nil
}

// Instances returns the storage of a CRD's objects in the storage version, regardless of the versions that are served.
// The lifecycle deletes the objects there.
func (h *Handler) Instances(crd *apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error) {
	one, err := h.handlerOf(crd, false)
	if err != nil {
		return nil, err
	}
	return one.Handler.(finalizer.CRClientGetter).GetCustomResourceListerCollectionDeleter(crd)
}

// Shrink drops most handlers, the least recently used first.
func (h *Handler) Shrink() { h.handlers.Shrink() }

// definitionHandler is upstream's handler of all CRDs, given only one CRD.
type definitionHandler struct {
	http.Handler
	crd atomic.Pointer[apiextensionsv1.CustomResourceDefinition]
	// schemas returns the schemas of the versions, by apiVersion. A version is missing if its objects must be decoded.
	schemas        func() map[string]*verbatim.Schema
	watchEncodings watchwriter.Encodings // of watches
}

func (h *Handler) newHandler(crd *apiextensionsv1.CustomResourceDefinition) (*definitionHandler, error) {
	c, one := h.config, &definitionHandler{}
	one.crd.Store(established(crd))
	one.schemas = sync.OnceValue(func() map[string]*verbatim.Schema { return schemasOf(crd) })
	upstream, err := crdserver.NewCustomResourceDefinitionHandler(
		nil, nil, // discovery is not served by upstream's handler
		one,
		answers.Unknown,
		instanceOptions{c.Stores, one.schemaOf},
		wholeNumbers{c.Admission},
		nil,                                 // nothing is left to establish
		webhook.NewDefaultServiceResolver(), // returns a name, which our calls do not need
		c.Calls,
		1,
		c.Authorizer,
		c.RequestTimeout,
		c.MinRequestTimeout,
		// Upstream only checks that there is a map: the schema of metadata comes with each CRD's own schema.
		map[string]*spec.Schema{},
		c.MaxRequestBodyBytes,
	)
	if err != nil {
		return nil, err
	}
	one.Handler = upstream
	return one, nil
}

func (h *definitionHandler) schemaOf(apiVersion string) *verbatim.Schema {
	return h.schemas()[apiVersion]
}

// schemasOf compiles the schemas of a CRD. Upstream's handler compiles its own schemas, but does not export them.
func schemasOf(crd *apiextensionsv1.CustomResourceDefinition) map[string]*verbatim.Schema {
	schemas := map[string]*verbatim.Schema{}
	for _, v := range crd.Spec.Versions {
		structural := SchemaOf(crd, v.Name)
		if structural == nil {
			continue
		}
		apiVersion := crd.Spec.Group + "/" + v.Name
		if s, err := verbatim.New(apiVersion, crd.Status.AcceptedNames.Kind, structural); err == nil {
			schemas[apiVersion] = s
		}
	}
	return schemas
}

// SchemaOf returns the schema of a version of a CRD. The schema gives the CRD's objects their defaults. It is nil if
// there is no such version, or if upstream's handler does not use the version's schema or refuses it.
func SchemaOf(crd *apiextensionsv1.CustomResourceDefinition, version string) *structuralschema.Structural {
	at := slices.IndexFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name == version })
	if at < 0 || crd.Spec.PreserveUnknownFields || crd.Spec.Versions[at].Schema == nil || crd.Spec.Versions[at].Schema.OpenAPIV3Schema == nil {
		return nil
	}
	var internal apiextensions.JSONSchemaProps
	if apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crd.Spec.Versions[at].Schema.OpenAPIV3Schema, &internal, nil) != nil {
		return nil
	}
	structural, err := structuralschema.NewStructural(&internal)
	if err != nil {
		return nil // upstream's handler reports the error
	}
	return structural
}

// TypesOf returns the type converter that managed fields use for a version of a CRD.
func TypesOf(crd *apiextensionsv1.CustomResourceDefinition, version string) (managedfields.TypeConverter, error) {
	document, err := builder.BuildOpenAPIV3(crd, version, builder.Options{})
	if err != nil {
		return nil, err
	}
	return managedfields.NewTypeConverter(document.Components.Schemas, crd.Spec.PreserveUnknownFields)
}

// established back-dates the condition Established. Upstream delays creates for two seconds after that condition was
// set, because other servers may not know the CRD yet. Here every server reads the CRD with each request.
func established(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	crd = crd.DeepCopy()
	for i := range crd.Status.Conditions {
		if c := &crd.Status.Conditions[i]; c.Type == apiextensionsv1.Established {
			c.LastTransitionTime = metav1.Unix(0, 0)
		}
	}
	return crd
}

// follow adopts a newer state of the CRD if only conditions or metadata differ, and reports whether it has adopted that
// state. If so, storage and schemas stay, and watches go on.
func (h *definitionHandler) follow(crd *apiextensionsv1.CustomResourceDefinition) bool {
	old := h.crd.Load()
	if old.UID != crd.UID || !apiequality.Semantic.DeepEqual(old.Spec, crd.Spec) ||
		!apiequality.Semantic.DeepEqual(old.Status.AcceptedNames, crd.Status.AcceptedNames) {
		return false
	}
	h.crd.Store(established(crd))
	return true
}

// Informer and Lister make the handler the informer of its one CRD. The informer never reports a change, so upstream
// never tears down the handler's stores. There is nothing to tear down: stores own no resources, and the handler goes
// away with its last request.
func (h *definitionHandler) Informer() toolscache.SharedIndexInformer { return &listers.Informer{} }

// Lister is upstream's interface.
func (h *definitionHandler) Lister() crdlisters.CustomResourceDefinitionLister { return lister{h} }

type lister struct{ h *definitionHandler }

// List is not used, because upstream lists only after an informer reports a deletion.
func (l lister) List(labels.Selector) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	return []*apiextensionsv1.CustomResourceDefinition{l.h.crd.Load()}, nil
}

func (l lister) Get(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	if crd := l.h.crd.Load(); crd.Name == name {
		return crd, nil
	}
	return nil, apierrors.NewNotFound(Resource, name)
}

// wholeNumbers turns whole numbers into integers before upstream compares an object with the stored object, which has
// integers. Otherwise a client that sends 1.0 would change the object, and its generation, each time.
type wholeNumbers struct{ admission.Interface }

var (
	_ admission.MutationInterface   = wholeNumbers{}
	_ admission.ValidationInterface = wholeNumbers{}
)

// Handles implements admission.Interface.
func (w wholeNumbers) Handles(operation admission.Operation) bool {
	return operation == admission.Create || operation == admission.Update || w.Interface.Handles(operation)
}

// Admit implements admission.MutationInterface.
func (w wholeNumbers) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if inner, mutates := w.Interface.(admission.MutationInterface); mutates && inner.Handles(a.GetOperation()) {
		if err := inner.Admit(ctx, a, o); err != nil {
			return err
		}
	}
	if u, ok := a.GetObject().(*unstructured.Unstructured); ok { // after the plug-ins, which may add numbers
		if whole, changed := resources.Whole(u.Object); changed {
			u.Object = whole.(map[string]any)
		}
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (w wholeNumbers) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	inner, validates := w.Interface.(admission.ValidationInterface)
	if !validates || !inner.Handles(a.GetOperation()) {
		return nil
	}
	return inner.Validate(ctx, a, o)
}
