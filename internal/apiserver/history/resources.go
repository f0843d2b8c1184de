package history

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/logplane/logplane/internal/apiserver/description/spec"
)

// found is a resource that a client has named.
type found struct {
	schema.GroupResource
	namespaced bool
}

// find looks for a resource by its name, such as 'deployments.apps', 'deployments', 'deployment' or 'deploy'. A name
// with a group that nobody serves is that of custom resources whose definition is gone: their past is kept.
func (s *store) find(ctx context.Context, name string) (found, error) {
	want := schema.ParseGroupResource(name)
	groups, err := spec.Groups()
	if err != nil {
		return found{}, err
	}
	for _, g := range groups {
		if want.Group != "" && want.Group != g.Name {
			continue
		}
		for _, v := range g.Versions {
			for _, r := range v.Resources {
				if !strings.Contains(r.Name, "/") && (r.Name == want.Resource || r.SingularName == want.Resource || slices.Contains(r.ShortNames, want.Resource)) {
					return found{schema.GroupResource{Group: g.Name, Resource: r.Name}, r.Namespaced}, nil
				}
			}
		}
	}
	set, err := s.Definitions.AllFor(ctx)
	if err != nil {
		return found{}, err
	}
	for _, crd := range set.Definitions {
		names := crd.Spec.Names
		if (want.Group == "" || want.Group == crd.Spec.Group) &&
			(names.Plural == want.Resource || names.Singular == want.Resource || slices.Contains(names.ShortNames, want.Resource)) {
			return found{schema.GroupResource{Group: crd.Spec.Group, Resource: names.Plural}, crd.Spec.Scope == apiextensionsv1.NamespaceScoped}, nil
		}
	}
	if want.Group == "" || isServed(groups, want.Group) || !strings.Contains(want.Group, ".") || hiddenGroup(want.Group) {
		return found{}, apierrors.NewBadRequest(fmt.Sprintf("there is no resource '%s': write its plural and group, such as deployments.apps", name))
	}
	return found{want, true}, nil
}

func isServed(groups []spec.Group, name string) bool {
	return slices.ContainsFunc(groups, func(g spec.Group) bool { return g.Name == name })
}
