package clusters

import (
	"context"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/logplane/logplane/internal/moment"
)

// longestName leaves room for the digits of the uid in a key that is a DNS label but for its dot.
const longestName = 40

// strategy says which Clusters are valid, and that clients do not write the status.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
}

var (
	_ rest.RESTCreateStrategy  = strategy{}
	_ rest.RESTUpdateStrategy  = strategy{}
	_ rest.RESTDeleteStrategy  = strategy{}
	_ rest.ResetFieldsStrategy = strategy{}
)

func (strategy) NamespaceScoped() bool                         { return false }
func (strategy) AllowCreateOnUpdate(context.Context) bool      { return false }
func (strategy) AllowUnconditionalUpdate(context.Context) bool { return true }
func (strategy) Canonicalize(runtime.Object)                   {}

// WarningsOnCreate implements rest.RESTCreateStrategy.
func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

// WarningsOnUpdate implements rest.RESTUpdateStrategy.
func (strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// GetResetFields implements rest.ResetFieldsStrategy.
func (strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(GroupVersion.String()): fieldpath.NewSet(fieldpath.MakePathOrDie("status")),
	}
}

// PrepareForCreate implements rest.RESTCreateStrategy.
func (strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	c := obj.(*Cluster)
	c.Status, c.Generation = ClusterStatus{}, 1
}

// PrepareForUpdate implements rest.RESTUpdateStrategy.
func (strategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	c, was := obj.(*Cluster), old.(*Cluster)
	c.Status, c.Generation = was.Status, was.Generation
	if !apiequality.Semantic.DeepEqual(c.Spec, was.Spec) {
		c.Generation++
	}
}

// Validate implements rest.RESTCreateStrategy.
func (strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	c := obj.(*Cluster)
	errs := apivalidation.ValidateObjectMeta(&c.ObjectMeta, false, nameErrors, field.NewPath("metadata"))
	if from := c.Spec.From; from != nil {
		errs = append(errs, validateSource(from, field.NewPath("spec", "from"))...)
	}
	return append(errs, validateTTL(c)...)
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	c, was := obj.(*Cluster), old.(*Cluster)
	errs := apivalidation.ValidateObjectMetaUpdate(&c.ObjectMeta, &was.ObjectMeta, field.NewPath("metadata"))
	errs = append(errs, apivalidation.ValidateImmutableField(c.Spec.From, was.Spec.From, field.NewPath("spec", "from"))...)
	return append(errs, validateTTL(c)...)
}

// nameErrors returns what is wrong with the name of a Cluster, or with the beginning of a name that the server
// completes.
func nameErrors(name string, prefix bool) []string {
	errs := apivalidation.NameIsDNSLabel(name, prefix)
	if len(name) > longestName {
		errs = append(errs, validation.MaxLenError(longestName))
	}
	if name == Main && !prefix {
		errs = append(errs, "every cell has a cluster of this name")
	}
	return errs
}

func validateSource(from *ClusterSource, at *field.Path) (errs field.ErrorList) {
	if from.Cluster == "" {
		errs = append(errs, field.Required(at.Child("cluster"), "name the source, such as "+Main))
	}
	if from.At != "" {
		if _, err := moment.Parse(from.At, time.Now().UTC()); err != nil {
			errs = append(errs, field.Invalid(at.Child("at"), from.At, err.Error()))
		}
	}
	return errs
}

func validateTTL(c *Cluster) field.ErrorList {
	if ttl := c.Spec.TTL; ttl != nil && ttl.Duration <= 0 {
		return field.ErrorList{field.Invalid(field.NewPath("spec", "ttl"), ttl.Duration.String(), "must be longer than nothing, such as 24h")}
	}
	return nil
}
