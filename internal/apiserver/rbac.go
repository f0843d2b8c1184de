package apiserver

import (
	"context"
	"errors"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
)

// rbacAuthorizer is upstream's, whose lists of bindings hold only those that may apply to the user.
type rbacAuthorizer struct{ upstream *rbac.RBACAuthorizer }

func newRBACAuthorizer(i *rbacIndex) rbacAuthorizer {
	l := rbacLister{i, "role", "clusterrole"}
	return rbacAuthorizer{rbac.New(l, l, l, l)}
}

// Authorize implements authorizer.Authorizer. What cannot be read is an error: upstream would take it for a refusal.
func (r rbacAuthorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	ctx, d := decide(ctx, a.GetUser())
	decided, reason, err := r.upstream.Authorize(ctx, a)
	if decided != authorizer.DecisionAllow && d.err != nil {
		err = fmt.Errorf("read the rules of RBAC: %w", d.err)
	}
	return decided, reason, err
}

// RulesFor implements authorizer.RuleResolver.
func (r rbacAuthorizer) RulesFor(ctx context.Context, who user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	ctx, _ = decide(ctx, who)
	return r.upstream.RulesFor(ctx, who, namespace)
}

// rbacResolver is upstream's, by which nobody grants more than he has, over the same lists.
type rbacResolver struct {
	*validation.DefaultRuleResolver
}

var _ validation.AuthorizationRuleResolver = rbacResolver{}

func newRBACResolver(i *rbacIndex) rbacResolver {
	l := rbacLister{i, "roles", "clusterroles"}
	return rbacResolver{validation.NewDefaultRuleResolver(l, l, l, l)}
}

// RulesFor implements validation.AuthorizationRuleResolver.
func (r rbacResolver) RulesFor(ctx context.Context, who user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	ctx, _ = decide(ctx, who)
	return r.DefaultRuleResolver.RulesFor(ctx, who, namespace)
}

// VisitRulesFor implements validation.AuthorizationRuleResolver.
func (r rbacResolver) VisitRulesFor(ctx context.Context, who user.Info, namespace string, visit func(fmt.Stringer, *rbacv1.PolicyRule, error) bool) {
	ctx, _ = decide(ctx, who)
	r.DefaultRuleResolver.VisitRulesFor(ctx, who, namespace, visit)
}

// decision is one question about a user, whom upstream does not name to its listers.
type decision struct {
	user user.Info
	// err is why the question could not be answered.
	err error
}

type decisionKey struct{}

func decide(ctx context.Context, who user.Info) (context.Context, *decision) {
	d := &decision{user: who}
	return context.WithValue(ctx, decisionKey{}, d), d
}

// rbacLister answers upstream's getters and listers from the index. Errors call a role that is missing by these names,
// which upstream's authorizer and its registries do not have in common.
type rbacLister struct {
	index             *rbacIndex
	role, clusterRole string
}

// ListClusterRoleBindings implements validation.ClusterRoleBindingLister.
func (l rbacLister) ListClusterRoleBindings(ctx context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	return applying[rbacv1.ClusterRoleBinding](ctx, l.index, "")
}

// ListRoleBindings implements validation.RoleBindingLister.
func (l rbacLister) ListRoleBindings(ctx context.Context, namespace string) ([]*rbacv1.RoleBinding, error) {
	return applying[rbacv1.RoleBinding](ctx, l.index, namespace)
}

// applying lists the bindings, of the cluster if the namespace is empty, that may apply to the user who is decided about.
func applying[T any](ctx context.Context, i *rbacIndex, namespace string) ([]*T, error) {
	d, ok := ctx.Value(decisionKey{}).(*decision)
	if !ok {
		return nil, errors.New("list bindings: of which user, nobody said")
	}
	found, err := i.bindingsOf(ctx, d.user, namespace)
	if err != nil {
		d.err = err
		return nil, err
	}
	objects := make([]*T, len(found))
	for n, b := range found {
		objects[n] = b.object.(*T)
	}
	return objects, nil
}

// GetRole implements validation.RoleGetter.
func (l rbacLister) GetRole(ctx context.Context, namespace, name string) (*rbacv1.Role, error) {
	g, err := l.grant(ctx, roleName{namespace, name})
	if err == nil && g.role == nil {
		err = apierrors.NewNotFound(rbacv1.Resource(l.role), name)
	}
	if err != nil {
		return nil, err
	}
	return g.role, nil
}

// GetClusterRole implements validation.ClusterRoleGetter.
func (l rbacLister) GetClusterRole(ctx context.Context, name string) (*rbacv1.ClusterRole, error) {
	g, err := l.grant(ctx, roleName{"", name})
	if err == nil && g.clusterRole == nil {
		err = apierrors.NewNotFound(rbacv1.Resource(l.clusterRole), name)
	}
	if err != nil {
		return nil, err
	}
	return g.clusterRole, nil
}

func (l rbacLister) grant(ctx context.Context, name roleName) (*grant, error) {
	g, err := l.index.grantOf(ctx, name)
	if err == nil {
		return g, nil
	}
	if undecodable := (*undecodable)(nil); !errors.As(err, &undecodable) { // that grants nothing, for good
		if d, ok := ctx.Value(decisionKey{}).(*decision); ok {
			d.err = err
		}
	}
	return nil, err
}
