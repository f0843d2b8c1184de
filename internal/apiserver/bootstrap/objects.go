package bootstrap

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kube-aggregator/pkg/registry/apiservice"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/kubernetes/pkg/apis/rbac"
	"k8s.io/kubernetes/pkg/apis/scheduling"
	schedulingv1 "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	"k8s.io/kubernetes/pkg/registry/core/configmap"
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

	"github.com/logplane/logplane/internal/apiserver/aggregation"
	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/apiserver/namespaces"
	"github.com/logplane/logplane/internal/apiserver/roles"
	"github.com/logplane/logplane/internal/apiserver/services"
)

// object is a versioned object, with the resource and strategy of its registry.
type object struct {
	resource schema.GroupResource
	strategy rest.RESTCreateStrategy
	object   interface {
		runtime.Object
		metav1.Object
	}
}

// scheme returns the scheme of the object's type. Upstream's aggregator has its own scheme.
func (o object) scheme() *runtime.Scheme {
	if o.resource == aggregation.Resource {
		return aggregatorscheme.Scheme
	}
	return legacyscheme.Scheme
}

// systemNamespaces are the namespaces that kube-apiserver makes, and the namespace of node leases.
var systemNamespaces = []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease}

// objects returns all objects, each namespace before the objects in it.
func objects(ranges services.Ranges, rootCA []byte, bare bool) ([]object, error) {
	objects := namespaceObjects(rootCA, bare)
	policy, err := policyObjects()
	if err != nil {
		return nil, err
	}
	objects = append(objects, policy...)
	for _, class := range schedulingv1.SystemPriorityClasses() {
		objects = append(objects, object{scheduling.Resource("priorityclasses"), priorityclass.Strategy, class})
	}
	last, err := serviceObjects(ranges)
	for _, v := range aggregation.Builtin() {
		last = append(last, object{aggregation.Resource, apiservice.NewStrategy(aggregatorscheme.Scheme), v})
	}
	return append(objects, last...), err
}

func namespaceObjects(rootCA []byte, bare bool) []object {
	strategies := map[schema.GroupResource]rest.RESTCreateStrategy{
		api.Resource("serviceaccounts"): serviceaccount.Strategy, api.Resource("configmaps"): configmap.Strategy,
	}
	var objects []object
	for _, name := range systemNamespaces {
		objects = append(objects, object{api.Resource("namespaces"), namespace.Strategy, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}})
		if bare {
			continue
		}
		for _, d := range namespaces.Defaults(name, rootCA) {
			objects = append(objects, object{d.Resource, strategies[d.Resource], d.Object})
		}
	}
	return objects
}

// readsThePast returns a role for users who may 'view' a namespace. The role lets these users see who changed the
// objects that they may get.
func readsThePast() rbacv1.ClusterRole {
	return rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "logplane:aggregate-to-view", Labels: map[string]string{
			"kubernetes.io/bootstrapping": "rbac-defaults", "rbac.authorization.k8s.io/aggregate-to-view": "true"}},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{history.GroupName}, Resources: []string{"versions", "changes"}, Verbs: []string{"get", "list", "watch"}}},
	}
}

// writesTransactions returns the role and binding that let every authenticated user send transactions. Each operation
// of a transaction is authorized as a request of its own.
func writesTransactions() (rbacv1.ClusterRole, rbacv1.ClusterRoleBinding) {
	meta := metav1.ObjectMeta{Name: "logplane:transactions", Labels: map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"}}
	return rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{history.GroupName}, Resources: []string{"transactions", "plans"}, Verbs: []string{"create"}}}},
		rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: user.AllAuthenticated}}}
}

// policyObjects returns upstream's RBAC policy, and two roles of Logplane. The rules of 'admin', 'edit' and 'view' are
// aggregated here, because no controller aggregates rules before the first request needs them.
func policyObjects() ([]object, error) {
	var objects []object
	transactions, binding := writesTransactions()
	clusterRoles := slices.Concat(bootstrappolicy.ClusterRoles(), []rbacv1.ClusterRole{readsThePast(), transactions}, bootstrappolicy.ControllerRoles())
	if err := roles.AggregateAll(clusterRoles); err != nil {
		return nil, err
	}
	for i := range clusterRoles {
		objects = append(objects, object{rbac.Resource("clusterroles"), clusterrole.Strategy, &clusterRoles[i]})
	}
	bindings := append(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()...)
	bindings = append(bindings, binding)
	for i := range bindings {
		objects = append(objects, object{rbac.Resource("clusterrolebindings"), clusterrolebinding.Strategy, &bindings[i]})
	}
	namespaceRoles, namespaceBindings := bootstrappolicy.NamespaceRoles(), bootstrappolicy.NamespaceRoleBindings()
	for _, ns := range slices.Sorted(maps.Keys(namespaceRoles)) {
		for _, r := range namespaceRoles[ns] {
			objects = append(objects, object{rbac.Resource("roles"), role.Strategy, r.DeepCopy()})
		}
	}
	for _, ns := range slices.Sorted(maps.Keys(namespaceBindings)) {
		for _, b := range namespaceBindings[ns] {
			objects = append(objects, object{rbac.Resource("rolebindings"), rolebinding.Strategy, b.DeepCopy()})
		}
	}
	return objects, nil
}

// serviceObjects returns the range of cluster IPs, and the Service through which Pods find this API. The Service has
// the range's first address, but no endpoints, because Pods cannot use a function's address.
func serviceObjects(ranges services.Ranges) ([]object, error) {
	prefix, err := ranges.Prefix()
	if err != nil {
		return nil, err
	}
	ip := services.First(prefix).String()
	policy := corev1.IPFamilyPolicySingleStack
	return []object{
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
