package apiserver

import (
	"net/http"
	"sync"

	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/statusz"
)

// component is what the pages call this process, as those of kube-apiserver do.
const component = "apiserver"

// newZPages answers '/statusz', and '/flagz' if the flags are known. Upstream makes codecs for each, so they are made
// when somebody asks.
func newZPages(s *Server) func() http.Handler {
	return sync.OnceValue(func() http.Handler {
		pages := mux.NewPathRecorderMux("zpages")
		pages.NotFoundHandler(s.unknown())
		if s.config.Flagz != nil {
			flagz.Install(pages, component, s.config.Flagz)
		}
		statusz.Install(pages, component, statusz.NewRegistry(s.generic.EffectiveVersion, statusz.WithListedPaths(s.processPaths())))
		return pages
	})
}

// processPaths are the paths below which the process says how it is.
func (s *Server) processPaths() []string {
	paths := append(s.health.ListedPaths(), "/metrics", statusz.DefaultStatuszPath, "/version")
	if s.config.Flagz != nil {
		paths = append(paths, flagz.DefaultFlagzPath)
	}
	return paths
}
