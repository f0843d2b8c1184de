package admission

import (
	"context"
	"fmt"
	"sort"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/generic"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/logplane/logplane/internal/apiserver/listers"
)

// policyKind is one of the two kinds of policies: policies P with bindings B, compiled to E. Dynamic's mu guards it.
type policyKind[P, B interface {
	runtime.Object
	metav1.Object
}, E generic.Evaluator] struct {
	// policies and bindings read the objects of the two types.
	policies, bindings *listers.Indexer
	// policyOf returns the name of a binding's policy. paramsOf returns the kind of a policy's params, nil for a policy
	// without params.
	policyOf func(B) string
	paramsOf func(P) *admissionregistrationv1.ParamKind
	compile  func(P) E
	// compiled has the policies of the last rules, by name.
	compiled map[string]compiledPolicy[E]
}

// compiledPolicy is a policy at one revision.
type compiledPolicy[E any] struct {
	uid       types.UID
	revision  string
	evaluator E
}

// read returns the policies that are bound, with their bindings, in the order of the policies' names. A policy that was
// compiled for the last rules and has not changed is not compiled again. The caller holds mu.
func (k *policyKind[P, B, E]) read(d *Dynamic) ([]generic.PolicyHook[P, B, E], error) {
	all, err := k.bindings.All()
	if err != nil {
		return nil, err
	}
	bindings := map[string][]B{}
	for _, object := range all {
		binding := object.(B)
		bindings[k.policyOf(binding)] = append(bindings[k.policyOf(binding)], binding)
	}
	compiled := map[string]compiledPolicy[E]{}
	var hooks []generic.PolicyHook[P, B, E]
	for name, bound := range bindings {
		object, found, err := k.policies.Read(name)
		if err != nil {
			return nil, err
		}
		if !found {
			continue // the policy may be created after its binding
		}
		policy := object.(P)
		known := k.compiled[name]
		if known.uid != policy.GetUID() || known.revision != policy.GetResourceVersion() {
			d.compilations++
			known = compiledPolicy[E]{policy.GetUID(), policy.GetResourceVersion(), k.compile(policy)}
		}
		compiled[name] = known
		hook := generic.PolicyHook[P, B, E]{Policy: policy, Bindings: bound, Evaluator: known.evaluator}
		if kind := k.paramsOf(policy); kind != nil {
			hook.ParamInformer, hook.ParamScope, err = d.paramsOf(kind)
			if meta.IsNoMatchError(err) {
				hook.ConfigurationError, err = err, nil
			}
			if err != nil {
				return nil, err
			}
		}
		hooks = append(hooks, hook)
	}
	sort.Slice(hooks, func(i, j int) bool { return hooks[i].Policy.GetName() < hooks[j].Policy.GetName() })
	k.compiled = compiled
	return hooks, nil
}

// newCompiler makes the compiler of one policy, with the policy's variables.
func newCompiler(variables []admissionregistrationv1.Variable, declared cel.OptionalVariableDeclarations) (*cel.CompositedCompiler, error) {
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		return nil, err
	}
	var named []cel.NamedExpressionAccessor
	for _, v := range variables {
		named = append(named, &validating.Variable{Name: v.Name, Expression: v.Expression})
	}
	compiler.CompileAndStoreVariables(named, declared, environment.StoredExpressions)
	return compiler, nil
}

// matcherOf compiles the conditions under which a policy applies. It returns nil if the policy always applies.
func matcherOf(compiler *cel.CompositedCompiler, conditions []admissionregistrationv1.MatchCondition, declared cel.OptionalVariableDeclarations,
	failurePolicy *admissionregistrationv1.FailurePolicyType, name string,
) matchconditions.Matcher {
	if len(conditions) == 0 {
		return nil
	}
	var matches []cel.ExpressionAccessor
	for i := range conditions {
		matches = append(matches, (*matchconditions.MatchCondition)(&conditions[i]))
	}
	return matchconditions.NewMatcher(compiler.CompileCondition(matches, declared, environment.StoredExpressions), failurePolicy, "policy", "validate", name)
}

// compileMutating compiles a mutating policy like upstream's plugin. The plugin's function is not exported.
func compileMutating(policy *mutating.Policy) mutating.PolicyEvaluator {
	declared := cel.OptionalVariableDeclarations{HasParams: policy.Spec.ParamKind != nil, HasAuthorizer: true}
	compiler, err := newCompiler(policy.Spec.Variables, declared)
	if err != nil {
		return mutating.PolicyEvaluator{Error: err}
	}
	made := mutating.PolicyEvaluator{CompositedCompiler: compiler}
	made.Matcher = matcherOf(compiler, policy.Spec.MatchConditions, declared, policy.Spec.FailurePolicy, policy.Name)
	declared.HasPatchTypes = true
	for _, m := range policy.Spec.Mutations {
		switch {
		case m.PatchType == admissionregistrationv1.PatchTypeJSONPatch && m.JSONPatch != nil:
			compiled := compiler.CompileMutatingEvaluator(&patch.JSONPatchCondition{Expression: m.JSONPatch.Expression}, declared, environment.StoredExpressions)
			made.Mutators = append(made.Mutators, patch.NewJSONPatcher(compiled))
		case m.PatchType == admissionregistrationv1.PatchTypeApplyConfiguration && m.ApplyConfiguration != nil:
			condition := &patch.ApplyConfigurationCondition{Expression: m.ApplyConfiguration.Expression}
			compiled := compiler.CompileMutatingEvaluator(condition, declared, environment.StoredExpressions)
			made.Mutators = append(made.Mutators, patch.NewApplyConfigurationPatcher(compiled))
		}
	}
	return made
}

