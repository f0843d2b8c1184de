package hostile

import (
	"crypto/tls"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAStrangersWatch: a client without credentials is not told where watches are served. On e14eff4 it is 307.
func TestAStrangersWatch(t *testing.T) {
	s := serve(t, "api", "--watcher-url", "https://watcher.example:1234")
	for _, path := range []string{"/api/v1/namespaces?watch=1", "/api/v1/watch/namespaces"} {
		for _, user := range []string{nobody, "another"} {
			a := s.do(user, http.MethodGet, path, "", "")
			require.Equal(t, http.StatusUnauthorized, a.Code, string(a.Body))
			require.Empty(t, a.Header.Get("Location"))
		}
		a := s.do(stranger, http.MethodGet, path, "", "")
		require.Equal(t, http.StatusTemporaryRedirect, a.Code, string(a.Body))
		require.Equal(t, "https://watcher.example:1234"+path, a.Header.Get("Location"))
	}
}

// TestACertificateOfOthers: many clients have a certificate for something else. Such a
// client is known by its token. On e14eff4 it is 401. Without a good token it is refused.
func TestACertificateOfOthers(t *testing.T) {
	c := newCell(t)
	roots := filepath.Join(t.TempDir(), "ca.pem")
	authority := newAuthority(t, "ours")
	require.NoError(t, os.WriteFile(roots, authority.certificatePEM(), 0o600))
	s := c.serve("api", append(c.certificate(), "--client-ca-file", roots)...)
	code := func(user string, shown *tls.Certificate) int {
		config := &tls.Config{InsecureSkipVerify: true}
		if shown != nil {
			config.Certificates = []tls.Certificate{*shown}
		}
		transport := &http.Transport{TLSClientConfig: config}
		defer transport.CloseIdleConnections()
		return s.send(t.Context(), &http.Client{Transport: transport}, user, http.MethodGet, "/api/v1/namespaces", "", "")
	}
	ours := authority.client(t, "root", "system:masters")
	theirs := newAuthority(t, "theirs").client(t, "root", "system:masters")
	require.Equal(t, http.StatusOK, code(admin, nil))
	require.Equal(t, http.StatusOK, code(nobody, ours))
	require.Equal(t, http.StatusOK, code(admin, theirs))
	require.Equal(t, http.StatusForbidden, code(stranger, theirs))
	require.Equal(t, http.StatusUnauthorized, code(nobody, theirs))
	require.Equal(t, http.StatusUnauthorized, code("another", theirs))
	require.Equal(t, http.StatusUnauthorized, code("another", nil))
}
