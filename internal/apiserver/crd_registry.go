package apiserver

import (
	"context"
	"errors"
	"fmt"

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

	"github.com/logplane/logplane/internal/kubestore"
)

// crdPrefix is upstream's storage prefix of CustomResourceDefinitions.
const crdPrefix = "apiextensions.k8s.io/customresourcedefinitions"

// newAPIExtensionsStorage makes the registries of CustomResourceDefinitions: upstream's, with the
// conditions that its controllers would add later set in the write itself.
func newAPIExtensionsStorage(s *Server) (genericapiserver.APIGroupInfo, error) {
	upstream, err := customresourcedefinition.NewREST(crdserver.Scheme, crdDefinitionOptions{s})
	if err != nil {
		return genericapiserver.APIGroupInfo{}, err
	}
	naming := &crdNaming{newCRDReader(s)}
	spec := customresourcedefinition.NewStrategy(crdserver.Scheme)
	upstream.CreateStrategy = crdCreateStrategy{spec, naming}
	upstream.UpdateStrategy = crdUpdateStrategy{spec, naming}

	status := *upstream.Store
	statusStrategy := customresourcedefinition.NewStatusStrategy(crdserver.Scheme)
	status.CreateStrategy, status.DeleteStrategy = nil, nil
	status.UpdateStrategy = crdUpdateStrategy{statusStrategy, naming}
	status.ResetFieldsStrategy = statusStrategy

	info := genericapiserver.NewDefaultAPIGroupInfo(apiextensions.GroupName, crdserver.Scheme, metav1.ParameterCodec, crdserver.Codecs)
	info.VersionedResourcesStorageMap[apiextensionsv1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		"customresourcedefinitions":        crdREST{upstream},
		"customresourcedefinitions/status": crdStatusREST{&status},
	}
	return info, nil
}

// announcedCRDVersion is what discovery's hash of the storage version is made of: kube-apiserver's, which stores the
// more compact v1beta1. The hash tells clients that they must migrate what is stored, and v1 is as settled here.
var announcedCRDVersion = runtime.NewMultiGroupVersioner(apiextensionsv1beta1.SchemeGroupVersion, schema.GroupKind{Group: apiextensions.GroupName})

// crdDefinitionOptions makes the store of CustomResourceDefinitions: protobuf of version v1.
type crdDefinitionOptions struct{ server *Server }

// GetRESTOptions implements generic.RESTOptionsGetter.
func (o crdDefinitionOptions) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	codec, _, err := serverstorage.NewStorageCodec(serverstorage.StorageCodecConfig{
		StorageMediaType:  runtime.ContentTypeProtobuf,
		StorageSerializer: crdserver.Codecs,
		StorageVersion:    apiextensionsv1.SchemeGroupVersion,
		MemoryVersion:     apiextensions.SchemeGroupVersion,
	})
	if err != nil {
		return generic.RESTOptions{}, fmt.Errorf("make the codec of %s: %w", resource, err)
	}
	config := &storagebackend.ConfigForResource{GroupResource: resource, Config: storagebackend.Config{Codec: codec, EncodeVersioner: announcedCRDVersion}}
	return o.server.stores.Options(config, crdPrefix, runtime.ContentTypeProtobuf, crdClaims(o.server.config.Cell.Cluster)), nil
}

// crdREST is upstream's registry whose writes are tried again when another CRD took a name meanwhile:
// the names are then found to clash, as if the other had come first, which it did.
type crdREST struct{ *customresourcedefinition.REST }

// Create implements rest.Creater.
func (r crdREST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, o *metav1.CreateOptions) (runtime.Object, error) {
	return retryClaimed(func() (runtime.Object, error) {
		return r.REST.Create(ctx, obj.DeepCopyObject(), validate, o)
	})
}

// Update implements rest.Updater.
func (r crdREST) Update(ctx context.Context, name string, obj rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, force bool, o *metav1.UpdateOptions) (updated runtime.Object, created bool, err error) {
	updated, err = retryClaimed(func() (out runtime.Object, err error) {
		out, created, err = r.REST.Update(ctx, name, obj, create, update, force, o)
		return out, err
	})
	return updated, created, err
}

// crdStatusREST is upstream's status subresource, whose store is not exported, and with the same retry.
type crdStatusREST struct{ store *genericregistry.Store }

var _ rest.Patcher = crdStatusREST{}

// New implements rest.Storage.
func (r crdStatusREST) New() runtime.Object { return &apiextensions.CustomResourceDefinition{} }

// Destroy implements rest.Storage; the store is the main resource's.
func (r crdStatusREST) Destroy() {}

// Get implements rest.Getter.
func (r crdStatusREST) Get(ctx context.Context, name string, o *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, o)
}

// Update implements rest.Updater; a subresource never creates.
func (r crdStatusREST) Update(ctx context.Context, name string, obj rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, o *metav1.UpdateOptions) (updated runtime.Object, created bool, err error) {
	updated, err = retryClaimed(func() (out runtime.Object, err error) {
		out, created, err = r.store.Update(ctx, name, obj, create, update, false, o)
		return out, err
	})
	return updated, created, err
}

// GetResetFields implements rest.ResetFieldsStrategy.
func (r crdStatusREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

// claimRetries is how many other CRDs may take names of this one while it is written.
const claimRetries = 5

// retryClaimed writes again after a lost race for a name. Nothing was written then, and the view holds
// the winner, so the next try sees the clash; only yet another race for another name can lose again.
func retryClaimed(write func() (runtime.Object, error)) (runtime.Object, error) {
	var claimed *kubestore.ClaimedError
	for range claimRetries {
		obj, err := write()
		if !errors.As(err, &claimed) {
			return obj, err
		}
	}
	return nil, apierrors.NewTooManyRequests(claimed.Error(), 1)
}
