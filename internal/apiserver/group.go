package apiserver

import (
	"fmt"
	"net/http"
	"sync"

	"github.com/emicklei/go-restful/v3"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/logplane/logplane/internal/apiserver/lines"
)

// group is one built-in API group. It is built by its first request; until then it costs nothing. It is safe for
// concurrent use.
type group struct {
	name string
	// build makes the group, fail answers why it could not be made.
	build func() (*builtGroup, error)
	fail  func(http.ResponseWriter, *http.Request, error)

	mu    sync.Mutex
	built *builtGroup // by mu; nil until the first use, and after a failed build
}

// builtGroup has the registries of a group, and the routes to those of its resources that were asked for. Upstream
// compiles an expression for each route, and the core group has hundreds.
type builtGroup struct {
	info  genericapiserver.APIGroupInfo
	forms lines.Forms // of watches
	// route makes the routes to one resource, in all versions.
	route func(resource string) (*restful.Container, error)

	mu     sync.Mutex
	routes map[string]*restful.Container // by mu; by resource
}

// get builds the group if it is not built yet. A failed build is tried again by the next request.
func (g *group) get() (*builtGroup, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.built != nil {
		return g.built, nil
	}
	built, err := g.build()
	if err != nil {
		return nil, fmt.Errorf("build API group %q: %w", g.name, err)
	}
	groupsBuilt.WithLabelValues(g.name).Inc()
	g.built = built
	return built, nil
}

// serves reports whether this version is the group's own rather than a custom resource's.
func (g *group) serves(version string) bool {
	built, err := g.get()
	return err != nil || len(built.info.VersionedResourcesStorageMap[version]) > 0 // ServeHTTP says what failed
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

// routesTo makes the routes to a resource unless they are there. All resources that the group has not share theirs,
// which lead nowhere.
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
