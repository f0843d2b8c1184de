package apiserver

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/audit"
	apiaudit "k8s.io/apiserver/pkg/audit"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	namespacestore "k8s.io/kubernetes/pkg/registry/core/namespace/storage"

	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/gate"
	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/apiserver/lists"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/apiserver/watchwriter"
	"github.com/logplane/logplane/internal/kubestore"
)

// serveResource serves a request for objects of a resource.
func (s *Server) serveResource(w http.ResponseWriter, r *http.Request, info *apirequest.RequestInfo) {
	if info.APIGroup != history.GroupName && lists.WantsCSV(r, info) { // only a continue token tells where lists of history end
		lists.ServeCSV(w, r, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serveResource(w, r, info) }))
		return
	}
	h := s.resource(info)
	if info.APIGroup == history.GroupName { // its lists do not consist of stored objects
		history.With(h).ServeHTTP(w, r)
		return
	}
	g, builtin := h.(*group)
	if info.Verb == "watch" && builtin && info.Subresource == "" {
		r = g.withWatchWriter(r, info)
	}
	if info.Verb != "list" || r.Method != http.MethodGet || info.Subresource != "" {
		h.ServeHTTP(w, r)
		return
	}
	kind := lists.Kind{Resource: schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}, Version: schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}}
	switch {
	case s.recorded() && apiaudit.AuditContextFrom(r.Context()).GetEventLevel().GreaterOrEqual(audit.LevelRequestResponse):
		// the audit record needs the answer that upstream's handler gives
	case builtin:
		g.describe(&kind)
	default:
		kind.Serializer, kind.Tables = customresources.ListSerializer(), customresources.TableConvertor
		kind.Verbatim = customresources.Verbatim
	}
	lists.Serve(w, r, kind, h, answers.Fail)
}

// decoratesAlone are the kinds whose stores add parts to each object that they read, and compute these parts from that
// object alone. A ClusterRole is different: it gets the rules of other ClusterRoles.
var decoratesAlone = map[schema.GroupResource]bool{{Resource: "services"}: true, {Resource: "persistentvolumeclaims"}: true}

// shown says how a registry shows its objects.
type shown struct {
	known bool
	// decorator is nil if objects are shown as they are stored.
	decorator func(runtime.Object)
	// resource is the resource of the stored objects, if several groups serve it; empty if it is the registry's own.
	resource schema.GroupResource
}

func shownBy(registry rest.Storage) shown {
	stores := resources.StoresIn(registry)
	switch _, hides := registry.(*namespacestore.REST); {
	case hides: // its store is unexported, and decorates nothing
		return shown{known: true}
	case len(stores) != 1:
		return shown{}
	}
	return shown{true, stores[0].Decorator, stores[0].DefaultQualifiedResource}
}

// describe fills in how lists of a built-in kind are encoded, if each object's part of a list depends on that object
// alone.
func (g *group) describe(kind *lists.Kind) {
	built, err := g.get()
	if err != nil {
		return // ServeHTTP answers with the error
	}
	registry := built.info.VersionedResourcesStorageMap[kind.Version.Version][kind.Resource.Resource]
	shown := shownBy(registry)
	if !shown.known || shown.decorator != nil && !decoratesAlone[shown.resource] {
		return
	}
	if !shown.resource.Empty() {
		kind.Resource = shown.resource
	}
	kind.Decorate = shown.decorator
	kind.Serializer, kind.Convertor = built.info.NegotiatedSerializer, built.info.Scheme
	if tables, ok := registry.(rest.TableConvertor); ok {
		kind.Tables = func(context.Context) rest.TableConvertor { return tables }
	}
}

// withWatchWriter gives a watch a writer to its client, unless e is nil.
func withWatchWriter(r *http.Request, e *watchwriter.Encoding) *http.Request {
	open := gate.WatchOf(r.Context())
	if open == nil || e == nil {
		return r
	}
	asked := kubestore.RequestOf(r.Context())
	asked.WatchWriter = watchwriter.New(e, open.Stream)
	return r.WithContext(asked.In(r.Context()))
}

// withWatchWriter gives a watch a writer to its client if its objects are shown as they are stored. Tables and Services
// are not shown so.
func (g *group) withWatchWriter(r *http.Request, info *apirequest.RequestInfo) *http.Request {
	built, err := g.get()
	if err != nil {
		return r
	}
	accepted, ok := watchwriter.Wanted(r, built.info.NegotiatedSerializer)
	if !ok {
		return r
	}
	return withWatchWriter(r, built.watchEncoding(info, accepted))
}

// watchEncoding returns the encoding of events of the resource, nil if its objects are not shown as they are stored.
func (b *builtGroup) watchEncoding(info *apirequest.RequestInfo, accepted runtime.SerializerInfo) *watchwriter.Encoding {
	registry, served := b.info.VersionedResourcesStorageMap[info.APIVersion][info.Resource]
	if !served { // so that invented names take no memory
		return nil
	}
	resource := schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
	return b.watchEncodings.Of(resource, accepted.MediaType, func() *watchwriter.Encoding {
		if shown := shownBy(registry); !shown.known || shown.decorator != nil {
			return nil
		}
		return watchwriter.NewEncoding(resource, b.info.NegotiatedSerializer, accepted, nil)
	})
}
