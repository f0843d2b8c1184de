package history

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/description/spec"
	"github.com/logplane/logplane/projection"
)

// found is a resource that a client has named.
type found struct {
	schema.GroupResource
	namespaced bool
}

// find looks for a resource by its name, such as 'deployments.apps', 'deployments', 'deployment' or 'deploy'. A name
// with a group that is not served is taken for custom resources whose definition is gone: their past is kept.
func (s *store) find(ctx context.Context, name string) (found, error) {
	want := schema.ParseGroupResource(name)
	groups := spec.Groups()
	for _, g := range groups {
		if want.Group != "" && want.Group != g.Name || !s.Serves(g.Name) {
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
	if want.Group == "" || slices.ContainsFunc(groups, func(g spec.Group) bool { return g.Name == want.Group }) || !strings.Contains(want.Group, ".") || hidden(want.Group) {
		return found{}, apierrors.NewBadRequest(fmt.Sprintf("there is no resource '%s': write its plural and group, such as deployments.apps", name))
	}
	namespaced, err := s.wasNamespaced(ctx, want)
	return found{want, namespaced}, err
}

// wasNamespaced reports whether custom resources whose definition is gone were in namespaces, by the definition's last
// version. If that version is no longer kept, or not found within the bounds of a page, the answer is yes.
func (s *store) wasNamespaced(ctx context.Context, of schema.GroupResource) (bool, error) {
	head, err := s.head(ctx)
	if err != nil {
		return false, err
	}
	key := s.Stores.Key(customresources.Resource, "", of.String())
	var rows []projection.Row
	looking := &page{schemas: schemas{}}
	for below := head + 1; below > 0 && len(rows) == 0 && !looking.full(); {
		rows, below, err = s.Cell.Projection.Versions(ctx, key.RowKey(), below, 1, looking.looked(ctx))
		if looking.failed != nil {
			return false, looking.failed
		}
		if errors.Is(err, projection.ErrExpired) || errors.Is(err, projection.ErrTrimmed) {
			break
		}
		if err != nil {
			return false, readError(ctx, err)
		}
	}
	if len(rows) == 0 {
		return true, nil
	}
	v, _, err := s.describe(ctx, &question{content: true}, looking, rows[0], nil)
	if err != nil {
		return false, err
	}
	definition, err := v.Decoded()
	if err != nil {
		return true, nil
	}
	scope, _, _ := unstructured.NestedString(definition.Object, "spec", "scope")
	return scope != string(apiextensionsv1.ClusterScoped), nil
}
