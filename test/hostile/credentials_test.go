package hostile

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAStrangersWatch: who shows no credentials is not told where watches are served. On e14eff4 it is 307.
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

// TestACertificateOfOthers: a client that has a certificate for something else, as many have, is known by its token. On e14eff4 it is
// 401. Without a good token it is nobody.
func TestACertificateOfOthers(t *testing.T) {
	c := newCell(t)
	roots := filepath.Join(t.TempDir(), "ca.pem")
	ours := selfSigned(t)
	require.NoError(t, os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ours.Certificate[0]}), 0o600))
	s := c.serve("api", append(c.certificate(), "--client-ca-file", roots)...)
	code := func(user string, shown ...tls.Certificate) int {
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: shown}}
		defer transport.CloseIdleConnections()
		return s.send(t.Context(), &http.Client{Transport: transport}, user, http.MethodGet, "/api/v1/namespaces", "", "")
	}
	theirs := selfSigned(t)
	require.Equal(t, http.StatusOK, code(admin))
	require.Equal(t, http.StatusOK, code(nobody, ours))
	require.Equal(t, http.StatusOK, code(admin, theirs))
	require.Equal(t, http.StatusForbidden, code(stranger, theirs))
	require.Equal(t, http.StatusUnauthorized, code(nobody, theirs))
	require.Equal(t, http.StatusUnauthorized, code("another", theirs))
	require.Equal(t, http.StatusUnauthorized, code("another"))
}

// selfSigned is a certificate of an administrator, for who trusts it.
func selfSigned(t *testing.T) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root", Organization: []string{"system:masters"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
