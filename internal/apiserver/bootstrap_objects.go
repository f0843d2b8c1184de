package apiserver

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/registry/rest"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	applynetworkingv1 "k8s.io/client-go/applyconfigurations/networking/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/kubernetes/pkg/apis/rbac"
	"k8s.io/kubernetes/pkg/apis/scheduling"
	schedulingv1 "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	"k8s.io/kubernetes/pkg/registry/core/namespace"
	"k8s.io/kubernetes/pkg/registry/core/service"
	"k8s.io/kubernetes/pkg/registry/core/serviceaccount"
	"k8s.io/kubernetes/pkg/registry/networking/servicecidr"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrole"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"
	"k8s.io/kubernetes/pkg/registry/rbac/role"
	"k8s.io/kubernetes/pkg/registry/rbac/rolebinding"
	"k8s.io/kubernetes/pkg/registry/scheduling/priorityclass"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
	netutils "k8s.io/utils/net"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/apiserver/roles"
	"github.com/logplane/logplane/internal/apiserver/services"
)

// systemNamespaces are kube-apiserver's, and the one of node leases.
var systemNamespaces = []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease}

// bootstrapObjects returns every object, namespaces before what is in them.
func (s *Server) bootstrapObjects() ([]bootstrapObject, error) {
	objects := namespaceObjects()
	policy, err := policyObjects()
	if err != nil {
		return nil, err
	}
	objects = append(objects, policy...)
	for _, class := range schedulingv1.SystemPriorityClasses() {
		objects = append(objects, bootstrapObject{scheduling.Resource("priorityclasses"), priorityclass.Strategy, class})
	}
	last, err := s.serviceObjects()
	return append(objects, last...), err
}

func namespaceObjects() []bootstrapObject {
	var objects []bootstrapObject
	for _, name := range systemNamespaces {
		objects = append(objects,
			bootstrapObject{api.Resource("namespaces"), namespace.Strategy, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}},
			bootstrapObject{api.Resource("serviceaccounts"), serviceaccount.Strategy, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: name}}})
	}
	return objects
}

// policyObjects is upstream's RBAC policy. The rules of 'admin', 'edit' and 'view' are aggregated here,
// because no controller does it before the first request that needs them.
func policyObjects() ([]bootstrapObject, error) {
	var objects []bootstrapObject
	clusterRoles := append(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()...)
	if err := roles.AggregateAll(clusterRoles); err != nil {
		return nil, err
	}
	for i := range clusterRoles {
		objects = append(objects, bootstrapObject{rbac.Resource("clusterroles"), clusterrole.Strategy, &clusterRoles[i]})
	}
	bindings := append(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()...)
	for i := range bindings {
		objects = append(objects, bootstrapObject{rbac.Resource("clusterrolebindings"), clusterrolebinding.Strategy, &bindings[i]})
	}
	namespaceRoles, namespaceBindings := bootstrappolicy.NamespaceRoles(), bootstrappolicy.NamespaceRoleBindings()
	for _, ns := range slices.Sorted(maps.Keys(namespaceRoles)) {
		for _, r := range namespaceRoles[ns] {
			objects = append(objects, bootstrapObject{rbac.Resource("roles"), role.Strategy, r.DeepCopy()})
		}
	}
	for _, ns := range slices.Sorted(maps.Keys(namespaceBindings)) {
		for _, b := range namespaceBindings[ns] {
			objects = append(objects, bootstrapObject{rbac.Resource("rolebindings"), rolebinding.Strategy, b.DeepCopy()})
		}
	}
	return objects, nil
}

// serviceObjects are the range of cluster IPs and the service by which pods find this API: its first
// address. There are no endpoints, as an address of a function means nothing to a pod.
func (s *Server) serviceObjects() ([]bootstrapObject, error) {
	prefix, err := s.config.Services.Prefix()
	if err != nil {
		return nil, err
	}
	ip := services.First(prefix).String()
	policy := corev1.IPFamilyPolicySingleStack
	return []bootstrapObject{
		{networking.Resource("servicecidrs"), servicecidr.Strategy, &networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
			Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{prefix.String()}},
		}},
		{api.Resource("services"), service.Strategy, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{
				Name: "kubernetes", Namespace: metav1.NamespaceDefault,
				Labels: map[string]string{"component": "apiserver", "provider": "kubernetes"},
			},
			Spec: corev1.ServiceSpec{
				Type:           corev1.ServiceTypeClusterIP,
				ClusterIP:      ip,
				IPFamilyPolicy: &policy,
				Ports:          []corev1.ServicePort{{Name: "https", Protocol: corev1.ProtocolTCP, Port: 443, TargetPort: intstr.FromInt32(6443)}},
			},
		}},
	}, nil
}

// bootstrapManager is kube-apiserver's name where it says who manages the fields of the objects it makes.
const bootstrapManager = "kube-apiserver"

// manage says in an object that is about to be created who manages its fields, as the create handler does.
func manage(strategy rest.RESTCreateStrategy, kind schema.GroupVersionKind, object runtime.Object) (runtime.Object, error) {
	manager, err := newFieldManager(strategy, kind, "")
	if err != nil {
		return nil, err
	}
	empty, err := legacyscheme.Scheme.New(kind.GroupKind().WithVersion(runtime.APIVersionInternal))
	if err != nil {
		return nil, err
	}
	return manager.Update(empty, object, bootstrapManager)
}

func newFieldManager(strategy any, kind schema.GroupVersionKind, subresource string) (*managedfields.FieldManager, error) {
	var reset map[fieldpath.APIVersion]fieldpath.Filter
	if s, ok := strategy.(rest.ResetFieldsStrategy); ok {
		reset = fieldpath.NewExcludeFilterSetMap(s.GetResetFields())
	}
	return managedfields.NewDefaultFieldManager(resources.ConvertersOf(legacyscheme.Scheme), runtime.UnsafeObjectConvertor(legacyscheme.Scheme),
		legacyscheme.Scheme, legacyscheme.Scheme, kind, schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal}, subresource, reset)
}

// complete does what the registry of services and a controller of kube-apiserver do with or right after the create.
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
	manager, err := newFieldManager(servicecidr.StatusStrategy, kind, "status")
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
