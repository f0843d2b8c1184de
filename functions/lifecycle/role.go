package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/internal/apiserver/roles"
)

// aggregateRoles writes the rules of every ClusterRole that is aggregated from other roles, so that clients see the
// rules. The authorizer does not need the stored rules. A role that changes here may be part of another role. The event
// of the change makes the task run again for the other role.
func (l *life) aggregateRoles(ctx context.Context, _ task) error {
	list, err := l.client.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list cluster roles: %w", err)
	}
	all := make([]*rbacv1.ClusterRole, len(list.Items))
	for i := range list.Items {
		all[i] = &list.Items[i]
	}
	var failed []error
	for _, role := range all {
		if role.AggregationRule == nil || role.DeletionTimestamp != nil {
			continue
		}
		rules, err := roles.Aggregate(role, all)
		if err != nil {
			// Only the role's owner can correct the role, and the correction makes an event.
			slog.WarnContext(ctx, "a cluster role cannot be aggregated", "role", role.Name, "error", err)
			continue
		}
		if len(rules) == 0 && len(role.Rules) == 0 || equality.Semantic.DeepEqual(rules, role.Rules) {
			continue
		}
		changed := role.DeepCopy()
		changed.Rules = rules
		_, err = l.client.RbacV1().ClusterRoles().Update(ctx, changed, metav1.UpdateOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("update cluster role %q: %w", role.Name, err))
		}
	}
	return errors.Join(failed...)
}
