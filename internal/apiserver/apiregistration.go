package apiserver

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	apiservicestorage "k8s.io/kube-aggregator/pkg/registry/apiservice/etcd"
)

// newAPIRegistrationStorage makes the registry of APIServices, which are stored but not aggregated.
func newAPIRegistrationStorage(s *Server) (genericapiserver.APIGroupInfo, error) {
	info := genericapiserver.NewDefaultAPIGroupInfo(apiregistration.GroupName, aggregatorscheme.Scheme, metav1.ParameterCodec, aggregatorscheme.Codecs)
	codec, versioner, err := serverstorage.NewStorageCodec(serverstorage.StorageCodecConfig{
		StorageMediaType:  runtime.ContentTypeProtobuf,
		StorageSerializer: aggregatorscheme.Codecs,
		StorageVersion:    apiregistrationv1.SchemeGroupVersion,
		MemoryVersion:     apiregistration.SchemeGroupVersion,
	})
	if err != nil {
		return info, err
	}
	apiServices := apiservicestorage.NewREST(aggregatorscheme.Scheme, getterFunc(func(resource schema.GroupResource) generic.RESTOptions {
		config := &storagebackend.ConfigForResource{GroupResource: resource, Config: storagebackend.Config{Codec: codec, EncodeVersioner: versioner}}
		return s.stores.Options(config, resource.Group+"/"+resource.Resource, runtime.ContentTypeProtobuf, nil)
	}))
	marking(apiServices.Store, markUnaggregated)
	info.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{
		"apiservices":        apiServices,
		"apiservices/status": apiservicestorage.NewStatusREST(aggregatorscheme.Scheme, apiServices),
	}
	return info, nil
}

// getterFunc is a generic.RESTOptionsGetter of resources that are not in the storage factory.
type getterFunc func(schema.GroupResource) generic.RESTOptions

func (f getterFunc) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	return f(resource), nil
}

// markUnaggregated says in a remote APIService's status that nothing is forwarded to it.
func markUnaggregated(obj runtime.Object) {
	service := obj.(*apiregistration.APIService)
	if service.Spec.Service == nil || apiregistration.IsAPIServiceConditionTrue(service, apiregistration.Available) {
		return
	}
	apiregistration.SetAPIServiceCondition(service, apiregistration.APIServiceCondition{
		Type:               apiregistration.Available,
		Status:             apiregistration.ConditionFalse,
		LastTransitionTime: metav1.Now(),
		Reason:             "AggregationNotSupported",
		Message:            "requests are not forwarded to other API servers",
	})
}
