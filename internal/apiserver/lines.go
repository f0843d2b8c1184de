package apiserver

import (
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/logplane/logplane/internal/apiserver/gate"
	"github.com/logplane/logplane/internal/apiserver/lines"
	"github.com/logplane/logplane/internal/kubestore"
)

// withLine gives a watch a line (package lines), unless f is nil.
func withLine(r *http.Request, f *lines.Form) *http.Request {
	stream := gate.StreamOf(r.Context())
	if stream == nil || f == nil {
		return r
	}
	return r.WithContext(kubestore.WithLine(r.Context(), lines.New(f, stream)))
}

// withLine gives a watch a line if its objects are shown as they are stored. Tables and Services are not.
func (g *group) withLine(r *http.Request, info *apirequest.RequestInfo) *http.Request {
	built, err := g.get()
	if err != nil {
		return r
	}
	accepted, ok := lines.Wanted(r, built.info.NegotiatedSerializer)
	if !ok {
		return r
	}
	return withLine(r, built.form(info, accepted))
}

// form returns the form of the resource, nil if its objects are not shown as they are stored.
func (b *builtGroup) form(info *apirequest.RequestInfo, accepted runtime.SerializerInfo) *lines.Form {
	registry, served := b.info.VersionedResourcesStorageMap[info.APIVersion][info.Resource]
	if !served { // so that invented names take no memory
		return nil
	}
	resource := schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
	return b.forms.Of(resource, accepted.MediaType, func() *lines.Form {
		if shown := shownBy(registry); !shown.known || shown.decorator != nil {
			return nil
		}
		return lines.NewForm(resource, b.info.NegotiatedSerializer, accepted, nil)
	})
}
