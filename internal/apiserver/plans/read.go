package plans

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/sides"
)

// refuse is the answer to a plan that cannot be made.
func refuse(code int, format string, args ...any) error {
	refused := apierrors.NewGenericServerResponse(code, "create", schema.GroupResource{}, "", "", 0, false)
	refused.ErrStatus.Message = fmt.Sprintf(format, args...)
	refused.ErrStatus.Details = nil
	return refused
}

// title names an object in an answer.
func (p *planner) title(r history.Reference) string {
	if r.Namespace == "" || r.Namespace == p.namespace {
		return r.String()
	}
	return r.String() + " -n " + r.Namespace
}

// contents returns versions of an object with what the object was, newest first, until there are enough of them. An
// object that is written every second has more than one wants to read.
func (p *planner) contents(ctx context.Context, object, namespace string, enough func([]history.Version) bool) ([]history.Version, error) {
	all, err := p.versions(ctx, object, namespace, url.Values{"include": {"object"}, "limit": {"50"}}, enough)
	for i := range all {
		if all[i].Content != nil {
			p.read += len(all[i].Content.Raw)
		}
	}
	if p.read > mostRead {
		return nil, refuse(http.StatusRequestEntityTooLarge, "the versions to look at have more than %d MiB: "+
			"name a later moment, one namespace, or one object", mostRead>>20)
	}
	return all, err
}

// mostRead bounds the bytes of versions that a request holds.
const mostRead = 64 << 20

func (p *planner) versions(ctx context.Context, object, namespace string, query url.Values, enough func([]history.Version) bool) ([]history.Version, error) {
	query.Set("fieldSelector", fields.Set{"object": object}.AsSelector().String())
	var all []history.Version
	for {
		page := &history.VersionList{}
		if err := p.history(ctx, namespace, "versions", query, page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.Continue == "" || len(all) > 0 && enough(all) {
			break
		}
		query.Set("continue", page.Continue)
	}
	if len(all) == 0 {
		return nil, refuse(http.StatusNotFound, "no version of '%s' is kept in namespace '%s': are the names right?", object, namespace)
	}
	return all, nil
}

// changes returns what has changed, oldest first.
func (p *planner) changes(ctx context.Context, which fields.Set) ([]history.Change, error) {
	query := url.Values{"fieldSelector": {which.AsSelector().String()}}
	var all []history.Change
	for {
		page := &history.ChangeList{}
		if err := p.history(ctx, p.namespace, "changes", query, page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.Continue == "" { // it names the end of the first page's list, too
			return all, nil
		}
		query.Set("continue", page.Continue)
	}
}

func (p *planner) history(ctx context.Context, namespace, resource string, query url.Values, into any) error {
	path := "/apis/" + history.GroupVersion.String()
	if namespace != "" {
		path += "/namespaces/" + url.PathEscape(namespace)
	}
	return p.live.Read(ctx, path+"/"+resource, query, into)
}

// servedNow returns the kind of an object in the version in which it was stored. The reason why there is none is for
// people.
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
	}
	return k, why, nil
}

// schemaOf returns any value of a kind. It knows the kind's schema, as managed fields do.
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

// isAfter compares revisions.
func isAfter(a, b string) bool {
	first, _ := strconv.ParseUint(a, 10, 64) // the server has written both
	second, _ := strconv.ParseUint(b, 10, 64)
	return first > second
}
