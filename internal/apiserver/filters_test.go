package apiserver

import (
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGoawayAndHSTS: an HTTP/2 client may be told to connect anew, and browsers are told to use TLS, whatever the code
// of the answer is.
func TestGoawayAndHSTS(t *testing.T) {
	s := newServer(t, withTokens(t), func(c *Config) {
		c.GoawayChance, c.HSTSDirectives = 1, []string{"max-age=31536000", "includeSubDomains"}
	})
	for protocol, connection := range map[string]string{"HTTP/1.1": "", "HTTP/2.0": "close"} {
		for token, code := range map[string]int{"": 401, "ann-token": 200} {
			r := httptest.NewRequest("GET", configMaps, nil)
			r.Proto = protocol
			r.Header.Set("Authorization", "Bearer "+token)
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			require.Equal(t, code, w.Code)
			require.Equal(t, connection, w.Header().Get("Connection"))
			require.Equal(t, "max-age=31536000; includeSubDomains", w.Header().Get("Strict-Transport-Security"))
		}
	}
}
