package customresources

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/logplane/logplane/internal/apiserver/description/spec"
	"github.com/logplane/logplane/internal/apiserver/resources"
)

// Reserved reports whether the objects of a custom resource would be stored among Logplane's own objects, or among the
// objects of a built-in resource in any version. A client chooses the group and plural name of a custom resource, and
// the resource's rows and subjects follow from these names (docs/decisions/row-keys.md).
func Reserved(group, resource string) bool {
	return group == resources.OwnGroup || strings.HasSuffix(group, "."+resources.OwnGroup) || spec.HasResource(group, resource)
}

// IsBuiltin reports whether a version of a group is built in. It is false for versions that only custom resources have.
func IsBuiltin(group, version string) bool {
	return slices.ContainsFunc(spec.Versions(group), func(v spec.Version) bool { return v.Name == version })
}

// forbidden returns the errors of a CRD that clashes with built-in or reserved resources. A CRD that already clashes
// may keep its names and versions, so that it can still be changed and deleted.
func forbidden(crd, before *apiextensions.CustomResourceDefinition) (errs field.ErrorList) {
	group, names := field.NewPath("spec", "group"), field.NewPath("spec", "names", "plural")
	switch plural := crd.Spec.Names.Plural; {
	case before != nil:
	case spec.HasResource(crd.Spec.Group, plural):
		errs = append(errs, field.Forbidden(names, fmt.Sprintf("%s of group %s are built in, in every version", plural, crd.Spec.Group)))
	case Reserved(crd.Spec.Group, plural):
		errs = append(errs, field.Forbidden(group, fmt.Sprintf("%s and the groups below it are reserved: use a domain of your own", resources.OwnGroup)))
	}
	for i, v := range crd.Spec.Versions {
		had := before != nil && slices.ContainsFunc(before.Spec.Versions, func(b apiextensions.CustomResourceDefinitionVersion) bool { return b.Name == v.Name })
		if !had && IsBuiltin(crd.Spec.Group, v.Name) {
			errs = append(errs, field.Forbidden(field.NewPath("spec", "versions").Index(i).Child("name"),
				fmt.Sprintf("version %s of group %s is built in: use another version, or a group of your own", v.Name, crd.Spec.Group)))
		}
	}
	return errs
}
