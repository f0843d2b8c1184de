package bootstrap

import (
	"context"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"
	netutils "k8s.io/utils/net"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
)

// stored is an object or a claim in its stored form.
type stored struct {
	key         eventlog.Key
	contentType string
	body        []byte
}

// encoder encodes objects in their stored form.
type encoder struct {
	cluster string
	stores  *resources.Stores
	now     metav1.Time
}

// encode changes the object as the registry's create would, but does not validate the object. Validation is not needed,
// because the objects are constants and a test updates each object through the API. It returns the object and then its
// claims.
func (e encoder) encode(ctx context.Context, o object, options generic.RESTOptions) ([]stored, error) {
	scheme := o.scheme()
	scheme.Default(o.object)
	internal, err := scheme.UnsafeConvertToVersion(o.object, runtime.InternalGroupVersioner)
	if err != nil {
		return nil, err
	}
	accessor, err := meta.Accessor(internal)
	if err != nil {
		return nil, err
	}
	rest.FillObjectMetaSystemFields(accessor)
	accessor.SetCreationTimestamp(e.now)
	if err := manage(o.resource, accessor, e.now); err != nil {
		return nil, err
	}
	o.strategy.PrepareForCreate(ctx, internal)
	o.strategy.Canonicalize(internal)
	complete(internal, e.now)
	key := eventlog.Key{
		Cluster: e.cluster, Group: o.resource.Group, Resource: o.resource.Resource,
		Prefix: "/" + options.ResourcePrefix, Namespace: accessor.GetNamespace(), Name: accessor.GetName(),
	}
	body, err := runtime.Encode(options.StorageConfig.Codec, internal)
	if err != nil {
		return nil, err
	}
	if body, err = kubestore.Stored(ctx, e.stores.Transformer(o.resource), key.RowKey(), body); err != nil {
		return nil, err
	}
	all := []stored{{key, runtime.ContentTypeProtobuf, body}}
	if claimsOf := e.stores.Claims(o.resource); claimsOf != nil {
		claims, err := claimsOf(ctx, internal)
		if err != nil {
			return nil, err
		}
		for _, c := range claims {
			all = append(all, stored{c.Key, c.ContentType, c.Body})
		}
	}
	return all, nil
}

// complete sets the fields that the registry of Services sets during a create, and the status that kube-apiserver's
// controller of ServiceCIDRs sets right after a create.
func complete(object runtime.Object, now metav1.Time) {
	switch o := object.(type) {
	case *api.Service:
		o.Spec.ClusterIPs, o.Spec.IPFamilies = []string{o.Spec.ClusterIP}, []api.IPFamily{api.IPv4Protocol}
		if netutils.IsIPv6String(o.Spec.ClusterIP) {
			o.Spec.IPFamilies[0] = api.IPv6Protocol
		}
	case *networking.ServiceCIDR:
		o.Status.Conditions = []metav1.Condition{{
			Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, LastTransitionTime: now,
			Message: "Kubernetes default Service CIDR is ready",
		}}
	}
}
