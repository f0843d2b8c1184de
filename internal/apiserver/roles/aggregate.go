package roles

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/rbac"
	rbacv1convert "k8s.io/kubernetes/pkg/apis/rbac/v1"
	clusterrolestore "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/storage"

	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/kubestore/fanout"
)

// aggregatedRoles fills in the rules of a ClusterRole with an aggregation rule, whenever the role is read. It takes the
// rules of the selected roles in the newest view. Upstream's controller instead writes the rules into the stored
// object, at a later time.
type aggregatedRoles struct{ rows *listers.Indexer }

// all returns every ClusterRole by name. A role that cannot be decoded is left out, and grants nothing.
func (a aggregatedRoles) all() ([]*rbacv1.ClusterRole, error) { return rolesOf(a.rows.All()) }

func rolesOf(objects []any, err error) ([]*rbacv1.ClusterRole, error) {
	if err != nil {
		return nil, fmt.Errorf("list ClusterRoles: %w", err)
	}
	roles := make([]*rbacv1.ClusterRole, len(objects))
	for i, object := range objects {
		roles[i] = object.(*rbacv1.ClusterRole)
	}
	return roles, nil
}

// rulesOf returns the rules of a role, including aggregated rules.
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

// aggregate collects the rules of the selected roles, which may be aggregated themselves ('edit' is part of 'admin').
// seen has the roles that have been collected already, so that a cycle ends.
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

// fillIn fills in the rules of an internal ClusterRole, or of a list of ClusterRoles.
func fillIn(obj runtime.Object, read func() ([]*rbacv1.ClusterRole, error)) error {
	var all []*rbacv1.ClusterRole // read once, if any role needs it
	fill := func(role *rbac.ClusterRole) (err error) {
		if role.AggregationRule == nil {
			return nil
		}
		if all == nil {
			if all, err = read(); err != nil {
				return err
			}
		}
		role.Rules, err = aggregatedInternal(role, all)
		return err
	}
	switch o := obj.(type) {
	case *rbac.ClusterRole:
		return fill(o)
	case *rbac.ClusterRoleList:
		for i := range o.Items {
			if err := fill(&o.Items[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// registry is the registry of ClusterRoles, which fills in aggregated rules. Upstream's hook, the store's Decorator,
// cannot do this: the hook does not know which request it serves, does not see into an object that many watches share,
// and cannot return an error.
type registry struct {
	*clusterrolestore.REST
	aggregated aggregatedRoles
}

// Get implements rest.Getter.
func (r registry) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	role, err := r.stored().Get(ctx, name, options)
	return r.filled(ctx, role, err)
}

// List implements rest.Lister.
func (r registry) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	list, err := r.stored().List(ctx, options)
	return r.filled(ctx, list, err)
}

// stored returns upstream's registry without the marker that takes the hook's place.
func (r registry) stored() *genericregistry.Store {
	store := *r.Store
	store.Decorator = nil
	return &store
}

// Create implements rest.Creater.
func (r registry) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, o *metav1.CreateOptions) (runtime.Object, error) {
	created, err := r.stored().Create(ctx, obj, validate, o)
	return r.filled(ctx, created, err)
}

// Update implements rest.Updater.
func (r registry) Update(ctx context.Context, name string, obj rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, force bool, o *metav1.UpdateOptions) (runtime.Object, bool, error) {
	updated, created, err := r.stored().Update(ctx, name, obj, create, update, force, o)
	updated, err = r.filled(ctx, updated, err)
	return updated, created, err
}

// Delete implements rest.GracefulDeleter.
func (r registry) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, o *metav1.DeleteOptions) (runtime.Object, bool, error) {
	deleted, now, err := r.stored().Delete(ctx, name, validate, o)
	deleted, err = r.filled(ctx, deleted, err)
	return deleted, now, err
}

// DeleteCollection implements rest.CollectionDeleter.
func (r registry) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, o *metav1.DeleteOptions, of *internalversion.ListOptions) (runtime.Object, error) {
	deleted, err := r.stored().DeleteCollection(ctx, validate, o, of)
	return r.filled(ctx, deleted, err)
}

// filled returns the result of upstream's registry, with the aggregated rules filled in.
func (r registry) filled(ctx context.Context, obj runtime.Object, err error) (runtime.Object, error) {
	if err != nil {
		return nil, err
	}
	if err := r.fillIn(ctx, obj); err != nil {
		return nil, kubestore.Answer(ctx, err)
	}
	return obj, nil
}

// Watch implements rest.Watcher. A watch ends when rules cannot be read. The client watches again from its last
// revision.
func (r registry) Watch(ctx context.Context, options *internalversion.ListOptions) (watch.Interface, error) {
	stored, err := r.stored().Watch(ctx, options)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &filledWatch{stored, cancel, make(chan watch.Event)}
	go w.run(ctx, func(obj runtime.Object) error { return r.fillIn(ctx, obj) })
	return w, nil
}

// fillIn fills in the rules as of the request's moment.
func (r registry) fillIn(ctx context.Context, obj runtime.Object) error {
	past := kubestore.PastFrom(ctx)
	if past == nil {
		return fillIn(obj, r.aggregated.all)
	}
	return fillIn(obj, func() ([]*rbacv1.ClusterRole, error) { return rolesOf(r.aggregated.rows.AllAt(ctx, past)) })
}

// filledWatch is a watch of stored ClusterRoles that fills in the aggregated rules.
type filledWatch struct {
	watch.Interface
	cancel  context.CancelFunc
	results chan watch.Event
}

// Stop implements watch.Interface.
func (w *filledWatch) Stop() {
	w.Interface.Stop()
	w.cancel()
}

// ResultChan implements watch.Interface.
func (w *filledWatch) ResultChan() <-chan watch.Event { return w.results }

func (w *filledWatch) run(ctx context.Context, fill func(runtime.Object) error) {
	defer close(w.results)
	defer w.Stop()
	for e := range w.Interface.ResultChan() {
		if err := fanout.Decorate(e.Object, fill); err != nil {
			slog.WarnContext(ctx, "a watch of ClusterRoles ends, because the rules of one cannot be read", "error", err)
			return
		}
		select {
		case w.results <- e:
		case <-ctx.Done():
			return
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
	external.Rules = appendMissing(nil, rules)
	err = rbacv1convert.Convert_v1_ClusterRole_To_rbac_ClusterRole(external.DeepCopy(), &filled, nil)
	return filled.Rules, err
}

// Aggregate returns the rules that upstream's controller would write into a role with an aggregation rule: selector by
// selector, in the order of the roles' names, without repeats. It takes the selected roles' stored rules.
func Aggregate(role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) ([]rbacv1.PolicyRule, error) {
	all = slices.SortedFunc(slices.Values(all), byRoleName)
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

// AggregateAll fills in the rules of all roles with an aggregation rule, as upstream's controller would in the end.
// 'admin' contains 'edit', which contains 'view'.
func AggregateAll(roles []rbacv1.ClusterRole) error {
	all := make([]*rbacv1.ClusterRole, len(roles))
	for i := range roles {
		all[i] = &roles[i]
	}
	slices.SortFunc(all, byRoleName)
	for _, role := range all {
		if role.AggregationRule == nil {
			continue
		}
		rules, err := aggregate(role, all, map[string]bool{})
		if err != nil {
			return err
		}
		role.Rules = appendMissing([]rbacv1.PolicyRule{}, rules)
	}
	return nil
}

func byRoleName(a, b *rbacv1.ClusterRole) int { return strings.Compare(a.Name, b.Name) }
