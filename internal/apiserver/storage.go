package apiserver

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	serveroptions "k8s.io/apiserver/pkg/server/options"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/tools/cache"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/kubernetes/pkg/controlplane"
	"k8s.io/kubernetes/pkg/kubeapiserver"

	"github.com/logplane/logplane/internal/kubestore"
)

// claimsFunc names the claims that must exist exactly as long as the object says so.
type claimsFunc = func(ctx context.Context, obj runtime.Object) ([]kubestore.Claim, error)

// stores makes the storage of every resource; upstream's registries ask it for their options. It is safe
// for concurrent use.
type stores struct {
	cell    kubestore.Cell
	logger  *slog.Logger
	factory *serverstorage.DefaultStorageFactory
	// transformers encrypt values at rest; nil for none.
	transformers value.ResourceTransformers
}

// resourceConfig is what kube-apiserver serves by default.
func resourceConfig() *serverstorage.ResourceConfig {
	return controlplane.DefaultAPIResourceConfigSource()
}

func newStores(cell kubestore.Cell, logger *slog.Logger, version basecompatibility.EffectiveVersion, served *serverstorage.ResourceConfig) (*stores, error) {
	c := kubeapiserver.NewStorageFactoryConfigEffectiveVersion(version)
	c.APIResourceConfig = served
	options := serveroptions.NewEtcdOptions(storagebackend.NewDefaultConfig("/registry", nil))
	options.DefaultStorageMediaType = runtime.ContentTypeProtobuf
	factory, err := c.Complete(options).New()
	if err != nil {
		return nil, err
	}
	return &stores{cell: cell, logger: logger, factory: factory}, nil
}

// GetRESTOptions implements generic.RESTOptionsGetter for the built-in types, stored as protobuf.
func (s *stores) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	config, err := s.factory.NewConfig(resource, example)
	if err != nil {
		return generic.RESTOptions{}, fmt.Errorf("find the storage version of %s: %w", resource, err)
	}
	return s.options(config, s.factory.ResourcePrefix(resource), runtime.ContentTypeProtobuf, s.claimsOf(resource)), nil
}

// options are those of any resource: config holds the codec, prefix is upstream's storage prefix and
// contentType what the codec encodes; claims may be nil. No count poll, which would be a goroutine per resource.
func (s *stores) options(config *storagebackend.ConfigForResource, prefix, contentType string, claims claimsFunc) generic.RESTOptions {
	return generic.RESTOptions{
		StorageConfig:           config,
		Decorator:               s.decorator(contentType, claims),
		EnableGarbageCollection: true,
		DeleteCollectionWorkers: 1,
		ResourcePrefix:          prefix,
	}
}

// decorator returns upstream's hook that makes a store, here kubestore's.
func (s *stores) decorator(contentType string, claims claimsFunc) generic.StorageDecorator {
	return func(config *storagebackend.ConfigForResource, prefix string, keyFunc func(runtime.Object) (string, error),
		newFunc, newListFunc func() runtime.Object, _ storage.AttrFunc, indexers storage.IndexerFuncs, _ *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		namespaced, err := hasNamespace(prefix, newFunc(), keyFunc)
		if err != nil {
			return nil, nil, fmt.Errorf("find the scope of %s: %w", config.GroupResource, err)
		}
		store := kubestore.New(s.cell, kubestore.Resource{
			GroupResource: config.GroupResource,
			Prefix:        prefix,
			Namespaced:    namespaced,
			Codec:         config.Codec,
			ContentType:   contentType,
			NewFunc:       newFunc,
			NewListFunc:   newListFunc,
			Indexers:      indexers,
			Transformer:   s.Transformer(config.GroupResource),
			Claims:        claims,
		})
		return patchable{store, s}, func() {}, nil
	}
}

// decorateShared lets watches that share one object show what a get shows. Upstream's own decorator leaves such an
// object as it is stored, so that in kube-apiserver what a watch shows depends on how many watch.
func decorateShared(store *genericregistry.Store) {
	decorate := store.Decorator
	store.Decorator = func(obj runtime.Object) {
		if shared, ok := obj.(kubestore.Shared); ok {
			shared.Decorate(decorate)
			return
		}
		decorate(obj)
	}
}

// Prefix implements listers.Storage.
func (s *stores) Prefix(resource schema.GroupResource) string {
	return s.factory.ResourcePrefix(resource)
}

// Transformer implements listers.Storage.
func (s *stores) Transformer(resource schema.GroupResource) value.Transformer {
	var encrypt value.Transformer
	if s.transformers != nil {
		encrypt = s.transformers.TransformerForResource(resource)
	}
	if resource == paddedResource {
		return newPadded(encrypt)
	}
	return encrypt
}

// hasNamespace asks the registry's key function, because upstream's hook is not told the scope.
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

// equivalents tells admission which resources are one object under several names; the storage prefix says so.
func (s *stores) equivalents() runtime.EquivalentResourceRegistry {
	return runtime.NewEquivalentResourceRegistryWithIdentity(func(resource schema.GroupResource) string {
		return s.factory.ResourcePrefix(resource)
	})
}
