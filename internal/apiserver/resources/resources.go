// Package resources says how resources are stored: under which prefix, in which version and encoding, encrypted or not,
// and with which claims.
//
// Nouns. Upstream's registries ask the Stores for the options of their storage, and get options that make kubestore's
// stores. A transformer turns a value into its form in the log and the bucket: it encrypts the value, pads it, or does
// both. A type converter knows the schema of built-in types, for managed fields.
package resources

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/runtime/serializer/recognizer"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	serveroptions "k8s.io/apiserver/pkg/server/options"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/tools/cache"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/kubeapiserver"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/kubestore/fanout"
	"github.com/logplane/logplane/projection"
)

// OwnGroup is the group of stored objects that the API does not serve: claims, the marker of bootstrap, clocks.
const OwnGroup = "logplane.dev"

// ClaimsFunc names an object's claims. The claims must exist exactly as long as the object names them
// (kubestore.Resource).
type ClaimsFunc = func(ctx context.Context, obj runtime.Object) ([]kubestore.Claim, error)

// CompleteFunc fills in the fields of an object that the server derives from a view (kubestore.Resource).
type CompleteFunc = func(ctx context.Context, v *projection.View, before, after runtime.Object) error

// Config of the Stores.
type Config struct {
	Cell kubestore.Cell
	// Version decides which versions are served and stored.
	Version basecompatibility.EffectiveVersion
	// Served are the resources that are served.
	Served *serverstorage.ResourceConfig
	// Transformers encrypt and pad values at rest.
	Transformers Transformers
	// Claims has the functions that name the claims of built-in resources' objects.
	Claims map[schema.GroupResource]ClaimsFunc
	// Complete and Alongside are as in kubestore.Resource, for all resources.
	Complete  func(resource schema.GroupResource) CompleteFunc
	Alongside func(ctx context.Context, v *projection.View, c kubestore.Change) ([]projection.Write, error)
	// Within is as in kubestore.Resource.
	Within func(ctx context.Context, at eventlog.Revision) error
	// Wrap, if set, wraps every store.
	Wrap func(storage.Interface) storage.Interface
}

// Stores makes the storage of every resource. Upstream's registries ask the Stores for the options of their storage. It
// is safe for concurrent use.
type Stores struct {
	config  Config
	factory *serverstorage.DefaultStorageFactory
}

// New makes the stores. Making them reads nothing.
func New(c Config) (*Stores, error) {
	versions := kubeapiserver.NewStorageFactoryConfigEffectiveVersion(c.Version)
	versions.APIResourceConfig = c.Served
	options := serveroptions.NewEtcdOptions(storagebackend.NewDefaultConfig("/registry", nil))
	options.DefaultStorageMediaType = runtime.ContentTypeProtobuf
	factory, err := versions.Complete(options).New()
	if err != nil {
		return nil, err
	}
	return &Stores{config: c, factory: factory}, nil
}

// Factory chooses the storage version of built-in resources.
func (s *Stores) Factory() serverstorage.StorageFactory { return s.factory }

// GetRESTOptions implements generic.RESTOptionsGetter for the built-in types, which are stored as protobuf.
func (s *Stores) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	config, err := s.factory.NewConfig(resource, example)
	if err != nil {
		return generic.RESTOptions{}, fmt.Errorf("find the storage version of %s: %w", resource, err)
	}
	return s.Options(config, s.Prefix(resource), runtime.ContentTypeProtobuf, s.config.Claims[resource]), nil
}

// Claims names the claims of a built-in resource's objects; nil for a resource without claims.
func (s *Stores) Claims(resource schema.GroupResource) ClaimsFunc { return s.config.Claims[resource] }

// Options returns the options of any resource. Config holds the codec, prefix is upstream's storage prefix, and
// contentType is the content type that the codec encodes. Claims may be nil. Upstream's background count of objects is
// off, since it would take a goroutine for each resource.
func (s *Stores) Options(config *storagebackend.ConfigForResource, prefix, contentType string, claims ClaimsFunc) generic.RESTOptions {
	return generic.RESTOptions{
		StorageConfig:           config,
		Decorator:               s.decorator(contentType, claims),
		EnableGarbageCollection: true,
		DeleteCollectionWorkers: 1,
		ResourcePrefix:          prefix,
	}
}

// decorator returns the hook with which upstream makes a store. This hook makes kubestore's store.
func (s *Stores) decorator(contentType string, claims ClaimsFunc) generic.StorageDecorator {
	return func(config *storagebackend.ConfigForResource, prefix string, keyFunc func(runtime.Object) (string, error),
		newFunc, newListFunc func() runtime.Object, _ storage.AttrFunc, indexers storage.IndexerFuncs, _ *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		namespaced, err := hasNamespace(prefix, newFunc(), keyFunc)
		if err != nil {
			return nil, nil, fmt.Errorf("find the scope of %s: %w", config.GroupResource, err)
		}
		resource := kubestore.Resource{
			GroupResource: config.GroupResource,
			Prefix:        prefix,
			Namespaced:    namespaced,
			Codec:         config.Codec,
			ContentType:   contentType,
			NewFunc:       newFunc,
			NewListFunc:   newListFunc,
			Indexers:      indexers,
			Transformer:   s.Transformer(config.GroupResource),
			Named:         true,
			Claims:        claims,
			Alongside:     s.config.Alongside,
			Within:        s.config.Within,
			DecodesLabels: DecodesLabels(config.GroupResource),
			StoredFields:  storedFields[config.GroupResource],
		}
		if s.config.Complete != nil {
			resource.Complete = s.config.Complete(config.GroupResource)
		}
		store := kubestore.New(s.config.Cell, resource)
		if s.config.Wrap != nil {
			store = s.config.Wrap(store)
		}
		return store, func() {}, nil
	}
}

