package apiserver

import (
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/apis/rbac"
	rbacv1convert "k8s.io/kubernetes/pkg/apis/rbac/v1"
	clusterrolepolicybased "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/policybased"
	clusterrolestore "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/storage"
	clusterrolebindingpolicybased "k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding/policybased"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	rolepolicybased "k8s.io/kubernetes/pkg/registry/rbac/role/policybased"
	rolebindingpolicybased "k8s.io/kubernetes/pkg/registry/rbac/rolebinding/policybased"
)

// aggregatedRoles gives a ClusterRole with an aggregationRule its rules when it is read. Upstream has a
// controller write them into the object; here they are what the selected roles say in the newest view.
type aggregatedRoles struct{ rows *indexer }

// all returns every ClusterRole by name. One that nobody can decode grants nothing.
func (a aggregatedRoles) all() ([]*rbacv1.ClusterRole, error) {
	objects, err := a.rows.scan(a.rows.prefix)
	if err != nil {
		return nil, fmt.Errorf("list ClusterRoles: %w", err)
	}
	roles := make([]*rbacv1.ClusterRole, len(objects))
	for i, object := range objects {
		roles[i] = object.(*rbacv1.ClusterRole)
	}
	return roles, nil
}

// rulesOf returns what a role grants.
func (a aggregatedRoles) rulesOf(role *rbacv1.ClusterRole) ([]rbacv1.PolicyRule, error) {
	if role.AggregationRule == nil {
		return role.Rules, nil
	}
	all, err := a.all()
	if err != nil {
		return nil, err
	}
	return aggregate(role, all, map[string]bool{})
}

// aggregate collects the rules of the selected roles, which may be aggregated themselves ('edit' is part of
// 'admin'). Seen holds what has been collected already, so that a circle ends.
func aggregate(role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole, seen map[string]bool) ([]rbacv1.PolicyRule, error) {
	if role.AggregationRule == nil {
		return role.Rules, nil
	}
	seen[role.Name] = true
	var rules []rbacv1.PolicyRule
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return nil, fmt.Errorf("aggregate ClusterRole %s: %w", role.Name, err)
		}
		for _, part := range all {
			if seen[part.Name] || !selector.Matches(labels.Set(part.Labels)) {
				continue
			}
			seen[part.Name] = true
			more, err := aggregate(part, all, seen)
			if err != nil {
				return nil, err
			}
			rules = append(rules, more...)
		}
	}
	return rules, nil
}

// newRBACStorage is upstream's, whose ClusterRoles are read with their aggregated rules, which clients see. Upstream's check
// that nobody grants more than he has compares with them too, and asks the index for the bindings of him who grants.
func newRBACStorage(s *Server) (genericapiserver.APIGroupInfo, error) {
	info, err := rbacrest.RESTStorageProvider{Authorizer: s.generic.Authorization.Authorizer}.NewRESTStorage(s.generic.MergedResourceConfig, s.stores)
	if err != nil {
		return info, err
	}
	authorizer, resolver := s.generic.Authorization.Authorizer, newRBACResolver(s.rules)
	resources := info.VersionedResourcesStorageMap["v1"]
	for name, storage := range resources {
		switch checked := storage.(type) {
		case *rolepolicybased.Storage:
			resources[name] = rolepolicybased.NewStorage(checked.StandardStorage, authorizer, resolver)
		case *rolebindingpolicybased.Storage:
			resources[name] = rolebindingpolicybased.NewStorage(checked.StandardStorage, authorizer, resolver)
		case *clusterrolebindingpolicybased.Storage:
			resources[name] = clusterrolebindingpolicybased.NewStorage(checked.StandardStorage, authorizer, resolver)
		case *clusterrolepolicybased.Storage:
			store, ok := checked.StandardStorage.(*clusterrolestore.REST)
			if !ok {
				return info, fmt.Errorf("find the store of clusterroles: %T", checked.StandardStorage)
			}
			store.Decorator = s.rules.aggregated.decorate
			resources[name] = clusterrolepolicybased.NewStorage(store, authorizer, resolver)
		default:
			return info, fmt.Errorf("find the store of %s: %T", name, storage)
		}
	}
	return info, nil
}

// decorate fills the rules of an internal ClusterRole, or of a list of them.
func (a aggregatedRoles) decorate(obj runtime.Object) {
	var all []*rbacv1.ClusterRole // read once, if any role needs it
	fill := func(role *rbac.ClusterRole) {
		if role.AggregationRule == nil {
			return
		}
		var err error
		if all == nil {
			all, err = a.all()
		}
		if err == nil {
			role.Rules, err = aggregatedInternal(role, all)
		}
		if err != nil {
			panic(unreadable{err}) // upstream's hook has no place for an error
		}
	}
	switch o := obj.(type) {
	case *rbac.ClusterRole:
		fill(o)
	case *rbac.ClusterRoleList:
		for i := range o.Items {
			fill(&o.Items[i])
		}
	}
}

func aggregatedInternal(role *rbac.ClusterRole, all []*rbacv1.ClusterRole) ([]rbac.PolicyRule, error) {
	var external rbacv1.ClusterRole
	var filled rbac.ClusterRole
	if err := rbacv1convert.Convert_rbac_ClusterRole_To_v1_ClusterRole(role, &external, nil); err != nil {
		return nil, err
	}
	rules, err := aggregate(&external, all, map[string]bool{})
	if err != nil {
		return nil, err
	}
	external.Rules = distinct(rules)
	err = rbacv1convert.Convert_v1_ClusterRole_To_rbac_ClusterRole(external.DeepCopy(), &filled, nil)
	return filled.Rules, err
}

func distinct(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	var all []rbacv1.PolicyRule
	for _, rule := range rules {
		if !slices.ContainsFunc(all, func(r rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(r, rule) }) {
			all = append(all, rule)
		}
	}
	return all
}
