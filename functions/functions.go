// Package functions is the stateless form of the API server. Any number of instances serve every request except
// watches, and run nothing between two requests.
package functions

import "github.com/logplane/logplane/internal/apiserver"

// New returns the handler of the request path. A watch is redirected to c.WatcherURL.
func New(c apiserver.Config) (*apiserver.Server, error) {
	c.Cell.Feed = nil
	return apiserver.New(c)
}
