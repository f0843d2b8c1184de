package apiserver

import (
	"context"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	genericapiserver "k8s.io/apiserver/pkg/server"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
)

// reconcilePolicy gives existing roles and bindings what a newer version of Kubernetes adds to them, by
// upstream's own start-up hook, in process. Its context ends with the call.
func (s *Server) reconcilePolicy(ctx context.Context) error {
	_, hook, err := rbacrest.RESTStorageProvider{}.PostStartHook()
	if err != nil {
		return err
	}
	return hook(genericapiserver.PostStartHookContext{LoopbackClientConfig: s.loopback, Context: ctx})
}

// AggregateRules returns the rules that a role with an aggregation rule has by the labels of the others,
// as upstream's controller would write them: selector by selector, roles by name, without repeats.
func AggregateRules(role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) ([]rbacv1.PolicyRule, error) {
	all = slices.SortedFunc(slices.Values(all), func(a, b *rbacv1.ClusterRole) int { return strings.Compare(a.Name, b.Name) })
	rules := []rbacv1.PolicyRule{}
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return nil, fmt.Errorf("parse aggregation rule of %q: %w", role.Name, err)
		}
		for _, other := range all {
			if other.Name != role.Name && selector.Matches(labels.Set(other.Labels)) {
				rules = appendMissing(rules, other.Rules)
			}
		}
	}
	return rules, nil
}

func appendMissing(rules, more []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	for _, rule := range more {
		if !slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(r, rule) }) {
			rules = append(rules, rule)
		}
	}
	return rules
}

// aggregateAll aggregates in place until nothing changes, as 'admin' contains 'edit', which contains 'view'.
// The bound ends a cycle of roles, whose rules only grow and so are settled after as many rounds as there
// are roles.
func aggregateAll(roles []rbacv1.ClusterRole) error {
	all := make([]*rbacv1.ClusterRole, len(roles))
	for i := range roles {
		all[i] = &roles[i]
	}
	for range roles {
		changed := false
		for _, role := range all {
			if role.AggregationRule == nil {
				continue
			}
			rules, err := AggregateRules(role, all)
			if err != nil {
				return err
			}
			if !equality.Semantic.DeepEqual(rules, role.Rules) {
				role.Rules, changed = rules, true
			}
		}
		if !changed {
			return nil
		}
	}
	return nil
}
