package customresources

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/util/webhook"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
)

// createStrategy is upstream's strategy. It also sets the names and conditions that upstream's controllers would set.
type createStrategy struct {
	resources.CreateStrategy
	naming *naming
}

// Validate implements rest.RESTCreateStrategy.
func (s createStrategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return append(s.RESTCreateStrategy.Validate(ctx, obj), forbidden(obj.(*apiextensions.CustomResourceDefinition), nil)...)
}

// Canonicalize implements rest.RESTCreateStrategy. It runs after validation, so only valid schemas are judged.
func (s createStrategy) Canonicalize(obj runtime.Object) {
	s.RESTCreateStrategy.Canonicalize(obj)
	s.naming.decide(obj.(*apiextensions.CustomResourceDefinition))
}

// updateStrategy is upstream's strategy for the specification or for the status. It also sets the names and conditions
// that upstream's controllers would set. A CRD that is written unchanged is judged again, and so gets names that
// another CRD has given up.
type updateStrategy struct {
	resources.UpdateStrategy
	naming *naming
}

// PrepareForUpdate implements rest.RESTUpdateStrategy. Clients cannot write the accepted names of a CRD.
func (s updateStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	s.RESTUpdateStrategy.PrepareForUpdate(ctx, obj, old)
	crd, before := obj.(*apiextensions.CustomResourceDefinition), old.(*apiextensions.CustomResourceDefinition)
	crd.Status.AcceptedNames = *before.Status.AcceptedNames.DeepCopy()
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s updateStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	crd, before := obj.(*apiextensions.CustomResourceDefinition), old.(*apiextensions.CustomResourceDefinition)
	return append(s.RESTUpdateStrategy.ValidateUpdate(ctx, obj, old), forbidden(crd, before)...)
}

// Canonicalize implements rest.RESTUpdateStrategy.
func (s updateStrategy) Canonicalize(obj runtime.Object) {
	s.RESTUpdateStrategy.Canonicalize(obj)
	s.naming.decide(obj.(*apiextensions.CustomResourceDefinition))
}

// naming does the work of upstream's naming, establishing, structural schema and approval controllers. Upstream's
// controllers work after a write; naming works within the write.
type naming struct{ definitions *Reader }

func (n *naming) decide(crd *apiextensions.CustomResourceDefinition) {
	n.acceptNames(crd)
	establish(crd)
	judgeSchemas(crd)
	judgeApproval(crd)
}

// acceptNames decides, as upstream does, which of the wanted names are free. If the list of CRDs cannot be read, the
// request fails: a name that was not checked must not count as free.
func (n *naming) acceptNames(crd *apiextensions.CustomResourceDefinition) {
	wanted, accepted := &crd.Spec.Names, &crd.Status.AcceptedNames
	if apiequality.Semantic.DeepEqual(wanted, accepted) && apiextensions.IsCRDConditionTrue(crd, apiextensions.NamesAccepted) {
		return
	}
	resources, kinds := n.taken(crd)
	verdict := apiextensions.CustomResourceDefinitionCondition{
		Type: apiextensions.NamesAccepted, Status: apiextensions.ConditionTrue, Reason: "NoConflicts", Message: "no conflicts found",
	}
	refuse := func(reason string, err error) {
		verdict.Status, verdict.Reason, verdict.Message = apiextensions.ConditionFalse, reason, err.Error()
	}
	one := func(want string, have *string, taken sets.Set[string], reason string) {
		if want != *have && taken.Has(want) {
			refuse(reason, inUse(want))
			return
		}
		*have = want
	}
	one(wanted.Plural, &accepted.Plural, resources, "PluralConflict")
	one(wanted.Singular, &accepted.Singular, resources, "SingularConflict")
	var clashes []error
	for _, name := range wanted.ShortNames {
		if !slices.Contains(accepted.ShortNames, name) && resources.Has(name) {
			clashes = append(clashes, inUse(name))
		}
	}
	if len(clashes) > 0 {
		refuse("ShortNamesConflict", errors.Join(clashes...))
	} else {
		accepted.ShortNames = slices.Clone(wanted.ShortNames)
	}
	one(wanted.Kind, &accepted.Kind, kinds, "KindConflict")
	one(wanted.ListKind, &accepted.ListKind, kinds, "ListKindConflict")
	accepted.Categories = slices.Clone(wanted.Categories)
	apiextensions.SetCRDCondition(crd, verdict)
}

func inUse(name string) error { return fmt.Errorf("%q is already in use", name) }

// taken returns the names that the other CRDs of the group hold.
func (n *naming) taken(crd *apiextensions.CustomResourceDefinition) (resources, kinds sets.Set[string]) {
	all, err := n.definitions.All()
	if err != nil {
		panic(listers.Unreadable{Err: err})
	}
	resources, kinds = sets.New[string](), sets.New[string]()
	for _, other := range all.Definitions {
		if other.Spec.Group != crd.Spec.Group || other.Name == crd.Name {
			continue
		}
		names := other.Status.AcceptedNames
		resources.Insert(names.Plural, names.Singular).Insert(names.ShortNames...)
		kinds.Insert(names.Kind, names.ListKind)
	}
	resources.Delete("")
	kinds.Delete("")
	return resources, kinds
}

