package bootstrap

import (
	"context"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	applynetworkingv1 "k8s.io/client-go/applyconfigurations/networking/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/kubernetes/pkg/registry/networking/servicecidr"
	netutils "k8s.io/utils/net"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
)

// stored is an object, or a claim, as it is to be stored.
type stored struct {
	key         eventlog.Key
	contentType string
	body        []byte
}

// encoder encodes objects as they are stored.
type encoder struct {
	cluster string
	stores  *resources.Stores
	now     metav1.Time
}

// encode does to the object what the registry's create would do, except validation. The objects are constants, and a
// test puts each one back through the API. The result is the object and then its claims.
func (e encoder) encode(ctx context.Context, o object, options generic.RESTOptions) ([]stored, error) {
	scheme := o.scheme()
	scheme.Default(o.object)
	kinds, _, err := scheme.ObjectKinds(o.object)
	if err != nil {
		return nil, err
	}
	internal, err := scheme.UnsafeConvertToVersion(o.object, runtime.InternalGroupVersioner)
	if err != nil {
		return nil, err
	}
	if internal, err = manage(scheme, o.strategy, kinds[0], internal); err != nil {
		return nil, err
	}
	accessor, err := meta.Accessor(internal)
	if err != nil {
		return nil, err
	}
	rest.FillObjectMetaSystemFields(accessor)
	accessor.SetCreationTimestamp(e.now)
	o.strategy.PrepareForCreate(ctx, internal)
	o.strategy.Canonicalize(internal)
	if internal, err = complete(internal, e.now); err != nil {
		return nil, err
	}
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
	claims, err := e.claims(ctx, o.resource, internal)
	return append(all, claims...), err
}

func (e encoder) claims(ctx context.Context, resource schema.GroupResource, object runtime.Object) ([]stored, error) {
	name := e.stores.Claims(resource)
	if name == nil {
		return nil, nil
	}
	claims, err := name(ctx, object)
	if err != nil {
		return nil, err
	}
	all := make([]stored, len(claims))
	for i, one := range claims {
		all[i] = stored{one.Key, one.ContentType, one.Body}
	}
	return all, nil
}

// managerName is the name under which kube-apiserver manages the fields of the objects that it makes.
const managerName = "kube-apiserver"

// manage records in a new object who manages its fields, as the create handler does.
func manage(scheme *runtime.Scheme, strategy rest.RESTCreateStrategy, kind schema.GroupVersionKind, object runtime.Object) (runtime.Object, error) {
	fields, err := newFieldManager(scheme, strategy, kind, "")
	if err != nil {
		return nil, err
	}
	empty, err := scheme.New(kind.GroupKind().WithVersion(runtime.APIVersionInternal))
	if err != nil {
		return nil, err
	}
	return fields.Update(empty, object, managerName)
}

func newFieldManager(scheme *runtime.Scheme, strategy any, kind schema.GroupVersionKind, subresource string) (*managedfields.FieldManager, error) {
	var reset map[fieldpath.APIVersion]fieldpath.Filter
	if s, ok := strategy.(rest.ResetFieldsStrategy); ok {
		reset = fieldpath.NewExcludeFilterSetMap(s.GetResetFields())
	}
	types, versions := resources.ManagedBy(scheme)
	return managedfields.NewDefaultFieldManager(types, versions, scheme, scheme, kind,
		schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal}, subresource, reset)
}

// complete does what the registry of services does during a create, and what a controller of kube-apiserver does right
// after one.
func complete(object runtime.Object, now metav1.Time) (runtime.Object, error) {
	switch o := object.(type) {
	case *api.Service:
		o.Spec.ClusterIPs, o.Spec.IPFamilies = []string{o.Spec.ClusterIP}, []api.IPFamily{api.IPv4Protocol}
		if netutils.IsIPv6String(o.Spec.ClusterIP) {
			o.Spec.IPFamilies[0] = api.IPv6Protocol
		}
	case *networking.ServiceCIDR:
		return applyReady(o, now)
	}
	return object, nil
}

func applyReady(cidr *networking.ServiceCIDR, now metav1.Time) (runtime.Object, error) {
	kind := networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR")
	manager, err := newFieldManager(legacyscheme.Scheme, servicecidr.StatusStrategy, kind, "status")
	if err != nil {
		return nil, err
	}
	applied, err := runtime.DefaultUnstructuredConverter.ToUnstructured(applynetworkingv1.ServiceCIDR(cidr.Name).WithStatus(
		applynetworkingv1.ServiceCIDRStatus().WithConditions(applymetav1.Condition().
			WithType(networkingv1.ServiceCIDRConditionReady).WithStatus(metav1.ConditionTrue).WithLastTransitionTime(now).
			WithMessage("Kubernetes default Service CIDR is ready"))))
	if err != nil {
		return nil, err
	}
	return manager.Apply(cidr, &unstructured.Unstructured{Object: applied}, "kubernetes-service-cidr-controller", true)
}