// storedFields has, by resource, the protobuf field numbers of selectable fields that can be read without decoding.
// Nodes and controllers select Pods by these fields, and decoding gives these fields no defaults.
var storedFields = map[schema.GroupResource]map[string][]int32{
	{Resource: "pods"}: {"spec.nodeName": {2, 10}, "status.phase": {3, 1}},
}

// DecodesLabels says that decoding an object of a resource may add labels to the object, as a default taken from the
// object's template.
func DecodesLabels(resource schema.GroupResource) bool {
	return resource == schema.GroupResource{Resource: "replicationcontrollers"} || resource == schema.GroupResource{Group: "batch", Resource: "jobs"}
}

// Prefix is upstream's storage prefix of a resource, for example 'services/specs'. Custom resources,
// CustomResourceDefinitions and APIServices are not in the legacy scheme, and are stored below their group.
func (s *Stores) Prefix(resource schema.GroupResource) string {
	if !legacyscheme.Scheme.IsGroupRegistered(resource.Group) {
		return resource.Group + "/" + resource.Resource
	}
	return s.factory.ResourcePrefix(resource)
}

// Transformer encrypts and pads the values of a resource; nil where values are stored as they are.
func (s *Stores) Transformer(resource schema.GroupResource) value.Transformer {
	return s.config.Transformers.For(resource)
}

// coreCodec encodes objects of core/v1 as their registries store them.
var coreCodec = legacyscheme.Codecs.EncoderForVersion(protobuf.NewSerializer(legacyscheme.Scheme, legacyscheme.Scheme), corev1.SchemeGroupVersion)

// CustomCodec is upstream's codec of custom resources, which writes CBOR, and reads CBOR and JSON. Unlike upstream's
// codec, it writes whole numbers as integers.
var CustomCodec = sync.OnceValue(func() runtime.Codec {
	c := cbor.NewSerializer(unstructuredscheme.NewUnstructuredCreator(), unstructuredscheme.NewUnstructuredObjectTyper())
	return runtime.NewCodec(wholeNumbers{c}, recognizer.NewDecoder(c, unstructured.UnstructuredJSONScheme))
})

// Key returns the key of an object of a built-in or custom resource.
func (s *Stores) Key(resource schema.GroupResource, namespace, name string) eventlog.Key {
	return eventlog.Key{
		Cluster: s.config.Cell.Cluster, Group: resource.Group, Resource: resource.Resource,
		Prefix: "/" + s.Prefix(resource), Namespace: namespace, Name: name,
	}
}

// PutCore returns the write that stores an object of core/v1 as its registry would.
func (s *Stores) PutCore(ctx context.Context, at projection.State, key eventlog.Key, object runtime.Object) (projection.Write, error) {
	plain, err := runtime.Encode(coreCodec, object)
	if err != nil {
		return projection.Write{}, fmt.Errorf("encode %s: %w", key.Path(), err)
	}
	transformer := s.Transformer(schema.GroupResource{Group: key.Group, Resource: key.Resource})
	body, err := kubestore.Stored(ctx, transformer, key.RowKey(), plain)
	if err != nil {
		return projection.Write{}, fmt.Errorf("encrypt %s: %w", key.Path(), err)
	}
	return at.Put(runtime.ContentTypeProtobuf, body, 0), nil
}

// hasNamespace reports whether a resource's objects are in namespaces. It asks the registry's key function, because
// upstream's hook is not told the scope.
func hasNamespace(prefix string, example runtime.Object, keyFunc func(runtime.Object) (string, error)) (bool, error) {
	object, err := meta.Accessor(example)
	if err != nil {
		return false, err
	}
	object.SetNamespace("probe")
	object.SetName("probe")
	key, err := keyFunc(example)
	return strings.Count(strings.TrimPrefix(key, prefix), "/") == 2, err
}

// Equivalents tells admission which resources share their objects: resources with the same storage prefix. A group
// registers its resources when the first request for the group builds the group. Events, the only resource in two
// groups, are registered here, because otherwise rules for one group would not apply to requests for the other group.
func (s *Stores) Equivalents() runtime.EquivalentResourceRegistry {
	r := runtime.NewEquivalentResourceRegistryWithIdentity(s.factory.ResourcePrefix)
	for _, version := range []schema.GroupVersion{corev1.SchemeGroupVersion, eventsv1.SchemeGroupVersion} {
		r.RegisterKindFor(version.WithResource("events"), "", version.WithKind("Event"))
	}
	return r
}

// DecorateShared applies a store's decorator also to an object that several watches share, so that a watch and a get
// show the same fields. Upstream's decorators do not see into such an object. So in kube-apiserver the fields that a
// watch shows depend on the number of clients that watch.
func DecorateShared(store *genericregistry.Store) {
	decorate := store.Decorator
	store.Decorator = func(obj runtime.Object) {
		_ = fanout.Decorate(obj, func(obj runtime.Object) error { decorate(obj); return nil })
	}
}

// StoresIn finds the stores that upstream's registries embed.
func StoresIn(registry rest.Storage) []*genericregistry.Store {
	return storesIn(reflect.ValueOf(registry))
}

// storesIn is StoresIn for a value.
func storesIn(v reflect.Value) (stores []*genericregistry.Store) {
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer:
		if store, ok := v.Interface().(*genericregistry.Store); ok {
			if store != nil {
				stores = append(stores, store)
			}
			return stores
		}
		if !v.IsNil() {
			return storesIn(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.Anonymous && f.IsExported() {
				stores = append(stores, storesIn(v.Field(i))...)
			}
		}
	}
	return stores
}
