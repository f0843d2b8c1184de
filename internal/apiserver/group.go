package apiserver

import (
	"fmt"
	"net/http"
	"sync"

	"github.com/emicklei/go-restful/v3"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	genericapiserver "k8s.io/apiserver/pkg/server"
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

// builtGroup is immutable.
type builtGroup struct {
	container *restful.Container
	info      genericapiserver.APIGroupInfo
	// discovery holds what the group serves, in order of priority.
	discovery []apidiscoveryv2.APIVersionDiscovery
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
	if err != nil {
		return true // ServeHTTP says why
	}
	for _, v := range built.discovery {
		if v.Version == version {
			return true
		}
	}
	return false
}

// ServeHTTP serves everything below the group's versions.
func (g *group) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	built, err := g.get()
	if err != nil {
		g.fail(w, r, err)
		return
	}
	built.container.Dispatch(w, r)
}
