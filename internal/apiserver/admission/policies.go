package admission

import (
	"context"
	"fmt"
	"sort"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/logplane/logplane/internal/apiserver/listers"
)

// compiledPolicy is a policy of one revision.
type compiledPolicy struct {
	uid       types.UID
	revision  string
	validator validating.Validator
}

// readPolicies returns the policies that are bound, with their bindings, in the order of their names. A policy that was
// compiled for the last rules and has not changed is not compiled again. It requires mu.
func (d *Dynamic) readPolicies() ([]validating.PolicyHook, error) {
	all, err := d.binding.All()
	if err != nil {
		return nil, err
	}
	bindings := map[string][]*validating.PolicyBinding{}
	for _, object := range all {
		binding := object.(*validating.PolicyBinding)
		bindings[binding.Spec.PolicyName] = append(bindings[binding.Spec.PolicyName], binding)
	}
	compiled := map[string]compiledPolicy{}
	var hooks []validating.PolicyHook
	for name, bound := range bindings {
		object, found, err := d.policy.GetByKey(name)
		if err != nil {
			return nil, err
		}
		if !found {
			continue // it may come later than its binding
		}
		policy := object.(*validating.Policy)
		known := d.compiled[name]
		if known.uid != policy.UID || known.revision != policy.ResourceVersion {
			d.compilations++
			known = compiledPolicy{policy.UID, policy.ResourceVersion, compile(policy)}
		}
		compiled[name] = known
		hook := validating.PolicyHook{Policy: policy, Bindings: bound, Evaluator: known.validator}
		if kind := policy.Spec.ParamKind; kind != nil {
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
	sort.Slice(hooks, func(i, j int) bool { return hooks[i].Policy.Name < hooks[j].Policy.Name })
	d.compiled = compiled
	return hooks, nil
}

// compile is what upstream's plugin does with a policy, which it does not export. An expression that cannot be compiled
// is an error of the policy, for the failure policy to judge when a request comes.
func compile(policy *validating.Policy) validating.Validator {
	declared := cel.OptionalVariableDeclarations{HasParams: policy.Spec.ParamKind != nil, HasAuthorizer: true}
	inMessages := cel.OptionalVariableDeclarations{HasParams: declared.HasParams}
	failurePolicy := policy.Spec.FailurePolicy
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		return validating.NewValidator(nil, nil, nil, nil, failurePolicy, err)
	}
	var variables []cel.NamedExpressionAccessor
	for _, v := range policy.Spec.Variables {
		variables = append(variables, &validating.Variable{Name: v.Name, Expression: v.Expression})
	}
	compiler.CompileAndStoreVariables(variables, declared, environment.StoredExpressions)
	condition := func(expressions []cel.ExpressionAccessor, declared cel.OptionalVariableDeclarations) cel.ConditionEvaluator {
		return compiler.CompileCondition(expressions, declared, environment.StoredExpressions)
	}
	var matcher matchconditions.Matcher
	if len(policy.Spec.MatchConditions) > 0 {
		var matches []cel.ExpressionAccessor
		for i := range policy.Spec.MatchConditions {
			matches = append(matches, (*matchconditions.MatchCondition)(&policy.Spec.MatchConditions[i]))
		}
		matcher = matchconditions.NewMatcher(condition(matches, declared), failurePolicy, "policy", "validate", policy.Name)
	}
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

// paramsOf says how params of a kind are read. Those of a built-in kind come from a lister, others through the API. If
// the kind is not served, the error is a meta.NoKindMatchError.
func (d *Dynamic) paramsOf(kind *admissionregistrationv1.ParamKind) (informers.GenericInformer, meta.RESTScope, error) {
	wanted := schema.FromAPIVersionAndKind(kind.APIVersion, kind.Kind) // of a version that is none it is a kind that is not served
	resource, scope, err := d.config.ResourceOf(wanted)
	if err != nil {
		return nil, nil, fmt.Errorf("find the resource of paramKind '%v': %w", wanted, err)
	}
	if builtin, err := d.config.Listers.ForResource(resource); err == nil {
		return builtin, scope, nil
	}
	return params{d.config.Instances.Resource(resource)}, scope, nil
}

// params are objects of a custom kind that bindings name. They are read through the API of this process, for each
// request that needs them, in the version that the policy names.
type params struct {
	of dynamic.NamespaceableResourceInterface
}

var _ informers.GenericInformer = params{}

// Informer implements informers.GenericInformer; only whether it has synced is asked.
func (p params) Informer() toolscache.SharedIndexInformer { return &listers.Informer{} }

// Lister implements informers.GenericInformer.
func (p params) Lister() toolscache.GenericLister { return paramLister{p, p.of} }

// paramLister lists params of all namespaces, or of one.
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
		return nil, err
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
		return nil, err // a typed nil would be taken for an object
	}
	return object, nil
}

// ByNamespace implements toolscache.GenericLister.
func (l paramLister) ByNamespace(namespace string) toolscache.GenericNamespaceLister {
	return paramLister{l.params, l.of.Namespace(namespace)}
}
