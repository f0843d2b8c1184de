package functions

import (
	"net/http"
	"strings"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/apiserver/answers"
)

// Config of the functions of one cluster.
type Config struct {
	apiserver.Config
	// WatcherURL is where live watches are redirected (307). Without it they are answered 405.
	WatcherURL string
}

// New returns the handler of the request path.
func New(c Config) (*apiserver.Server, error) {
	c.Cell.Feed = nil
	c.LiveWatches = elsewhere(strings.TrimSuffix(c.WatcherURL, "/"))
	return apiserver.New(c.Config)
}

// elsewhere answers live watches: it sends them to the watcher, if there is one.
func elsewhere(watcher string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if watcher == "" {
			info, _ := apirequest.RequestInfoFrom(r.Context())
			answers.Fail(w, r, answers.NotSupported(info, "watch is not served here: this process has no watcher"))
			return
		}
		w.Header().Set("Location", watcher+r.URL.RequestURI())
		w.WriteHeader(http.StatusTemporaryRedirect)
	})
}
