package apiserver

import (
	"fmt"
	"net/http"
	"sync"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apimachinery/pkg/runtime"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/watchwriter"
)

// group is one built-in API group. Its first request builds it; until then it costs nothing. It is safe for concurrent
// use.
type group struct {
	builtin
	server *Server

	mu    sync.Mutex
	built *builtGroup // guarded by mu; nil until the first use, and after a failed build
}

// builtGroup has the registries of a group, and the routes to the resources that were requested so far. Upstream
// compiles a regular expression for each route, and the core group has hundreds of routes.
type builtGroup struct {
	info           genericapiserver.APIGroupInfo
	watchEncodings watchwriter.Encodings // of the events of its watches
	// route makes the routes to one resource, in all versions.
	route func(resource string) (*restful.Container, error)

	mu     sync.Mutex
	routes map[string]*restful.Container // by resource; guarded by mu
}

// get builds the group if it is not built yet. After a failed build, the next request tries again.
func (g *group) get() (*builtGroup, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.built != nil {
		return g.built, nil
	}
	built, err := g.server.install(g.name, g.build)
	if err != nil {
		return nil, fmt.Errorf("build API group %q: %w", g.name, err)
	}
	groupsBuilt.WithLabelValues(g.name).Inc()
	g.built = built
	return built, nil
}

// serves reports whether this version is the group's own. A custom resource may have another version of the group.
func (g *group) serves(version string) bool {
	built, err := g.get()
	return err != nil || len(built.info.VersionedResourcesStorageMap[version]) > 0 // ServeHTTP answers with the error
}

func (g *group) fail(w http.ResponseWriter, r *http.Request, err error) {
	g.server.config.Logger.ErrorContext(r.Context(), "an API group could not be built", "group", g.name, "error", err)
	answers.Fail(w, r, err)
}

// ServeHTTP serves everything below the group's versions.
func (g *group) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	built, err := g.get()
	if err != nil {
		g.fail(w, r, err)
		return
	}
	info, _ := apirequest.RequestInfoFrom(r.Context())
	routes, err := built.routesTo(info.Resource)
	if err != nil {
		g.fail(w, r, err)
		return
	}
	routes.Dispatch(w, r)
}

// routesTo returns the routes to a resource, and makes them if they are missing. All resources that the group does not
// have share one set of routes, which leads nowhere.
func (b *builtGroup) routesTo(resource string) (*restful.Container, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.routes[resource] == nil && !b.has(resource) {
		resource = ""
	}
	if routes := b.routes[resource]; routes != nil {
		return routes, nil
	}
	routes, err := b.route(resource)
	if err != nil {
		return nil, err
	}
	b.routes[resource] = routes
	return routes, nil
}

func (b *builtGroup) has(resource string) bool {
	for _, byName := range b.info.VersionedResourcesStorageMap {
		for name := range byName {
			if resourceOf(name) == resource {
				return true
			}
		}
	}
	return false
}

// example is an empty object of the kind that a request to a built-in group is about, nil if nothing serves the
// request.
func (s *Server) example(info *apirequest.RequestInfo) runtime.Object {
	built, err := s.groups[info.APIGroup].get()
	if err != nil {
		return nil
	}
	name := info.Resource
	if info.Subresource != "" {
		name += "/" + info.Subresource
	}
	storage := built.info.VersionedResourcesStorageMap[info.APIVersion][name]
	if storage == nil {
		return nil
	}
	return storage.New()
}
