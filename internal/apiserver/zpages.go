package apiserver

import (
	"net/http"
	"sync"

	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/statusz"

	"github.com/logplane/logplane/internal/apiserver/answers"
)

// component is the name of this process on the pages, as on the pages of kube-apiserver.
const component = "apiserver"

// newZPages answers '/statusz', and '/flagz' if the flags are known. The pages are made when somebody first asks for
// one, because upstream makes codecs for each page.
func newZPages(s *Server) func() http.Handler {
	return sync.OnceValue(func() http.Handler {
		pages := mux.NewPathRecorderMux("zpages")
		pages.NotFoundHandler(answers.Unknown)
		if s.config.Flagz != nil {
			flagz.Install(pages, component, s.config.Flagz)
		}
		statusz.Install(pages, component, statusz.NewRegistry(s.generic.EffectiveVersion, statusz.WithListedPaths(s.processPaths())))
		return pages
	})
}

// processPaths are the paths on which the process describes its own state.
func (s *Server) processPaths() []string {
	paths := append(s.health.ListedPaths(), "/metrics", statusz.DefaultStatuszPath, "/version")
	if s.config.Flagz != nil {
		paths = append(paths, flagz.DefaultFlagzPath)
	}
	return paths
}
