package apiserver

import (
	"context"
	"fmt"
	"io"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/apis/rbac"
)

// maxRights bounds what a role's rules allow together. Upstream checks that no user grants more than the user has, and
// writes down each right for that: every verb on every resource of every group, by every name. So 18 KB ask for a
// billion.
const maxRights = 1 << 16

// maxExpressions bounds the CEL expressions of one object, each of which is compiled when the object is written: some 0.4
// ms, and more memory for each variable that is there already. With 3 MiB of them a request took 14 s, or 1.3 GiB.
const maxExpressions = 2000

// boundsName is the plugin's name in metrics.
const boundsName = "Bounds"

// bounds is an admission plugin that refuses what the registries behind it would take too long to refuse.
type bounds struct{ *admission.Handler }

func newBounds(io.Reader) (admission.Interface, error) {
	return bounds{admission.NewHandler(admission.Create, admission.Update)}, nil
}

// Admit implements admission.MutationInterface, because those plugins come before any check of a registry. It changes
// nothing.
func (bounds) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	errs := metadataMistakes(a.GetObject())
	switch o := a.GetObject().(type) {
	case *rbac.Role:
		errs = append(errs, tooManyRights(o.Rules)...)
	case *rbac.ClusterRole:
		errs = append(errs, tooManyRights(o.Rules)...)
	default:
		errs = append(errs, tooManyExpressions(o)...)
	}
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(a.GetKind().GroupKind(), a.GetName(), errs)
}

// metadataMistakes are the mistakes in an object's metadata, if there are more than an answer lists (mistakes.go). In
// an update the strategy's caller finds them, not the strategy.
func metadataMistakes(object runtime.Object) field.ErrorList {
	m, err := meta.Accessor(object)
	if err != nil || len(m.GetLabels())+len(m.GetAnnotations())+len(m.GetFinalizers())+len(m.GetOwnerReferences()) <= maxMistakes/4 {
		return nil
	}
	parts := &metav1.ObjectMeta{Name: "x", Labels: m.GetLabels(), Annotations: m.GetAnnotations(), Finalizers: m.GetFinalizers(), OwnerReferences: m.GetOwnerReferences()}
	all := validation.ValidateObjectMetaAccessor(parts, false, func(string, bool) []string { return nil }, field.NewPath("metadata"))
	if len(all) <= maxMistakes {
		return nil // whose strategy finds them too
	}
	return fewMistakes(all)
}

func tooManyRights(rules []rbac.PolicyRule) field.ErrorList {
	rights := 0
	for i := range rules {
		r := &rules[i]
		rights += (len(r.APIGroups)*len(r.Resources)*max(1, len(r.ResourceNames)) + len(r.NonResourceURLs)) * len(r.Verbs)
		if rights > maxRights {
			return field.ErrorList{field.Forbidden(field.NewPath("rules").Index(i),
				fmt.Sprintf("together the rules allow more than %d combinations of verb, resource, group and name: use '*', or more roles", maxRights))}
		}
	}
	return nil
}

// tooManyExpressions counts the CEL expressions of policies, webhooks and CRDs.
func tooManyExpressions(object runtime.Object) field.ErrorList {
	n, where := 0, field.NewPath("spec")
	switch o := object.(type) {
	case *admissionregistration.ValidatingAdmissionPolicy:
		// A validation may have two, one of them for its message.
		n = 2*len(o.Spec.Validations) + len(o.Spec.Variables) + len(o.Spec.MatchConditions) + len(o.Spec.AuditAnnotations)
	case *admissionregistration.MutatingAdmissionPolicy:
		n = len(o.Spec.Mutations) + len(o.Spec.Variables) + len(o.Spec.MatchConditions)
	case *admissionregistration.ValidatingWebhookConfiguration:
		where = field.NewPath("webhooks")
		for i := range o.Webhooks {
			n += len(o.Webhooks[i].MatchConditions)
		}
	case *admissionregistration.MutatingWebhookConfiguration:
		where = field.NewPath("webhooks")
		for i := range o.Webhooks {
			n += len(o.Webhooks[i].MatchConditions)
		}
	case *apiextensions.CustomResourceDefinition:
		if o.Spec.Validation != nil {
			n = rulesOf(o.Spec.Validation.OpenAPIV3Schema)
		}
		for i := range o.Spec.Versions {
			if v := o.Spec.Versions[i].Schema; v != nil {
				n += rulesOf(v.OpenAPIV3Schema)
			}
		}
	}
	if n <= maxExpressions {
		return nil
	}
	return field.ErrorList{field.Forbidden(where, fmt.Sprintf("it has %d CEL expressions and may have %d: make several objects of it", n, maxExpressions))}
}

// rulesOf counts a schema's CEL expressions, as deep as they are: how deep a document nests is bounded (package shape).
func rulesOf(s *apiextensions.JSONSchemaProps) int {
	if s == nil {
		return 0
	}
	n := 0
	for i := range s.XValidations {
		n++
		if s.XValidations[i].MessageExpression != "" {
			n++
		}
	}
	for name := range s.Properties {
		child := s.Properties[name]
		n += rulesOf(&child)
	}
	if s.Items != nil {
		n += rulesOf(s.Items.Schema)
	}
	if s.AdditionalProperties != nil {
		n += rulesOf(s.AdditionalProperties.Schema)
	}
	for _, all := range [][]apiextensions.JSONSchemaProps{s.AllOf, s.AnyOf, s.OneOf} {
		for i := range all {
			n += rulesOf(&all[i])
		}
	}
	return n + rulesOf(s.Not)
}
