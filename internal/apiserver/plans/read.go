package plans

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/logplane/logplane/internal/apiserver/clusters"
	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/sides"
)

// refuse returns the answer to a plan that cannot be made.
func refuse(code int, format string, args ...any) error {
	refused := apierrors.NewGenericServerResponse(code, "create", schema.GroupResource{}, "", "", 0, false)
	refused.ErrStatus.Message = fmt.Sprintf(format, args...)
	refused.ErrStatus.Details = nil
	return refused
}

// contents returns versions of an object with the object's content, newest first, until 'enough' is true. It does not
// read all versions, because an object that is written every second has too many.
func (p *planner) contents(ctx context.Context, object, namespace string, enough func([]history.Version) bool) ([]history.Version, error) {
	all, err := p.live.Versions(ctx, namespace, object, url.Values{"include": {"object"}, "limit": {"50"}}, enough)
	if err != nil {
		return nil, err
	}
	for _, v := range all.Items {
		if v.Content != nil {
			p.read += len(v.Content.Raw)
		}
	}
	if p.read > mostRead {
		return nil, refuse(http.StatusRequestEntityTooLarge, "the versions to look at have more than %d MiB: "+
			"name a later moment, one namespace, or one object", mostRead>>20)
	}
	return all.Items, nil
}

// mostRead bounds the bytes of versions that a request holds.
const mostRead = 64 << 20

// servedNow returns the kind of an object in the version in which it was stored. If that version is not served, 'why'
// says so for people.
func (p *planner) servedNow(object history.Reference, version string) (k sides.Kind, why string, err error) {
	kinds, err := p.live.Catalog()
	if err != nil {
		return k, "", err
	}
	of := object.GroupResource()
	k, ok := kinds.Find(of, version)
	if _, served := kinds.Of(of); !ok && served {
		why = fmt.Sprintf("it was stored as %s, which is no longer served", schema.GroupVersion{Group: of.Group, Version: version})
	} else if !ok {
		why = fmt.Sprintf("its kind is not served now: 'undelete crd/%s' brings it back", of)
	} else if of == clusters.Resource {
		why = "what a cluster has is gone with it: make a new one"
	}
	return k, why, nil
}

// schemaOf returns an example value of a kind, which carries the kind's schema as managed fields use it.
func (p *planner) schemaOf(ctx context.Context, k sides.Kind) (*typed.TypedValue, error) {
	definition, err := p.Definitions.Get(ctx, k.GroupResource().String())
	if err != nil {
		return nil, err
	}
	scheme, _ := history.SchemeOf(k.Group)
	var types managedfields.TypeConverter = resources.ConvertersOf(scheme)
	if definition != nil {
		if types, err = customresources.TypesOf(definition, k.Version); err != nil {
			return nil, err
		}
	}
	example := &unstructured.Unstructured{}
	example.SetGroupVersionKind(k.GroupVersion().WithKind(k.Kind))
	return types.ObjectToTyped(example)
}
