package history

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/description/spec"
)

// found is a resource that a client has named.
type found struct {
	schema.GroupResource
	namespaced bool
	// prefix is where its objects are stored.
	prefix string
}

// key is that of an object of the resource.
func (s *store) key(of found, namespace, name string) eventlog.Key {
	k := s.Stores.Key(of.GroupResource, namespace, name)
	k.Prefix = "/" + of.prefix
	return k
}

// below is the prefix of resources that are stored below their group: custom ones, their definitions, and APIServices.
func below(r schema.GroupResource) string { return r.Group + "/" + r.Resource }

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
					of := found{schema.GroupResource{Group: g.Name, Resource: r.Name}, r.Namespaced, ""}
					if of.prefix = s.Stores.Prefix(of.GroupResource); g.Name == customresources.Resource.Group || g.Name == apiregistration.GroupName {
						of.prefix = below(of.GroupResource)
					}
					return of, nil
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
			of := schema.GroupResource{Group: crd.Spec.Group, Resource: names.Plural}
			return found{of, crd.Spec.Scope == apiextensionsv1.NamespaceScoped, below(of)}, nil
		}
	}
	if want.Group == "" || isServed(groups, want.Group) || !strings.Contains(want.Group, ".") || hiddenGroup(want.Group) {
		return found{}, apierrors.NewBadRequest(fmt.Sprintf("there is no resource '%s': write its plural and group, such as deployments.apps", name))
	}
	return found{want, true, below(want)}, nil
}

func isServed(groups []spec.Group, name string) bool {
	return slices.ContainsFunc(groups, func(g spec.Group) bool { return g.Name == name })
}
