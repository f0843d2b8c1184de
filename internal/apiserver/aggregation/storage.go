package aggregation

import (
	"context"
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	apiservicestorage "k8s.io/kube-aggregator/pkg/registry/apiservice/etcd"

	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/apiserver/resources"
)

// NewStorage makes upstream's registries of APIServices. They refuse a remote APIService for a version that this server
// serves.
func NewStorage(stores *resources.Stores, definitions *customresources.Reader) (genericapiserver.APIGroupInfo, error) {
	info := genericapiserver.NewDefaultAPIGroupInfo(apiregistration.GroupName, aggregatorscheme.Scheme, metav1.ParameterCodec, aggregatorscheme.Codecs)
	options, err := Options(stores)
	if err != nil {
		return info, err
	}
	services := apiservicestorage.NewREST(aggregatorscheme.Scheme, options)
	status := apiservicestorage.NewStatusREST(aggregatorscheme.Scheme, services) // copies the store first
	services.CreateStrategy = createStrategy{resources.CreateStrategyOf(services.CreateStrategy), definitions}
	services.UpdateStrategy = updateStrategy{resources.UpdateStrategyOf(services.UpdateStrategy), definitions}
	info.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{Resource.Resource: services, Resource.Resource + "/status": status}
	return info, nil
}

// Options says how APIServices are stored: as protobuf of version v1.
func Options(stores *resources.Stores) (generic.RESTOptions, error) {
	codec, versioner, err := serverstorage.NewStorageCodec(serverstorage.StorageCodecConfig{
		StorageMediaType:  runtime.ContentTypeProtobuf,
		StorageSerializer: aggregatorscheme.Codecs,
		StorageVersion:    apiregistrationv1.SchemeGroupVersion,
		MemoryVersion:     apiregistration.SchemeGroupVersion,
	})
	if err != nil {
		return generic.RESTOptions{}, fmt.Errorf("make the codec of %s: %w", Resource, err)
	}
	config := &storagebackend.ConfigForResource{GroupResource: Resource, Config: storagebackend.Config{Codec: codec, EncodeVersioner: versioner}}
	return stores.Options(config, Prefix, runtime.ContentTypeProtobuf, nil), nil
}

type createStrategy struct {
	resources.CreateStrategy
	definitions *customresources.Reader
}

// Validate implements rest.RESTCreateStrategy.
func (s createStrategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return append(s.RESTCreateStrategy.Validate(ctx, obj), taken(ctx, s.definitions, obj.(*apiregistration.APIService))...)
}

type updateStrategy struct {
	resources.UpdateStrategy
	definitions *customresources.Reader
}

// ValidateUpdate implements rest.RESTUpdateStrategy. An APIService that was remote may be changed and stay remote.
func (s updateStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	errs := s.RESTUpdateStrategy.ValidateUpdate(ctx, obj, old)
	if old.(*apiregistration.APIService).Spec.Service == nil {
		errs = append(errs, taken(ctx, s.definitions, obj.(*apiregistration.APIService))...)
	}
	return errs
}

// taken refuses a remote APIService of a version that this server serves. In kube-apiserver a local APIService of that
// version exists already, and a controller restores the local APIService after a change. A remote APIService that is
// older than the CRD stays in effect, as in kube-apiserver.
func taken(ctx context.Context, definitions *customresources.Reader, service *apiregistration.APIService) field.ErrorList {
	if service.Spec.Service == nil {
		return nil
	}
	at := field.NewPath("spec", "service")
	if customresources.IsBuiltin(service.Spec.Group, service.Spec.Version) {
		return field.ErrorList{field.Forbidden(at, fmt.Sprintf("version %s of group '%s' is built in", service.Spec.Version, service.Spec.Group))}
	}
	set, err := definitions.All()
	if err != nil {
		listers.Fail(ctx, err) // upstream's interface cannot return an error
	}
	for _, crd := range set.Definitions {
		if crd.Spec.Group == service.Spec.Group && apihelpers.HasServedCRDVersion(crd.CustomResourceDefinition, service.Spec.Version) {
			return field.ErrorList{field.Forbidden(at, fmt.Sprintf("version %s of group '%s' is served by CustomResourceDefinition %s: delete it, or its version, first",
				service.Spec.Version, service.Spec.Group, crd.Name))}
		}
	}
	return nil
}