// compileValidating compiles a validating policy like upstream's plugin. The plugin's function is not exported. An
// expression that cannot be compiled becomes an error when a request comes, and then the policy's failure policy
// decides.
func compileValidating(policy *validating.Policy) validating.PolicyEvaluator {
	declared := cel.OptionalVariableDeclarations{HasParams: policy.Spec.ParamKind != nil, HasAuthorizer: true}
	inMessages := cel.OptionalVariableDeclarations{HasParams: declared.HasParams}
	failurePolicy := policy.Spec.FailurePolicy
	compiler, err := newCompiler(policy.Spec.Variables, declared)
	if err != nil {
		return validating.NewValidator(nil, nil, nil, nil, failurePolicy, err)
	}
	condition := func(expressions []cel.ExpressionAccessor, declared cel.OptionalVariableDeclarations) cel.ConditionEvaluator {
		return compiler.CompileCondition(expressions, declared, environment.StoredExpressions)
	}
	matcher := matcherOf(compiler, policy.Spec.MatchConditions, declared, failurePolicy, policy.Name)
	validations, messages := make([]cel.ExpressionAccessor, len(policy.Spec.Validations)), make([]cel.ExpressionAccessor, len(policy.Spec.Validations))
	for i, v := range policy.Spec.Validations {
		validations[i] = &validating.ValidationCondition{Expression: v.Expression, Message: v.Message, Reason: v.Reason}
		if v.MessageExpression != "" {
			messages[i] = &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}
		}
	}
	var annotations []cel.ExpressionAccessor
	for _, a := range policy.Spec.AuditAnnotations {
		annotations = append(annotations, &validating.AuditAnnotationCondition{Key: a.Key, ValueExpression: a.ValueExpression})
	}
	return validating.NewValidator(condition(validations, declared), matcher, condition(annotations, declared), condition(messages, inMessages), failurePolicy, nil)
}

// paramsOf returns an informer that reads the params of a kind. Params of a built-in kind come from a lister, and
// params of a custom kind through the API. If the kind is not served, the error is a meta.NoKindMatchError.
func (d *Dynamic) paramsOf(kind *admissionregistrationv1.ParamKind) (informers.GenericInformer, meta.RESTScope, error) {
	wanted := schema.FromAPIVersionAndKind(kind.APIVersion, kind.Kind) // an invalid version makes a kind that is not served
	resource, scope, err := d.config.ResourceOf(wanted)
	if err != nil {
		return nil, nil, fmt.Errorf("find the resource of paramKind '%v': %w", wanted, err)
	}
	if builtin, err := d.config.Listers.ForResource(resource); err == nil {
		return builtin, scope, nil
	}
	return params{d.config.Instances.Resource(resource)}, scope, nil
}

// params reads the objects of a custom kind that are the params of bindings. It reads them through the API of this
// process, in the version that the policy names, for each request that needs them.
type params struct {
	of dynamic.NamespaceableResourceInterface
}

var _ informers.GenericInformer = params{}

// Informer implements informers.GenericInformer; upstream only asks whether the informer has synced.
func (p params) Informer() toolscache.SharedIndexInformer { return &listers.Informer{} }

// Lister implements informers.GenericInformer.
func (p params) Lister() toolscache.GenericLister { return paramLister{p, p.of} }

// paramLister lists params of all namespaces, or of one namespace.
type paramLister struct {
	params
	resource dynamic.ResourceInterface
}

// paramTimeout bounds a read whose interface takes no context.
const paramTimeout = 10 * time.Second

// List implements toolscache.GenericLister.
func (l paramLister) List(selector labels.Selector) (all []runtime.Object, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), paramTimeout)
	defer cancel()
	list, err := l.resource.List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, surely(err)
	}
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all, nil
}

// Get implements toolscache.GenericLister.
func (l paramLister) Get(name string) (runtime.Object, error) {
	ctx, cancel := context.WithTimeout(context.Background(), paramTimeout)
	defer cancel()
	object, err := l.resource.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, surely(err) // a typed nil would be taken for an object
	}
	return object, nil
}

// surely panics, like a lister, if the error says that this process could not answer. Upstream would treat such an
// error as a failure of the policy.
func surely(err error) error {
	if apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) {
		panic(listers.Unreadable{Err: err})
	}
	return err
}

// ByNamespace implements toolscache.GenericLister.
func (l paramLister) ByNamespace(namespace string) toolscache.GenericNamespaceLister {
	return paramLister{l.params, l.of.Namespace(namespace)}
}
