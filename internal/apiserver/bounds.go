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
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/rbac"
)

// maxRights bounds what a role's rules allow together. Upstream checks that users grant no more than they have, and
// lists each right to do so: every verb on every resource of every group, by every name. So 18 KB ask for a billion.
const maxRights = 1 << 16

// maxTolerations and maxScopes bound lists in which validation compares every
// pair. It took 40 s to change a label of a Pod with 20,000 tolerations.
const maxTolerations, maxScopes = 1000, 100

// boundsName is the plugin's name in metrics.
const boundsName = "Bounds"

// bounds is an admission plugin that refuses what the registries behind it would take too long to refuse.
type bounds struct{ *admission.Handler }

func newBounds(io.Reader) (admission.Interface, error) {
	return bounds{admission.NewHandler(admission.Create, admission.Update)}, nil
}

// Admit implements admission.MutationInterface, because mutating
// plugins run before any check of a registry. It changes nothing.
func (bounds) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	errs := metadataMistakes(a.GetObject())
	switch o := a.GetObject().(type) {
	case *rbac.Role:
		errs = append(errs, tooManyRights(o.Rules)...)
	case *rbac.ClusterRole:
		errs = append(errs, tooManyRights(o.Rules)...)
	case *core.Pod:
		errs = append(errs, tooMany(field.NewPath("spec", "tolerations"), len(o.Spec.Tolerations), maxTolerations)...)
	case *core.ResourceQuota:
		errs = append(errs, tooMany(field.NewPath("spec", "scopes"), len(o.Spec.Scopes), maxScopes)...)
		if o.Spec.ScopeSelector != nil {
			errs = append(errs, tooMany(field.NewPath("spec", "scopeSelector", "matchExpressions"), len(o.Spec.ScopeSelector.MatchExpressions), maxScopes)...)
		}
	case *apiextensions.CustomResourceDefinition:
		errs = append(errs, costlyColumns(o)...)
	}
	errs = append(errs, compiledOf(a.GetObject()).tooMuch()...)
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
		return nil // the strategy finds them too
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

func tooMany(path *field.Path, n, limit int) field.ErrorList {
	if n <= limit {
		return nil
	}
	return field.ErrorList{field.TooMany(path, n, limit)}
}
