package access

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLoopbackHosts: a request is served if its Host names this machine, and if it comes neither from another machine
// nor from a page of another server.
func TestLoopbackHosts(t *testing.T) {
	for _, c := range []struct {
		host, origin string
		allowed      bool
	}{
		{"localhost:7373", "", true},
		{"127.0.0.1:7373", "", true},
		{"[::1]:7373", "", true},
		{"localhost", "http://localhost", true},
		{"localhost:7373", "http://localhost:7373", true},
		{"localhost:7373", "http://localhost:8080", false},
		{"localhost:7373", "https://evil.example", false},
		{"localhost:7373", "null", false},
		{"evil.example:7373", "", false},
		{"127.0.0.1.evil.example", "", false},
		{"", "", false},
	} {
		require.Equal(t, c.allowed, checkLoopbackHost(&http.Request{Host: c.host, Header: originHeader(c.origin)}) == nil, "%v", c)
	}
	for from, allowed := range map[string]bool{"127.0.0.1": true, "::1": true, "127.0.0.1, 10.0.0.1": false, "10.0.0.1": false} { // a proxy adds X-Forwarded-For
		require.Equal(t, allowed, checkLoopbackHost(&http.Request{Host: "localhost", Header: http.Header{"X-Forwarded-For": {from}}}) == nil, from)
	}
}

func originHeader(origin string) http.Header {
	if origin == "" {
		return http.Header{}
	}
	return http.Header{"Origin": {origin}}
}
