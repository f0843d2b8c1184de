package services

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/apis/networking"
	ipaddressstore "k8s.io/kubernetes/pkg/registry/networking/ipaddress/storage"
)

// GuardAddresses changes the registry of IPAddresses in the storage of networking.k8s.io. The changed registry refuses
// to delete addresses that Services have. The function 'service' returns nil if there is no such Service. 'service'
// must read the view on which the request's writes are computed, or a newer view.
func GuardAddresses(info *genericapiserver.APIGroupInfo, service func(ctx context.Context, namespace, name string) (*corev1.Service, error)) {
	for _, storage := range info.VersionedResourcesStorageMap {
		addresses, ok := storage["ipaddresses"].(*ipaddressstore.REST)
		if ok {
			storage["ipaddresses"] = &addressREST{addresses, service}
		}
	}
}

// addressREST refuses to delete an address that a Service has. The IPAddress is the Service's claim. Without the claim,
// another Service could get the same address. Upstream deletes the IPAddress, and a loop restores it later.
type addressREST struct {
	*ipaddressstore.REST
	service func(ctx context.Context, namespace, name string) (*corev1.Service, error)
}

// Delete implements rest.GracefulDeleter.
func (r *addressREST) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	return r.REST.Delete(ctx, name, r.unused(validate), options)
}

// DeleteCollection implements rest.CollectionDeleter.
func (r *addressREST) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, list *internalversion.ListOptions) (runtime.Object, error) {
	return r.REST.DeleteCollection(ctx, r.unused(validate), options, list)
}

// unused refuses addresses that Services have, and then calls validate. If a Service gets the address after the view
// that was read, the deletion's precondition fails.
func (r *addressREST) unused(validate rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	return func(ctx context.Context, obj runtime.Object) error {
		if address, ok := obj.(*networking.IPAddress); ok {
			if err := r.refuse(ctx, address); err != nil {
				return err
			}
		}
		if validate == nil {
			return nil
		}
		return validate(ctx, obj)
	}
}

func (r *addressREST) refuse(ctx context.Context, address *networking.IPAddress) error {
	parent := address.Spec.ParentRef
	if parent == nil || parent.Group != "" || parent.Resource != "services" {
		return nil
	}
	service, err := r.service(ctx, parent.Namespace, parent.Name)
	if err != nil || service == nil || !slices.Contains(service.Spec.ClusterIPs, address.Name) {
		return err
	}
	return apierrors.NewForbidden(networking.Resource("ipaddresses"), address.Name,
		fmt.Errorf("service '%s/%s' has this address; delete the service instead", parent.Namespace, parent.Name))
}
