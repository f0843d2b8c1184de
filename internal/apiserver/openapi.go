package apiserver

import "net/http"

// newOpenAPI serves '/openapi/…'.
func newOpenAPI(s *Server) (http.Handler, error) { return http.HandlerFunc(http.NotFound), nil }
