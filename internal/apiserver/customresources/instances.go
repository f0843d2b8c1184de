package customresources

import (
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	"github.com/logplane/logplane/internal/apiserver/customresources/verbatim"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
)

// instanceOptions makes the stores of custom resources.
type instanceOptions struct {
	stores   *resources.Stores
	schemaOf func(apiVersion string) *verbatim.Schema
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (o instanceOptions) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	config := &storagebackend.ConfigForResource{
		GroupResource: resource,
		Config:        storagebackend.Config{Codec: resources.CustomCodec()},
	}
	options := o.stores.Options(config, resource.Group+"/"+resource.Resource, runtime.ContentTypeCBOR, nil)
	store := options.Decorator
	options.Decorator = func(config *storagebackend.ConfigForResource, prefix string, keyFunc func(runtime.Object) (string, error),
		newFunc, newListFunc func() runtime.Object, attrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		own := *config
		version := newFunc().GetObjectKind().GroupVersionKind().GroupVersion().String()
		own.Codec = codec{config.Codec, o.schemaOf, version} // upstream's codec, which converts versions
		return store(&own, prefix, keyFunc, newFunc, newListFunc, attrs, triggers, indexers)
	}
	return options, nil
}

// codec is upstream's codec of one CRD. If the CRD's schema would leave an object as it is, the codec decodes the
// object without using the schema.
//
// An object may be stored in a version that its CRD no longer has. Then the error of the codec explains what to do.
// Upstream refuses to drop a version that `status.storedVersions` names, but lets a user remove the version from that
// list.
type codec struct {
	runtime.Codec
	schemaOf func(apiVersion string) *verbatim.Schema
	// version is the version to which objects are decoded unless the caller asks for another version.
	version string
}

// fewValues is how many values are decoded and encoded again in some 0.3 ms.
const fewValues = 1000

// Local implements kubestore.Local.
func (c codec) Local(data []byte) (local, soon bool) {
	values, local := c.leaves(data, nil)
	return local, local && values <= fewValues
}

// leaves returns how many values an object has, and whether the object's schema leaves all values as they are.
func (c codec) leaves(data []byte, into runtime.Object) (values int, leaves bool) {
	version := c.version
	if u, ok := into.(*unstructured.Unstructured); ok {
		version = u.GetAPIVersion()
	} else if into != nil {
		return 0, false
	}
	s := c.schemaOf(version)
	if s == nil {
		return 0, false
	}
	return s.Leaves(data)
}

func (c codec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if _, leaves := c.leaves(data, into); leaves {
		return resources.CustomCodec().Decode(data, defaults, into)
	}
	object, kind, err := c.Codec.Decode(data, defaults, into)
	if err != nil && strings.HasPrefix(err.Error(), "request to convert CR from an invalid group/version") {
		err = fmt.Errorf("%w: %w: add it to the `spec.versions` of the CustomResourceDefinition "+
			"again, where it need not be served, and update every object before you drop it", err, kubestore.ErrDropped)
	}
	return object, kind, unconverted(err)
}

// Encode implements runtime.Encoder.
func (c codec) Encode(object runtime.Object, w io.Writer) error {
	return unconverted(c.Codec.Encode(object, w))
}

// unconverted marks errors of conversion webhooks, which upstream distinguishes only by their text.
func unconverted(err error) error {
	if err != nil && strings.HasPrefix(err.Error(), "conversion webhook for ") {
		return &kubestore.Unconverted{Err: err}
	}
	return err
}
