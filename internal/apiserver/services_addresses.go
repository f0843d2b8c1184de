package apiserver

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/kubernetes/pkg/apis/networking"
	ipaddressstore "k8s.io/kubernetes/pkg/registry/networking/ipaddress/storage"
	networkingrest "k8s.io/kubernetes/pkg/registry/networking/rest"
)

// newNetworkingStorage makes the registries of networking.k8s.io, upstream's but for IPAddresses.
func newNetworkingStorage(s *Server) (genericapiserver.APIGroupInfo, error) {
	info, err := networkingrest.RESTStorageProvider{}.NewRESTStorage(s.generic.MergedResourceConfig, s.stores)
	if err != nil {
		return info, err
	}
	for _, storage := range info.VersionedResourcesStorageMap {
		if addresses, ok := storage["ipaddresses"].(*ipaddressstore.REST); ok {
			storage["ipaddresses"] = &addressREST{addresses, s.listers.Core().V1().Services().Lister()}
		}
	}
	return info, nil
}

// addressREST does not let go of an address that a service has: it is the service's claim, and without it
// another service could be given the same. Upstream lets go and has a loop put the object back later.
type addressREST struct {
	*ipaddressstore.REST
	services corelisters.ServiceLister
}

// Delete implements rest.GracefulDeleter.
func (r *addressREST) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	return r.REST.Delete(ctx, name, r.unused(validate), options)
}

// DeleteCollection implements rest.CollectionDeleter.
func (r *addressREST) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, list *internalversion.ListOptions) (runtime.Object, error) {
	return r.REST.DeleteCollection(ctx, r.unused(validate), options, list)
}

// unused refuses addresses that services have before it asks validate. The lister's view is no older than
// the one that the deletion is computed on, and whatever is newer than both makes its precondition fail.
func (r *addressREST) unused(validate rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	return func(ctx context.Context, obj runtime.Object) error {
		if address, ok := obj.(*networking.IPAddress); ok {
			if err := r.refuse(address); err != nil {
				return err
			}
		}
		if validate == nil {
			return nil
		}
		return validate(ctx, obj)
	}
}

func (r *addressREST) refuse(address *networking.IPAddress) error {
	parent := address.Spec.ParentRef
	if parent == nil || parent.Group != "" || parent.Resource != "services" {
		return nil
	}
	service, err := r.services.Services(parent.Namespace).Get(parent.Name)
	if apierrors.IsNotFound(err) || err == nil && !slices.Contains(service.Spec.ClusterIPs, address.Name) {
		return nil
	}
	if err != nil {
		return err
	}
	return apierrors.NewForbidden(networking.Resource("ipaddresses"), address.Name,
		fmt.Errorf("service '%s/%s' has this address; delete the service instead", parent.Namespace, parent.Name))
}
