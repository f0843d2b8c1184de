package apiserver

import (
	"context"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/kubernetes/pkg/apis/rbac"
	rbacv1convert "k8s.io/kubernetes/pkg/apis/rbac/v1"
	clusterrolepolicybased "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/policybased"
	clusterrolestore "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/storage"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
)

// aggregatedRoles gives a ClusterRole with an aggregationRule its rules when it is read. Upstream has a
// controller write them into the object; here they are what the selected roles say in the newest view.
type aggregatedRoles struct{ roles rbaclisters.ClusterRoleLister }

// GetClusterRole implements upstream's rule resolver.
func (a aggregatedRoles) GetClusterRole(_ context.Context, name string) (*rbacv1.ClusterRole, error) {
	role, err := a.roles.Get(name)
	if err != nil || role.AggregationRule == nil {
		return role, err
	}
	resolved := *role
	resolved.Rules, err = a.rules(role, map[string]bool{})
	return &resolved, err
}

// rules collects those of the selected roles, which may be aggregated themselves ('edit' is part of
// 'admin'). Seen holds what has been collected already, so that a circle ends.
func (a aggregatedRoles) rules(role *rbacv1.ClusterRole, seen map[string]bool) ([]rbacv1.PolicyRule, error) {
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
		selected, err := a.roles.List(selector)
		if err != nil {
			return nil, fmt.Errorf("aggregate ClusterRole %s: %w", role.Name, err)
		}
		slices.SortFunc(selected, func(x, y *rbacv1.ClusterRole) int { return strings.Compare(x.Name, y.Name) })
		for _, part := range selected {
			if seen[part.Name] {
				continue
			}
			seen[part.Name] = true
			more, err := a.rules(part, seen)
			if err != nil {
				return nil, err
			}
			rules = append(rules, more...)
		}
	}
	return rules, nil
}

// newRBACStorage is upstream's, whose ClusterRoles are read with their aggregated rules: clients see them,
// and upstream's check that nobody grants more than he has must compare with them.
func newRBACStorage(s *Server) (genericapiserver.APIGroupInfo, error) {
	info, err := rbacrest.RESTStorageProvider{Authorizer: s.generic.Authorization.Authorizer}.NewRESTStorage(s.generic.MergedResourceConfig, s.stores)
	if err != nil {
		return info, err
	}
	checked, ok := info.VersionedResourcesStorageMap["v1"]["clusterroles"].(*clusterrolepolicybased.Storage)
	if !ok {
		return info, fmt.Errorf("find the store of clusterroles: %T", info.VersionedResourcesStorageMap["v1"]["clusterroles"])
	}
	store, ok := checked.StandardStorage.(*clusterrolestore.REST)
	if !ok {
		return info, fmt.Errorf("find the store of clusterroles: %T", checked.StandardStorage)
	}
	store.Decorator = aggregatedRoles{s.informers.Rbac().V1().ClusterRoles().Lister()}.decorate
	return info, nil
}

// decorate fills the rules of an internal ClusterRole, or of a list of them.
func (a aggregatedRoles) decorate(obj runtime.Object) {
	switch o := obj.(type) {
	case *rbac.ClusterRole:
		a.fill(o)
	case *rbac.ClusterRoleList:
		for i := range o.Items {
			a.fill(&o.Items[i])
		}
	}
}

func (a aggregatedRoles) fill(role *rbac.ClusterRole) {
	if role.AggregationRule == nil {
		return
	}
	var external rbacv1.ClusterRole
	var filled rbac.ClusterRole
	err := rbacv1convert.Convert_rbac_ClusterRole_To_v1_ClusterRole(role, &external, nil)
	if err == nil {
		external.Rules, err = a.rules(&external, map[string]bool{})
	}
	external.Rules = distinct(external.Rules)
	if err == nil {
		err = rbacv1convert.Convert_v1_ClusterRole_To_rbac_ClusterRole(external.DeepCopy(), &filled, nil)
	}
	if err != nil {
		panic(unreadable{err}) // upstream's hook has no place for an error
	}
	role.Rules = filled.Rules
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
