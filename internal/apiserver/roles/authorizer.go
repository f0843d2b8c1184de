package roles

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

	"github.com/logplane/logplane/internal/apiserver/listers"
)

// Authorizer is upstream's authorizer over the index. Its lists of bindings hold only bindings that may apply to the
// user. It is safe for concurrent use.
type Authorizer struct{ upstream *rbac.RBACAuthorizer }

// Authorizer returns an authorizer over the index.
func (i *Index) Authorizer() Authorizer {
	l := lister{i, "role", "clusterrole"}
	return Authorizer{rbac.New(l, l, l, l)}
}

// Authorize implements authorizer.Authorizer. A request whose rules cannot be read fails; upstream would refuse such a
// request.
func (r Authorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	ctx, d := decide(ctx, a.GetUser())
	decided, reason, err := r.upstream.Authorize(ctx, a)
	if decided != authorizer.DecisionAllow {
		d.mustBeRead(ctx)
	}
	return decided, reason, err
}

// RulesFor implements authorizer.RuleResolver.
func (r Authorizer) RulesFor(ctx context.Context, who user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	ctx, d := decide(ctx, who)
	defer d.mustBeRead(ctx)
	return r.upstream.RulesFor(ctx, who, namespace)
}

// Resolver is upstream's resolver over the index. Upstream's registries use it to check that no user grants more rights
// than the user has. It is safe for concurrent use.
type Resolver struct {
	*validation.DefaultRuleResolver
}

var _ validation.AuthorizationRuleResolver = Resolver{}

// Resolver returns a resolver over the index.
func (i *Index) Resolver() Resolver {
	l := lister{i, "roles", "clusterroles"}
	return Resolver{validation.NewDefaultRuleResolver(l, l, l, l)}
}

// RulesFor implements validation.AuthorizationRuleResolver.
func (r Resolver) RulesFor(ctx context.Context, who user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	ctx, d := decide(ctx, who)
	defer d.mustBeRead(ctx)
	return r.DefaultRuleResolver.RulesFor(ctx, who, namespace)
}

// VisitRulesFor implements validation.AuthorizationRuleResolver.
func (r Resolver) VisitRulesFor(ctx context.Context, who user.Info, namespace string, visit func(fmt.Stringer, *rbacv1.PolicyRule, error) bool) {
	ctx, d := decide(ctx, who)
	defer d.mustBeRead(ctx)
	r.DefaultRuleResolver.VisitRulesFor(ctx, who, namespace, visit)
}

// decision is one question about a user. The decision is in the context, because upstream does not tell its listers
// which user the question is about.
type decision struct {
	user user.Info
	// err is the error that kept the question from being answered.
	err error
}

// mustBeRead panics (listers.Fail) if the question could not be answered.
func (d *decision) mustBeRead(ctx context.Context) {
	if d.err != nil {
		listers.Fail(ctx, fmt.Errorf("read the rules of RBAC: %w", d.err))
	}
}

type decisionKey struct{}

func decide(ctx context.Context, who user.Info) (context.Context, *decision) {
	d := &decision{user: who}
	return context.WithValue(ctx, decisionKey{}, d), d
}

// lister answers upstream's getters and listers from the index. role and clusterRole are the resource names in errors
// about a missing role: upstream's authorizer and upstream's registries use different names.
type lister struct {
	index             *Index
	role, clusterRole string
}

// ListClusterRoleBindings implements validation.ClusterRoleBindingLister.
func (l lister) ListClusterRoleBindings(ctx context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	return applying[rbacv1.ClusterRoleBinding](ctx, l.index, "")
}

// ListRoleBindings implements validation.RoleBindingLister.
func (l lister) ListRoleBindings(ctx context.Context, namespace string) ([]*rbacv1.RoleBinding, error) {
	return applying[rbacv1.RoleBinding](ctx, l.index, namespace)
}

// applying lists the bindings of the namespace that may apply to the user of the decision. If the namespace is empty,
// it lists ClusterRoleBindings.
func applying[T any](ctx context.Context, i *Index, namespace string) ([]*T, error) {
	d, ok := ctx.Value(decisionKey{}).(*decision)
	if !ok {
		return nil, errors.New("list bindings: the context does not say of which user")
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
func (l lister) GetRole(ctx context.Context, namespace, name string) (*rbacv1.Role, error) {
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
func (l lister) GetClusterRole(ctx context.Context, name string) (*rbacv1.ClusterRole, error) {
	g, err := l.grant(ctx, roleName{"", name})
	if err == nil && g.clusterRole == nil {
		err = apierrors.NewNotFound(rbacv1.Resource(l.clusterRole), name)
	}
	if err != nil {
		return nil, err
	}
	return g.clusterRole, nil
}

func (l lister) grant(ctx context.Context, name roleName) (*grant, error) {
	g, err := l.index.grantOf(ctx, name)
	if err == nil {
		return g, nil
	}
	d, ok := ctx.Value(decisionKey{}).(*decision)
	if ok && !listers.IsUndecodable(err) { // an undecodable role grants nothing, now or later
		d.err = err
	}
	return nil, err
}
