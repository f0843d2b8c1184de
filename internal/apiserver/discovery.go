package apiserver

import "net/http"

// newDiscovery serves '/api', '/apis' and below them down to a group's version.
func newDiscovery(s *Server) (http.Handler, error) { return http.HandlerFunc(http.NotFound), nil }