// establish sets Established as soon as all names are accepted. The condition then stays.
func establish(crd *apiextensions.CustomResourceDefinition) {
	if apiextensions.IsCRDConditionTrue(crd, apiextensions.Established) {
		return
	}
	verdict := apiextensions.CustomResourceDefinitionCondition{
		Type: apiextensions.Established, Status: apiextensions.ConditionTrue, Reason: "InitialNamesAccepted", Message: "the initial names have been accepted",
	}
	switch {
	case !apiextensions.IsCRDConditionTrue(crd, apiextensions.NamesAccepted):
		verdict.Status, verdict.Reason, verdict.Message = apiextensions.ConditionFalse, "NotAccepted", "not all names are accepted"
	case !validCABundle(crd.Spec.Conversion):
		verdict.Status, verdict.Reason, verdict.Message = apiextensions.ConditionFalse, "InvalidCABundle", "The conversion webhook CABundle is invalid"
	}
	apiextensions.SetCRDCondition(crd, verdict)
}

func validCABundle(c *apiextensions.CustomResourceConversion) bool {
	if c == nil || c.WebhookClientConfig == nil {
		return true
	}
	return len(webhook.ValidateCABundle(field.NewPath(""), c.WebhookClientConfig.CABundle)) == 0
}

// judgeSchemas sets the condition NonStructuralSchema, or removes the condition if all schemas are structural.
func judgeSchemas(crd *apiextensions.CustomResourceDefinition) {
	complaint := schemaComplaint(&crd.Spec)
	if complaint == nil {
		apiextensions.RemoveCRDCondition(crd, apiextensions.NonStructuralSchema)
		return
	}
	apiextensions.SetCRDCondition(crd, apiextensions.CustomResourceDefinitionCondition{
		Type: apiextensions.NonStructuralSchema, Status: apiextensions.ConditionTrue, Reason: "Violations", Message: complaint.Error(),
	})
}

func schemaComplaint(spec *apiextensions.CustomResourceDefinitionSpec) error {
	var errs field.ErrorList
	if spec.PreserveUnknownFields != nil && *spec.PreserveUnknownFields {
		errs = append(errs, field.Invalid(field.NewPath("spec", "preserveUnknownFields"), true, "must be false"))
	}
	check := func(path *field.Path, v *apiextensions.CustomResourceValidation) {
		if v == nil || v.OpenAPIV3Schema == nil {
			return
		}
		s, err := structuralschema.NewStructural(v.OpenAPIV3Schema)
		if err != nil {
			errs = append(errs, field.Invalid(path, "", err.Error()))
			return
		}
		errs = append(errs, structuralschema.ValidateStructural(path, s)...)
	}
	check(field.NewPath("spec", "validation", "openAPIV3Schema"), spec.Validation)
	for i, v := range spec.Versions {
		check(field.NewPath("spec", "versions").Index(i).Child("schema", "openAPIV3Schema"), v.Schema)
	}
	if len(errs) == 0 {
		return nil
	}
	return errs.ToAggregate()
}

// judgeApproval sets KubernetesAPIApprovalPolicyConformant on CRDs of Kubernetes' own groups.
func judgeApproval(crd *apiextensions.CustomResourceDefinition) {
	if !apihelpers.IsProtectedCommunityGroup(crd.Spec.Group) {
		return
	}
	state, message := apihelpers.GetAPIApprovalState(crd.Annotations)
	verdict := apiextensions.CustomResourceDefinitionCondition{
		Type: apiextensions.KubernetesAPIApprovalPolicyConformant, Status: apiextensions.ConditionFalse, Message: message,
	}
	switch state {
	case apihelpers.APIApprovalInvalid:
		verdict.Reason = "InvalidAnnotation"
	case apihelpers.APIApprovalMissing:
		verdict.Reason = "MissingAnnotation"
	case apihelpers.APIApprovalBypassed:
		verdict.Reason = "UnapprovedAnnotation"
	case apihelpers.APIApproved:
		verdict.Status, verdict.Reason = apiextensions.ConditionTrue, "ApprovedAnnotation"
	default:
		verdict.Status, verdict.Reason = apiextensions.ConditionUnknown, "UnknownAnnotation"
	}
	apiextensions.SetCRDCondition(crd, verdict)
}

// Names is the resource of the claims that hold names.
const Names = "crdnames"

// GroupOfName returns the group in which a claim holds a name.
func GroupOfName(claim string) string {
	group, _, _ := strings.Cut(claim, ":")
	return group
}

// nameClaims names the claims that hold a CRD's accepted names within its group. Two CRDs that are written at once may
// both find a name free in their view. The log lets only one of the two CRDs claim the name.
func nameClaims(cluster string) resources.ClaimsFunc {
	return func(_ context.Context, obj runtime.Object) ([]kubestore.Claim, error) {
		crd, ok := obj.(*apiextensions.CustomResourceDefinition)
		if !ok {
			return nil, fmt.Errorf("claim the names of a %T", obj)
		}
		names := crd.Status.AcceptedNames
		ofResource := append([]string{names.Plural, names.Singular}, names.ShortNames...)
		const own = resources.OwnGroup
		var claims []kubestore.Claim
		for kind, all := range map[string][]string{"resource": ofResource, "kind": {names.Kind, names.ListKind}} {
			for name := range sets.New(all...).Delete("") {
				claims = append(claims, kubestore.Claim{
					Key: eventlog.Key{Cluster: cluster, Group: own, Resource: Names, Prefix: "/" + own + "/" + Names,
						Name: crd.Spec.Group + ":" + kind + ":" + name},
					// The body is the CRD's name, and not its uid, so that a CRD which is made again makes the same
					// claim.
					ContentType: "text/plain", Body: []byte(crd.Name),
				})
			}
		}
		slices.SortFunc(claims, func(a, b kubestore.Claim) int { return cmp.Compare(a.Key.Name, b.Key.Name) })
		return claims, nil
	}
}
