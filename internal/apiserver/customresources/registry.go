package customresources

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	crdserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
)

// NewStorage makes upstream's registries of CustomResourceDefinitions. The conditions that upstream's controllers would
// add later are set in the write itself.
func NewStorage(cluster string, stores *resources.Stores, definitions *Reader) (genericapiserver.APIGroupInfo, error) {
	upstream, err := customresourcedefinition.NewREST(crdserver.Scheme, definitionOptions{cluster, stores})
	if err != nil {
		return genericapiserver.APIGroupInfo{}, err
	}
	names := &naming{definitions}
	spec := customresourcedefinition.NewStrategy(crdserver.Scheme)
	upstream.CreateStrategy = createStrategy{resources.CreateStrategyOf(spec), names}
	upstream.UpdateStrategy = updateStrategy{resources.UpdateStrategyOf(spec), names}

	status := *upstream.Store
	statusStrategy := customresourcedefinition.NewStatusStrategy(crdserver.Scheme)
	status.CreateStrategy, status.DeleteStrategy = nil, nil
	status.UpdateStrategy = updateStrategy{resources.UpdateStrategyOf(statusStrategy), names}
	status.ResetFieldsStrategy = statusStrategy

	info := genericapiserver.NewDefaultAPIGroupInfo(apiextensions.GroupName, crdserver.Scheme, metav1.ParameterCodec, crdserver.Codecs)
	info.VersionedResourcesStorageMap[apiextensionsv1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		Resource.Resource:             REST{upstream},
		Resource.Resource + "/status": statusREST{&status},
	}
	return info, nil
}

// announcedVersion is the version from which discovery computes its hash of the storage version: v1beta1.
// Kube-apiserver stores v1beta1 because that version is more compact. A different hash would make clients migrate
// stored objects for no reason.
var announcedVersion = runtime.NewMultiGroupVersioner(apiextensionsv1beta1.SchemeGroupVersion, schema.GroupKind{Group: apiextensions.GroupName})

// definitionOptions makes the store of CustomResourceDefinitions, which stores protobuf of version v1.
type definitionOptions struct {
	cluster string
	stores  *resources.Stores
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (o definitionOptions) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	codec, _, err := serverstorage.NewStorageCodec(serverstorage.StorageCodecConfig{
		StorageMediaType:  runtime.ContentTypeProtobuf,
		StorageSerializer: crdserver.Codecs,
		StorageVersion:    apiextensionsv1.SchemeGroupVersion,
		MemoryVersion:     apiextensions.SchemeGroupVersion,
	})
	if err != nil {
		return generic.RESTOptions{}, fmt.Errorf("make the codec of %s: %w", resource, err)
	}
	config := &storagebackend.ConfigForResource{GroupResource: resource, Config: storagebackend.Config{Codec: codec, EncodeVersioner: announcedVersion}}
	return o.stores.Options(config, Prefix, runtime.ContentTypeProtobuf, nameClaims(o.cluster)), nil
}

// REST is upstream's registry. It retries a write if another CRD took a name in the meantime. The retry finds that the
// names clash, because the other CRD came first.
type REST struct{ *customresourcedefinition.REST }

// Create implements rest.Creater.
func (r REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, o *metav1.CreateOptions) (runtime.Object, error) {
	return retryClaimed(ctx, func() (runtime.Object, error) {
		return r.REST.Create(ctx, obj.DeepCopyObject(), validate, o)
	})
}

// Update implements rest.Updater.
func (r REST) Update(ctx context.Context, name string, obj rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, force bool, o *metav1.UpdateOptions) (updated runtime.Object, created bool, err error) {
	updated, err = retryClaimed(ctx, func() (out runtime.Object, err error) {
		out, created, err = r.REST.Update(ctx, name, obj, create, update, force, o)
		return out, err
	})
	return updated, created, err
}

// statusREST replaces upstream's status subresource, whose store is not exported. It retries writes as REST does.
type statusREST struct{ store *genericregistry.Store }

var _ rest.Patcher = statusREST{}

func (statusREST) New() runtime.Object { return &apiextensions.CustomResourceDefinition{} }
func (statusREST) Destroy()            {} // the store is the main resource's

// Get implements rest.Getter.
func (r statusREST) Get(ctx context.Context, name string, o *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, o)
}

// Update implements rest.Updater; a subresource never creates.
func (r statusREST) Update(ctx context.Context, name string, obj rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, o *metav1.UpdateOptions) (updated runtime.Object, created bool, err error) {
	updated, err = retryClaimed(ctx, func() (out runtime.Object, err error) {
		out, created, err = r.store.Update(ctx, name, obj, create, update, false, o)
		return out, err
	})
	return updated, created, err
}

// GetResetFields implements rest.ResetFieldsStrategy.
func (r statusREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

// claimRetries is how many times one write may lose a name to another CRD.
const claimRetries = 5

// retryClaimed writes again after an attempt that lost a race for a name. The lost attempt wrote nothing, and the view
// now holds the CRD that won, so the next attempt sees the clash. The next attempt can lose only a race for another
// name. In a transaction, another operation of the same transaction may have won the name; no attempt sees that
// operation.
func retryClaimed(ctx context.Context, write func() (runtime.Object, error)) (_ runtime.Object, err error) {
	defer listers.Catch(ctx, &err)
	var claimed *kubestore.ClaimedError
	for range claimRetries {
		obj, err := write()
		if !errors.As(err, &claimed) {
			return obj, err
		}
		if kubestore.InTransaction(ctx) {
			return nil, &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonConflict,
				Message: claimed.Error() + ": write one of the two after the transaction"}}
		}
	}
	return nil, apierrors.NewTooManyRequests(claimed.Error(), 1)
}
