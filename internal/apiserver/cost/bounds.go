package cost

import (
	"context"
	"crypto/rsa"
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
	"k8s.io/kubernetes/pkg/apis/authorization"
	"k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/rbac"
	"k8s.io/kubernetes/pkg/apis/storage"

	"github.com/logplane/logplane/internal/apiserver/cost/shape"
)

// maxRights bounds how many rights a role's rules grant together. Upstream checks that users grant no more rights than
// they have. For this check, upstream lists each right: every verb on every resource of every group, by every name. So
// 18 KB of rules can stand for a billion rights.
const maxRights = 1 << 16

// maxTolerations and maxScopes bound lists in which validation compares every pair of items. It took 40 s to change a
// label of a Pod with 20,000 tolerations.
const maxTolerations, maxScopes = 1000, 100

// maxLimits bounds the limits of a quota: each create in the quota's namespace checks all of these limits.
const maxLimits = 200

// maxTerms bounds the terms of a StorageClass's topologies, and the expressions of each term. Validation compares every
// pair of terms; 4,000 terms took 7 s. maxTerms also bounds the requirements of the selectors in an access review.
// Upstream lists all errors in these selectors, and every user may ask for a review: a review of 1.3 MB kept a
// processor busy for two minutes.
const maxTerms = 100

// maxSigningRequest and maxModulusBits bound a certificate signing request. The signature of such a request is verified
// with the key that the request contains: an RSA key of 200 KB took 28 s.
const maxSigningRequest, maxModulusBits = 64 << 10, 16 << 10

// maxUsages bounds two lists of a certificate signing request: the usages, of which upstream knows 23, and the
// conditions.
const maxUsages = 100

// PluginName is the name of the plugin in metrics.
const PluginName = "Bounds"

// bounds is an admission plugin that refuses objects whose validation in the registries would take too long.
type bounds struct{ *admission.Handler }

// Register registers the plugin.
func Register(plugins *admission.Plugins) {
	plugins.Register(PluginName, func(io.Reader) (admission.Interface, error) {
		return bounds{admission.NewHandler(admission.Create, admission.Update)}, nil
	})
}

// Admit implements admission.MutationInterface, because mutating plugins run before any check of a registry. Admit
// changes nothing.
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
		errs = append(errs, tooMany(field.NewPath("spec", "hard"), len(o.Spec.Hard), maxLimits)...)
		errs = append(errs, tooMany(field.NewPath("spec", "scopes"), len(o.Spec.Scopes), maxScopes)...)
		if o.Spec.ScopeSelector != nil {
			errs = append(errs, tooMany(field.NewPath("spec", "scopeSelector", "matchExpressions"), len(o.Spec.ScopeSelector.MatchExpressions), maxScopes)...)
		}
	case *storage.StorageClass:
		path := field.NewPath("allowedTopologies")
		errs = append(errs, tooMany(path, len(o.AllowedTopologies), maxTerms)...)
		for i := range o.AllowedTopologies {
			errs = append(errs, tooMany(path.Index(i).Child("matchLabelExpressions"), len(o.AllowedTopologies[i].MatchLabelExpressions), maxTerms)...)
		}
	case *certificates.CertificateSigningRequest:
		errs = append(errs, costlySigningRequest(o)...)
	case *authorization.SubjectAccessReview:
		errs = append(errs, costlyReview(o.Spec.ResourceAttributes)...)
	case *authorization.SelfSubjectAccessReview:
		errs = append(errs, costlyReview(o.Spec.ResourceAttributes)...)
	case *authorization.LocalSubjectAccessReview:
		errs = append(errs, costlyReview(o.Spec.ResourceAttributes)...)
	case *apiextensions.CustomResourceDefinition:
		errs = append(errs, costlyColumns(o)...)
	}
	errs = append(errs, compiledOf(a.GetObject()).tooMuch()...)
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(a.GetKind().GroupKind(), a.GetName(), fewMistakes(errs))
}

// costlySigningRequest returns the reasons why a certificate signing request would take too long to verify.
func costlySigningRequest(o *certificates.CertificateSigningRequest) field.ErrorList {
	errs := append(tooMany(field.NewPath("spec", "usages"), len(o.Spec.Usages), maxUsages),
		tooMany(field.NewPath("status", "conditions"), len(o.Status.Conditions), maxUsages)...)
	path := field.NewPath("spec", "request")
	if len(o.Spec.Request) > maxSigningRequest {
		return append(errs, field.TooLong(path, "", maxSigningRequest))
	}
	request, err := certificates.ParseCSR(o.Spec.Request)
	if err != nil {
		return errs // validation will report the error
	}
	if key, ok := request.PublicKey.(*rsa.PublicKey); ok && key.N.BitLen() > maxModulusBits {
		errs = append(errs, field.Forbidden(path, fmt.Sprintf("its RSA key has %d bits and may have %d", key.N.BitLen(), maxModulusBits)))
	}
	return errs
}

func costlyReview(about *authorization.ResourceAttributes) (errs field.ErrorList) {
	if about == nil {
		return nil
	}
	path := field.NewPath("spec", "resourceAttributes")
	if s := about.LabelSelector; s != nil {
		errs = append(errs, tooMany(path.Child("labelSelector", "requirements"), len(s.Requirements), maxTerms)...)
	}
	if s := about.FieldSelector; s != nil {
		errs = append(errs, tooMany(path.Child("fieldSelector", "requirements"), len(s.Requirements), maxTerms)...)
	}
	return errs
}

// metadataMistakes returns the mistakes in an object's metadata, if there are more than an answer lists (mistakes.go).
// The registry validates the metadata of an update outside the strategy, where fewMistakes cannot shorten the list.
func metadataMistakes(object runtime.Object) field.ErrorList {
	m, err := meta.Accessor(object)
	if err == nil && len(m.GetOwnerReferences()) > shape.MaxOwners { // a small patch can make many references
		return tooMany(field.NewPath("metadata", "ownerReferences"), len(m.GetOwnerReferences()), shape.MaxOwners)
	}
	if err != nil || len(m.GetLabels())+len(m.GetAnnotations())+len(m.GetFinalizers())+len(m.GetOwnerReferences()) <= maxMistakes/4 {
		return nil
	}
	parts := &metav1.ObjectMeta{Name: "x", Labels: m.GetLabels(), Annotations: m.GetAnnotations(), Finalizers: m.GetFinalizers(), OwnerReferences: m.GetOwnerReferences()}
	all := validation.ValidateObjectMetaAccessor(parts, false, func(string, bool) []string { return nil }, field.NewPath("metadata"))
	if len(all) <= maxMistakes {
		return nil // the strategy reports the mistakes, too
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
