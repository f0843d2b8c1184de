package apiserver

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/apiserver/spec"
)

// reserved says that objects of a resource would lie where others do: our own, or those of a built-in resource, whatever
// the version. A custom resource's rows and subjects follow from its group and plural name, which are the client's
// (docs/decisions/row-keys.md).
func reserved(group, resource string) bool {
	return group == resources.OwnGroup || strings.HasSuffix(group, "."+resources.OwnGroup) || isBuiltinResource(group, resource)
}

func isBuiltinResource(group, resource string) bool {
	return slices.ContainsFunc(builtinVersions(group), func(v spec.Version) bool {
		for i := range v.Resources {
			if v.Resources[i].Name == resource {
				return true
			}
		}
		return false
	})
}

// isBuiltin is false for a version of custom resources.
func isBuiltin(group, version string) bool {
	return slices.ContainsFunc(builtinVersions(group), func(v spec.Version) bool { return v.Name == version })
}

// builtinVersions is empty for a group that is not built in.
func builtinVersions(group string) []spec.Version {
	if !builtinGroups.Has(group) {
		return nil // without decoding what the others have
	}
	all, err := spec.Groups()
	if err != nil {
		panic(listers.Unreadable{Err: err}) // embedded, and decoded by a test
	}
	for i := range all {
		if all[i].Name == group {
			return all[i].Versions
		}
	}
	return nil
}

// builtinGroups are the names of the groups that are built in.
var builtinGroups = func() sets.Set[string] {
	names := sets.New[string]()
	for _, b := range builtins() {
		names.Insert(b.name)
	}
	return names
}()

// forbidden are the reasons for which a CRD cannot be served beside what is there. What it had before it may keep:
// that it came to be is long ago, and it must be possible to delete it.
func forbidden(crd, before *apiextensions.CustomResourceDefinition) (errs field.ErrorList) {
	group, names := field.NewPath("spec", "group"), field.NewPath("spec", "names", "plural")
	switch plural := crd.Spec.Names.Plural; {
	case before != nil:
	case isBuiltinResource(crd.Spec.Group, plural):
		errs = append(errs, field.Forbidden(names, fmt.Sprintf("%s of group %s are built in, in every version", plural, crd.Spec.Group)))
	case reserved(crd.Spec.Group, plural):
		errs = append(errs, field.Forbidden(group, fmt.Sprintf("%s and the groups below it are reserved: use a domain of your own", resources.OwnGroup)))
	}
	for i, v := range crd.Spec.Versions {
		had := before != nil && slices.ContainsFunc(before.Spec.Versions, func(b apiextensions.CustomResourceDefinitionVersion) bool { return b.Name == v.Name })
		if !had && isBuiltin(crd.Spec.Group, v.Name) {
			errs = append(errs, field.Forbidden(field.NewPath("spec", "versions").Index(i).Child("name"),
				fmt.Sprintf("version %s of group %s is built in: use another version, or a group of your own", v.Name, crd.Spec.Group)))
		}
	}
	return errs
}
